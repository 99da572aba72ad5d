"""What a training draws, observed from outside: every sample, and the noise of every release made from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import dp_accounting
import torch
from dp_accounting.pld import PLDAccountant
from torch import Tensor

from confrere.privacy.charges import Charge, read_event
from confrere.privacy.noise import Seeded

COUNT_SENSITIVITY = 0.5
"""How far one unit moves the centred count of quantile clipping."""


@dataclass
class Sample:
    """The units that were drawn, with which probability, and the noise multipliers of what was released."""

    units: frozenset[int]
    rate: Fraction
    noise: list[float] = field(default_factory=list)

    @property
    def joint(self) -> float:
        """The noise multiplier of all its releases together."""
        return 1 / math.sqrt(sum(z**-2 for z in self.noise))


class Recording(Seeded):
    """Reproducible randomness that keeps account of what it is used for.

    `seen(value)` tells which units a clipped sum was made of. A release belongs to the sample of just these units, and
    to the full batch where nothing was sampled.
    """

    def __init__(self, seed: int, seen: Callable[[Tensor], frozenset[int]]) -> None:
        super().__init__(seed)
        self.seen = seen
        self.samples: list[Sample] = []
        self.members: list[float] = []
        """The noise multipliers of all releases from full batches."""
        self._last: list[float] = self.members
        self._inside = False

    def bernoulli(self, size: int, rate: Fraction | float) -> Tensor:
        mask = super().bernoulli(size, rate)
        self.samples.append(Sample(frozenset(mask.nonzero()[:, 0].tolist()), Fraction(rate)))
        return mask

    def perturb(self, value: Tensor, std: float, sensitivity: float) -> Tensor:
        self._last = self._drawn(self.seen(value))
        self._last.append(std / sensitivity)
        self._inside = True
        try:
            return super().perturb(value, std, sensitivity)
        finally:
            self._inside = False

    def normal(self, size: int, std: float) -> Tensor:
        if not self._inside:  # the count of quantile clipping follows the sum that it was counted for
            assert size == 1
            self._last.append(std / COUNT_SENSITIVITY)
        return super().normal(size, std)

    def _drawn(self, units: frozenset[int]) -> list[float]:
        if not self.samples:
            return self.members
        fitting = [s for s in reversed(self.samples) if s.units == units]
        assert fitting, "released from records that were not drawn together"
        return next((s for s in fitting if not s.noise), fitting[0]).noise

    def events(self) -> Counter[tuple[float, float]]:
        """What was done, as counts of (noise multiplier, sampling rate); full batches are added up to one release."""
        found = Counter((round(s.joint, 9), float(s.rate)) for s in self.samples if s.noise)
        if self.members:
            found[round(1 / math.sqrt(sum(z**-2 for z in self.members)), 9), 1.0] += 1
        return found

    def epsilon(self, delta: float) -> float:
        """What was done costs this much, by dp-accounting alone."""
        return epsilon_of(frozenset(self.events().items()), delta)


@lru_cache
def epsilon_of(events: frozenset[tuple[tuple[float, float], int]], delta: float) -> float:
    """The ε of counts of (noise multiplier, sampling rate)."""
    accountant = PLDAccountant()
    for (noise, rate), count in events:
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
        if rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(rate, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def charged(charges: Sequence[Charge]) -> Counter[tuple[float, float]]:
    """Charges as `Recording.events` states what was done."""
    found: Counter[tuple[float, float]] = Counter()
    precision = 0.0
    for charge in charges:
        event = read_event(charge.event)
        if event.rate < 1:
            found[round(event.noise, 9), event.rate] += charge.count
        else:
            precision += charge.count / event.noise**2
    if precision:
        found[round(1 / math.sqrt(precision), 9), 1.0] += 1
    return found


def one_hot(records: int) -> Tensor:
    """Records of which each moves a weight of its own, so that a sum tells which records it is made of."""
    return torch.eye(records)


def columns(value: Tensor, records: int) -> frozenset[int]:
    """The records of a sum of gradients at one-hot records, for a linear model of one output with a bias."""
    assert value.numel() == records + 1
    return frozenset(value[1:].nonzero()[:, 0].tolist())  # sorted by name: the bias comes first
