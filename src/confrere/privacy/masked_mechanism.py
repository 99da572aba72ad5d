"""The mechanism of a study with masked sums: what one share costs, and the least noise for a budget.

No step of it is ever released by a site alone. `MaskedSteps` computes the clipped sum of a training call and keeps it for
`masked_release`; `Mechanism.release`, which would add the noise of a whole release, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.core.sum_terms import SumTerms
from confrere.privacy.accounting import check_delta, check_epsilon, epsilon
from confrere.privacy.budget import Budget
from confrere.privacy.charged_steps import Draw, PrivateSteps, already_released
from confrere.privacy.charges import masked
from confrere.privacy.gradients import ClippedSum
from confrere.privacy.mechanism import Mechanism, Release
from confrere.privacy.noise import Randomness
from confrere.privacy.sampling import Patients

TICKS = 10_000
"""Noise is calibrated to four decimals."""


@dataclass(frozen=True)
class MaskedMechanism(Mechanism):
    """One clipped sum over all records per round, released only in a masked sum on these terms."""

    terms: SumTerms = field(kw_only=True)

    @cached_property
    def event(self) -> str:
        return masked(self.terms, unit=self.unit, proven=self.proven).event

    @property
    def own_noise(self) -> float:
        """One site adds its part: the noise of the sum over the root of the honest members that are certainly in it."""
        return self.noise_multiplier / math.sqrt(self.terms.honest)

    def among(self, members: int, size: int) -> Self:
        """The same for another number of members, or a shorter vector.

        The noise of the sum stays, and is divided anew between the members. A shorter vector has the same grid, so that
        rounding moves it less and it costs no more.
        """
        if size > self.terms.size:
            raise PrivacyError(
                f"a masked sum of {size} numbers, and noise was calibrated for {self.terms.size}"
            )
        if (members, size) == (self.terms.members, self.terms.size):
            return self
        return replace(self, terms=replace(self.terms, members=members, size=size))


@dataclass(frozen=True)
class MaskedSteps(PrivateSteps):
    """The one step of a training call whose clipped sums are kept for a masked sum instead of being released."""

    keeps_sums: ClassVar[bool] = True
    sums: dict[str, Tensor] = field(default_factory=dict)
    """By role, the clipped sum over all records, in double precision: PRIVATE."""

    def draw(self, units: int | Patients, randomness: Randomness) -> Iterator[Draw]:
        if self.count != 1:
            raise PrivacyError("a masked sum has one step: a second one would read a sum without its noise")
        rows = {role: m.sampling.draw(units, randomness) for role, m in self.mechanisms.items()}
        yield KeptDraw(self, rows, randomness)


class KeptDraw(Draw):
    """The records of the step. What a role adds up is kept, and no weight moves."""

    def __init__(self, steps: MaskedSteps, rows: Mapping[str, Tensor], randomness: Randomness) -> None:
        super().__init__(steps.mechanisms, rows, randomness)
        self._sums = steps.sums

    def release(self, role: str, clipped: ClippedSum, state: Mapping[str, Tensor]) -> Release:
        if role in self._sums:
            raise already_released(role)
        # `Clipping.sum` has added up in double precision where single precision would not do
        self._sums[role] = clipped.flat.detach().to("cpu", torch.float64).clone()
        return Release(torch.zeros_like(clipped.flat, dtype=clipped.dtype), state, clipped.dropped)


def calibrate_masked(target: Budget, rounds: int, terms: SumTerms) -> SumTerms:
    """The terms with the least noise, to four decimals of the clipping norm, with which these rounds keep within ε.

    >>> terms = SumTerms(8, 1, 0, noise_std=1.0, clip=1.0, size=5130)
    >>> round(calibrate_masked(Budget(3.0, 1e-5), 1, terms).noise_std, 2)
    1.49
    """
    check_epsilon(target.epsilon)
    check_delta(target.delta)

    def noisy(ticks: int) -> SumTerms:
        return replace(terms, noise_std=ticks / TICKS * terms.clip)

    def fits(ticks: int) -> bool:
        return epsilon([masked(noisy(ticks), rounds)], target.delta) <= target.epsilon

    least = math.ceil(6 * math.sqrt(terms.honest) * terms.grid / terms.clip * TICKS)  # what the grid needs
    low, high = 0, max(least, TICKS)
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e6 * TICKS:
            raise PrivacyError(f"no noise keeps {rounds} rounds within ε = {target.epsilon:g}")
    low = max(low, least)
    if low >= high or fits(low):
        return noisy(max(low, least))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return noisy(high)
