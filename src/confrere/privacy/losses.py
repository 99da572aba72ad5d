"""The privacy losses of one step, composed with themselves for any number of steps.

`dp_accounting` does the same; but it works out the moments that bound the tails anew for every number of steps, which takes
most of its time. They do not depend on the number, so here they are kept: what is left is one Fourier
transform. The losses of a ledger are asked for again and again, for one round more each time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy import fft

TAIL = 1e-15
"""So much of a composition's mass may be cut off at each end; it is added to δ."""

LARGE = 600.0
"""Losses beyond this, either way, are left to the library: e^−loss comes near to the smallest or the largest number."""

HIGHEST = 20
"""Moments of so many orders, each way, bound the tails."""


class Losses:
    """Losses on a grid, as a record is added and as one is removed."""

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution
        sides = [distribution._pmf_remove, *([] if distribution._symmetric else [distribution._pmf_add])]
        self._sides = [_Side(pmf.to_dense_pmf()) if pmf.size else None for pmf in sides]

    def self_compose(self, count: int) -> Any:
        """The losses of so many steps."""
        sides = [side for side in self._sides if side is not None]
        if len(sides) < len(self._sides):  # there is nothing to lose, or everything
            return self.distribution.self_compose(count)
        return PrivacyLossDistribution(*(side.composed(count) for side in sides))


class _Side:
    """One direction: the chance of each loss, and the moments of them all."""

    def __init__(self, pmf: Any) -> None:
        self.pmf, self.chances = pmf, np.asarray(pmf._probs, dtype=np.float64)
        size = len(self.chances)
        steps = np.arange(1, HIGHEST + 1) / size
        self.orders = np.concatenate((-steps[::-1], steps))
        places = np.arange(size)
        # an order times a place is at most 20, so nothing overflows
        self.moments = np.log([np.exp(places * order) @ self.chances for order in self.orders])

    def composed(self, count: int) -> Any:
        low, high = self._bounds(count)
        chances = _convolved(self.chances, count, low, high)
        forever = TAIL - math.expm1(count * math.log1p(-self.pmf._infinity_mass))
        lowest = self.pmf._lower_loss * count + low
        return DensePLDPmf(self.pmf._discretization, lowest, chances, forever, self.pmf._pessimistic_estimate)

    def _bounds(self, count: int) -> tuple[int, int]:
        """Where all but a tail of the sum lies (Chernoff): the least and the largest place."""
        bounds = (count * self.moments + math.log(2 / TAIL)) / self.orders
        above = [math.ceil(b) for b in bounds[HIGHEST:] if math.isfinite(b)]
        below = [math.floor(b) for b in bounds[:HIGHEST] if math.isfinite(b)]
        return max([0, *below]), min([(len(self.chances) - 1) * count, *above])


def _convolved(chances: NDArray[np.float64], count: int, low: int, high: int) -> NDArray[np.float64]:
    """The chances of the sum of so many losses, from place `low` to `high`."""
    size = high - low + 1
    length = fft.next_fast_len(max(size, len(chances)), real=True)
    whole = fft.irfft(fft.rfft(chances, length) ** count, length)
    return np.asarray(np.roll(whole, -low)[:size])


def epsilon_at(distribution: Any, delta: float) -> float:
    """The smallest ε of a distribution at this δ: what its own method finds by going through the losses one by one."""
    sides = [distribution._pmf_remove, *([] if distribution._symmetric else [distribution._pmf_add])]
    return max(_epsilon_at(pmf, delta) for pmf in sides)


def _epsilon_at(pmf: Any, delta: float) -> float:
    """From the largest loss downwards: ε is reached where it would be at least the next loss."""
    if type(pmf) is not DensePLDPmf or not len(pmf._probs):
        return float(pmf.get_epsilon_for_delta(delta))
    top = (pmf._lower_loss + len(pmf._probs) - 1) * pmf._discretization
    bottom = pmf._lower_loss * pmf._discretization
    # there is none, or an exponential has no number
    if pmf._infinity_mass >= delta or top > LARGE or bottom < -LARGE:
        return float(pmf.get_epsilon_for_delta(delta))
    losses = top - pmf._discretization * np.arange(len(pmf._probs))
    chances = pmf._probs[::-1]
    above = np.cumsum(np.concatenate(([pmf._infinity_mass], chances)))
    below = np.cumsum(np.concatenate(([0.0], np.exp(-losses) * chances)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        reached = np.log((above[:-1] - delta) / below[:-1])
    found = (above[:-1] > delta) & (below[:-1] > 0) & (reached >= losses)
    at = int(found.argmax()) if found.any() else len(losses)
    if above[at] <= below[at] + delta:
        return 0.0
    return math.log((above[at] - delta) / below[at])
