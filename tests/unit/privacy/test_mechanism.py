"""A mechanism charges what it does, and does what it charges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.privacy.charges import gaussian
from confrere.privacy.gradients import ClippedSum
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Seeded
from confrere.privacy.sampling import FullBatch, Poisson

NOTHING: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class Halves:
    """A stand-in for clipping: half of the sum's noise goes into a second, charged query."""

    norm: float = 2.0

    def start(self, layout: Any) -> Mapping[str, Tensor]:
        return NOTHING

    def sum(self, gradients: Any, state: Mapping[str, Tensor]) -> ClippedSum:
        raise NotImplementedError

    def sensitivity(self, state: Mapping[str, Tensor]) -> float:
        return self.norm

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        return noise_multiplier / 2

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: Mapping[str, Tensor]) -> float:
        return noise_multiplier * self.norm

    def finish(
        self,
        noisy_sum: Tensor,
        state: Mapping[str, Tensor],
        *,
        noise_multiplier: float,
        expected_batch: float,
        clipped: ClippedSum,
        noise: Callable[[int, float], Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return noisy_sum / expected_batch, {"count": clipped.below + noise(1, 3.0)}


def mechanism(**changes: Any) -> Mechanism:
    options = {
        "sampling": Poisson(Fraction(1, 74)),
        "clipping": Halves(),
        "noise_multiplier": 1.4,
        "expected_batch": 32,
    }
    return Mechanism(**{**options, **changes})


def test_the_charge_is_the_clippings_effective_noise_at_the_samplings_rate() -> None:
    assert mechanism().charge(74) == gaussian(0.7, Fraction(1, 74), 74)
    by_patient = mechanism(sampling=FullBatch("patient"), unit="patient", proven=False)
    assert by_patient.charge(2) == gaussian(0.7, 1, 2, unit="patient", proven=False)


def test_a_release_is_the_sum_with_noise_over_the_public_batch_size() -> None:
    clipped = ClippedSum(torch.full((50_000,), 64.0), units=40, dropped=3, below=5)
    release = mechanism().release(clipped, NOTHING, Seeded(1))
    assert float(release.gradient.mean()) == pytest.approx(2.0, abs=5 * 2.8 / 32 / 50_000**0.5)
    assert float(release.gradient.std()) == pytest.approx(2.8 / 32, rel=0.03)
    assert release.dropped == 3
    assert float(release.state["count"]) != 5


def test_an_empty_batch_adds_noise_all_the_same() -> None:
    empty = ClippedSum(torch.zeros(50_000), units=0, dropped=0, below=0)
    release = mechanism().release(empty, NOTHING, Seeded(1))
    assert float(release.gradient.std()) == pytest.approx(2.8 / 32, rel=0.03)


def test_the_same_seed_releases_the_same() -> None:
    clipped = ClippedSum(torch.ones(10), units=1, dropped=0, below=1)
    one, two = (mechanism().release(clipped, NOTHING, Seeded(4)) for _ in range(2))
    assert torch.equal(one.gradient, two.gradient)


def test_the_unit_that_is_protected_is_the_unit_that_is_sampled() -> None:
    with pytest.raises(PrivacyError, match="per patient"):
        mechanism(unit="patient")


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": -1}, {"noise_multiplier": float("nan")}, {"expected_batch": 0}]
)
def test_impossible_numbers_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(PrivacyError):
        mechanism(**change)
