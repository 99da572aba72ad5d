"""What a share of a masked sum costs, and what that cost assumes."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.errors import BudgetExhausted, PrivacyError
from confrere.core.sum_terms import LEAST_STEPS, MOST_STEPS, SumTerms
from confrere.privacy.accounting import deltas, epsilon
from confrere.privacy.budget import Budget
from confrere.privacy.charges import Charge, Unit, canonical, gaussian, masked, parsed
from confrere.privacy.ledger import Ledger
from confrere.privacy.masked_release import MaskedRelease
from confrere.privacy.noise import Secure, Seeded


def share(noise: float, count: int = 1, unit: Unit = "record", **changed: Any) -> Charge:
    terms = {
        "members": 8,
        "colluding": 2,
        "dropouts": 2,
        "clip": 1.0,
        "size": 1000,
        "grid": 2.0**-20,
        **changed,
    }
    return masked(SumTerms(noise_std=noise, **terms), count, unit=unit)


@pytest.mark.parametrize(("noise", "expected"), [(1.49, 3.0), (4.05, 1.0)])
def test_one_release_costs_what_zero_concentrated_privacy_says(noise: float, expected: float) -> None:
    found = epsilon([share(noise)], 1e-5)
    assert found == pytest.approx(expected, rel=4e-3)
    assert found >= epsilon([gaussian(noise)], 1e-5, "rdp")
    assert found > 1.05 * epsilon([gaussian(noise)], 1e-5, "pld")


def test_the_cost_includes_rounding_vectors_and_coarse_noise() -> None:
    def cost(**changed: Any) -> float:
        return epsilon([share(2.0, **changed)], 1e-5)

    assert cost(grid=2.0**-15) > cost(grid=2.0**-17) > cost()
    assert cost(vectors=4) == pytest.approx(epsilon([share(1.0)], 1e-5), rel=1e-3)
    for name, broken, words in (("grid", "0.5", "grid steps"), ("colluding", "5", "honest")):
        event = canonical({**parsed(share(2.0).event), name: broken})
        with pytest.raises(PrivacyError, match=words):
            Charge(event, 1)


def test_the_condition_is_part_of_the_event_and_of_the_guarantee() -> None:
    charge = share(4.05)
    words = "if at most 2 of the other 7 sites pool what they see or depart from the protocol"
    assert '"colluding":"2"' in charge.event
    assert charge.condition == words
    ledger = Ledger()
    ledger.spend([gaussian(4.0)], key="before", budget=None)
    assert ledger.guarantee(1e-5).condition == ""
    ledger.spend([charge], key="masked", budget=None)
    found = ledger.guarantee(1e-5)
    assert found.condition == words
    assert found.accountant == "rdp"
    assert words in str(found)


def test_several_conditions_are_all_stated() -> None:
    ledger = Ledger()
    ledger.spend([share(4.0)], key="a", budget=None)
    ledger.spend([share(4.0, members=5, colluding=1, dropouts=1)], key="b", budget=None)
    condition = ledger.guarantee(1e-5).condition
    assert "2 of the other 7" in condition
    assert "1 of the other 4" in condition


def test_a_ledger_with_a_masked_event_takes_the_lower_of_both_compositions() -> None:
    many = gaussian(1.4, Fraction(1, 74), 2220)
    for one in (share(4.0), share(40.0)):
        both = epsilon([one, many], 1e-5)
        apart = epsilon([one], 5e-6) + epsilon([many], 5e-6)
        assert both == pytest.approx(min(apart, epsilon([one, many], 1e-5, "rdp")))
        assert both > epsilon([many], 1e-5)


def test_the_curve_of_a_masked_event_is_never_better_than_its_epsilon() -> None:
    charges = [share(1.5)]
    levels = np.linspace(0.1, 6, 20)
    held = deltas(charges, levels)
    for level, delta in zip(levels, held, strict=True):
        if 1e-9 < delta < 0.01:
            assert epsilon(charges, float(delta)) <= level * 1.01


def test_a_masked_event_is_read_per_record_patient_and_group() -> None:
    by_patient = share(4.0, unit="patient").per("record")
    assert by_patient is not None
    assert epsilon([by_patient], 1e-5) == pytest.approx(epsilon([share(2.0)], 1e-5), rel=1e-3)
    group = share(4.0).grouped(4)
    assert group is not None
    assert epsilon([group], 1e-5) == pytest.approx(epsilon([share(1.0)], 1e-5), rel=1e-3)
    assert share(4.0).per("patient") is None


@pytest.mark.parametrize(
    "event",
    [
        share(4.0).event.replace('"colluding":"2"', '"colluding":"0"'),
        share(4.0).event.replace('"colluding":"2",', ""),
        share(4.0).event.replace('"parameters":"1000"', '"parameters":"-1"'),
        share(4.0).event.replace('"members":"8"', '"members":"08"'),
    ],
)
def test_broken_events_are_refused(event: str) -> None:
    with pytest.raises(PrivacyError):
        Charge(event, 1)


def test_the_budget_holds_for_masked_events() -> None:
    ledger, budget = Ledger(), Budget(3.0, 1e-5)
    charge = share(4.05)
    most = ledger.remaining(budget, charge)
    assert most >= 2
    for k in range(most):
        ledger.spend([charge], key=f"round {k}", budget=budget)
    with pytest.raises(BudgetExhausted):
        ledger.spend([charge], key="one too many", budget=budget)


TERMS = SumTerms(8, 2, 2, noise_std=3.0, clip=2.0, size=1000)


def release() -> MaskedRelease:
    return MaskedRelease("proxy", TERMS, declared=50, randomness=Seeded(1), simulated=True)


def test_a_share_carries_its_part_of_the_noise_and_no_more_than_its_records_can_add() -> None:
    total = torch.full((1000,), 1e6, dtype=torch.float64)
    steps = release().release(total)
    values = steps * TERMS.grid
    assert np.linalg.norm(values - 100 / math.sqrt(1000)) == pytest.approx(3 / 2 * math.sqrt(1000), rel=0.1)
    assert release().charge == share(1.5, grid=TERMS.grid / 2)


def test_a_share_is_drawn_once() -> None:
    made = release()
    made.release(torch.zeros(1000, dtype=torch.float64))
    with pytest.raises(PrivacyError, match="charged for one release"):
        made.release(torch.zeros(1000, dtype=torch.float64))
    with pytest.raises(PrivacyError, match="charged for one release"):
        made.noise_only()


def test_a_site_without_budget_adds_the_same_noise_to_nothing() -> None:
    assert (release().noise_only() == release().release(torch.zeros(1000, dtype=torch.float64))).all()


@pytest.mark.parametrize(
    "total",
    [
        torch.zeros(999, dtype=torch.float64),
        torch.full((1000,), float("nan"), dtype=torch.float64),
        torch.zeros(1000, dtype=torch.float32),
    ],
)
def test_a_sum_that_does_not_fit_is_refused(total: torch.Tensor) -> None:
    with pytest.raises(PrivacyError):
        release().release(total)


def test_only_a_simulation_draws_noise_that_can_be_repeated() -> None:
    with pytest.raises(PrivacyError, match="secure source"):
        MaskedRelease("proxy", TERMS, declared=50, randomness=Seeded(1))
    MaskedRelease("proxy", TERMS, declared=50, randomness=Secure()).noise_only()


def test_all_noise_that_terms_accept_can_be_drawn() -> None:
    """Terms whose noise the sampler refuses would be found out after the charge."""
    grid = 2.0**-10 / 1024
    for steps in (LEAST_STEPS, MOST_STEPS):
        terms = SumTerms(4, 1, 1, noise_std=steps * grid * math.sqrt(2), clip=1.0, size=3, grid=grid)
        MaskedRelease("proxy", terms, declared=50, randomness=Secure()).noise_only()
    with pytest.raises(PrivacyError, match="too fine for the noise"):
        replace(terms, noise_std=1.01 * terms.noise_std)


def test_one_record_more_never_moves_a_released_sum_by_more_than_the_clipping_norm() -> None:
    """Thousands of equal records and one large one: added up in single precision, it would move the sum by more."""
    small, large = 2**-13 * 1.01, 1.0
    terms = SumTerms(4, 1, 1, noise_std=2.0, clip=1.0, size=1)
    rounded, exact = [], []
    for more in (0, 1):
        records = [large] * (2047 + more) + [small] * 3000
        single = np.float32(0)
        for record in records:
            single = np.float32(single + np.float32(record))
        rounded.append(torch.tensor([float(single)], dtype=torch.float32))
        exact.append(torch.tensor(records, dtype=torch.float64).sum().reshape(1))

    def released(total: torch.Tensor) -> int:
        return int(MaskedRelease("proxy", terms, 6000, Seeded(1), simulated=True).release(total)[0])

    assert float(rounded[1]) - float(rounded[0]) > 1.1 * terms.clip
    with pytest.raises(PrivacyError, match="double precision"):
        released(rounded[0])
    assert abs(released(exact[1]) - released(exact[0])) * terms.grid <= terms.clip + terms.grid
