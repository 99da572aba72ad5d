"""One differentially private step as a value: how it samples, clips and adds noise, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.core.sum_terms import SumTerms
from confrere.privacy.charges import Charge, Unit, gaussian
from confrere.privacy.clipping import Clipping
from confrere.privacy.gradients import ClippedSum
from confrere.privacy.noise import Randomness
from confrere.privacy.sampling import Sampling


@dataclass(frozen=True)
class Release:
    """What a step gives out: a protected gradient and the clipping's next state.

    `dropped` counts records whose gradient was not finite. It is PRIVATE: counted without noise.
    """

    gradient: Tensor
    state: Mapping[str, Tensor]
    dropped: int


@dataclass(frozen=True)
class Mechanism:
    """Sampling, clipping and noise, with the cost that they cause.

    Fields are public. `expected_batch` is the public normaliser, whatever the batch turns out to hold; an
    empty batch adds its noise and costs as much as any other. `proven=False` marks a release whose loss reads
    something PRIVATE («as published»): it is charged alike, and never shown as a guarantee.

    >>> from fractions import Fraction
    >>> from confrere.privacy.sampling import Poisson
    >>> step = Mechanism(Poisson(Fraction(1, 74)), Flat(0.7), 1.4, 32)  # doctest: +SKIP
    >>> ledger.spend([step.charge(74)], key="study/round 0", budget=budget)  # doctest: +SKIP
    >>> release = step.release(clipped, state, randomness)  # doctest: +SKIP
    """

    sampling: Sampling
    clipping: Clipping
    noise_multiplier: float
    expected_batch: float
    unit: Unit = "record"
    proven: bool = True
    terms: SumTerms | None = field(default=None, kw_only=True)
    """The terms of the masked sum that every release is a part of; None if the site releases alone."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise PrivacyError(f"the noise multiplier must be at least 0, not {self.noise_multiplier}")
        if not (math.isfinite(self.expected_batch) and self.expected_batch > 0):
            raise PrivacyError(f"the expected batch must be positive, not {self.expected_batch}")
        if self.unit != self.sampling.unit:
            raise PrivacyError(
                f"a guarantee per {self.unit} cannot come from sampling by {self.sampling.unit}: "
                "the unit that is drawn and clipped is the unit that is protected"
            )

    @property
    def own_noise(self) -> float:
        """The noise that one site adds, in multiples of the clipping norm."""
        return self.noise_multiplier

    def among(self, members: int, size: int) -> Self:
        """The same for a vector of this size in a round with this number of members; what a site releases alone depends on
        neither."""
        return self

    def charge(self, steps: int) -> Charge:
        """What this number of steps costs, whatever they draw."""
        return Charge(self.event, steps)

    @cached_property
    def event(self) -> str:
        """One step as it is charged: a mechanism event in its canonical text."""
        effective = self.clipping.effective_noise_multiplier(self.noise_multiplier, self.expected_batch)
        return gaussian(effective, self.sampling.rate, unit=self.unit, proven=self.proven).event

    def expected_noise(self, size: int, state: Mapping[str, Tensor]) -> float:
        """The expected squared length of the noise in a released gradient of `size` numbers."""
        std = self.clipping.noise_std(self.noise_multiplier, self.expected_batch, state) / self.expected_batch
        return std**2 * self.clipping.widening(size, state)

    def release(self, clipped: ClippedSum, state: Mapping[str, Tensor], randomness: Randomness) -> Release:
        """Add the noise and let the clipping finish. The charge must have been written before."""
        if self.terms is not None:
            raise PrivacyError(
                "with masked sums no site releases a step alone: one clipped sum per round is masked and added up"
            )
        std = self.clipping.noise_std(self.noise_multiplier, self.expected_batch, state)
        noisy = randomness.perturb(clipped.flat, std, self.clipping.sensitivity(state))
        gradient, following = self.clipping.finish(
            noisy.to(clipped.dtype),
            state,
            noise_multiplier=self.noise_multiplier,
            expected_batch=self.expected_batch,
            clipped=clipped,
            noise=randomness.normal,
        )
        return Release(gradient, following, clipped.dropped)
