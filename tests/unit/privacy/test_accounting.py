"""What a mechanism costs: published values, closed forms, and never an understatement."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution as reference
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from confrere.core.errors import ConfrereError, PrivacyError, StudyError
from confrere.privacy import accounting, loss_distribution
from confrere.privacy.accounting import (
    calibrate,
    capacity,
    check_delta,
    epsilon,
    gaussian_epsilon,
    gaussian_noise,
    per_unit,
)
from confrere.privacy.charges import Accountant, Charge, Guarantee, exact_rate, gaussian, laplace, rounded_up
from confrere.privacy.loss_distribution import ABSOLUTE_ERROR, RELATIVE_ERROR
from confrere.privacy.renyi import PUBLISHED_ORDERS

HISTOLOGY = {"C1": 2338, "C2": 2726, "C3": 2937, "C4": 2841, "joint": 10842}


def histology(records: int) -> list[Charge]:
    steps = math.ceil(records / 32)
    return [gaussian(1.4, Fraction(1, steps), 30 * steps)]


@pytest.mark.parametrize(
    ("site", "published"), [("C1", 2.36), ("C2", 2.17), ("C3", 2.08), ("C4", 2.12), ("joint", 1.00)]
)
def test_the_published_histology_table_comes_out_with_the_papers_accountant(
    site: str, published: float
) -> None:
    assert round(epsilon(histology(HISTOLOGY[site]), 1e-5, "rdp", PUBLISHED_ORDERS), 2) == published


@pytest.mark.parametrize(
    ("site", "measured"), [("C1", 2.361), ("C2", 2.166), ("C3", 2.084), ("C4", 2.124), ("joint", 1.002)]
)
def test_published_orders_stay_available_and_the_best_orders_give_no_more(site: str, measured: float) -> None:
    charges = histology(HISTOLOGY[site])
    published = epsilon(charges, 1e-5, "rdp", PUBLISHED_ORDERS)
    assert round(published, 3) == measured
    best = epsilon(charges, 1e-5, "rdp")
    assert epsilon(charges, 1e-5) < best < published * (1 + 1e-5)


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 1 / 2, 40), (0.8, 9 / 10, 30), (1.0, 1 / 4, 20)])
def test_the_renyi_accountant_is_silent_and_tight_at_high_rates(
    noise: float, rate: float, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    charges = [gaussian(noise, rate, steps)]
    found = epsilon(charges, 1e-5, "rdp")
    assert not caplog.records
    every = tuple(1 + x / 100 for x in range(2, 2000))
    assert found == pytest.approx(epsilon(charges, 1e-5, "rdp", every), rel=1e-4)
    assert epsilon(charges, 1e-5) < found < 1.2 * epsilon(charges, 1e-5)
    # the library's own orders of 2, 3, 4 … converge at every rate
    whole = tuple(float(order) for order in range(2, 64))
    theirs = RdpAccountant(whole)
    theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    assert epsilon(charges, 1e-5, "rdp", whole) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("site", "tight"), [("C1", 2.159), ("C2", 1.980), ("C3", 1.905), ("C4", 1.942), ("joint", 0.913)]
)
def test_the_tight_accountant_gives_less_for_the_same_table(site: str, tight: float) -> None:
    assert round(epsilon(histology(HISTOLOGY[site]), 1e-5), 3) == tight


@pytest.mark.parametrize(
    ("noise", "steps", "count"),
    [(2.0, 20, 200), (10.0, 20, 200), (50.0, 10, 100), (5.0, 2, 1), (5.0, 2, 1000)],
)
def test_the_grid_of_losses_never_understates_and_stays_within_its_stated_error(
    noise: float, steps: int, count: int
) -> None:
    finest = reference.from_gaussian_mechanism(
        noise, sampling_prob=1 / steps, value_discretization_interval=2.0**-15
    )
    exact = finest.self_compose(count).get_epsilon_for_delta(1e-6)
    ours = epsilon([gaussian(noise, Fraction(1, steps), count)], 1e-6)
    tolerance = max(RELATIVE_ERROR * exact, ABSOLUTE_ERROR)
    assert exact - tolerance / 2 <= ours <= exact + tolerance


def test_without_sampling_the_cost_is_the_analytic_gaussian() -> None:
    def delta_of(eps: float, noise: float) -> float:  # Balle and Wang 2018, theorem 8
        def phi(t: float) -> float:
            return 0.5 * math.erfc(-t / math.sqrt(2))

        return phi(1 / (2 * noise) - eps * noise) - math.exp(eps) * phi(-1 / (2 * noise) - eps * noise)

    eps = epsilon([gaussian(3.0, 1, 4)], 1e-6)
    assert delta_of(eps, 3.0 / math.sqrt(4)) == pytest.approx(1e-6, rel=1e-6)


def test_equal_events_are_counted_together_whoever_charged_them() -> None:
    rate = Fraction(1, 40)
    together = epsilon([gaussian(2, rate, 50)], 1e-6)
    assert epsilon([gaussian(2, rate, 20), gaussian(2, rate, 30)], 1e-6) == together
    assert epsilon([gaussian(2, rate, 20, proven=False), gaussian(2, rate, 30)], 1e-6) == together
    assert gaussian(2.0, 1 / 40).event == gaussian(2, rate).event


def test_charges_of_different_units_are_never_added_up_as_if_they_were_one() -> None:
    with pytest.raises(PrivacyError, match="one unit"):
        epsilon([gaussian(2, unit="patient"), gaussian(2)], 1e-6)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_read_per_record_a_full_patient_step_has_twice_the_sensitivity(accountant: Accountant) -> None:
    steps = gaussian(20, 1, 40, unit="patient")
    per_record = per_unit([steps], "record")
    assert per_record is not None
    assert epsilon(per_record, 1e-5, accountant) == pytest.approx(
        epsilon([gaussian(10, 1, 40)], 1e-5, accountant)
    )
    assert per_unit([steps], "patient") == [steps]


def test_a_sampled_patient_step_read_per_record_lies_between_one_and_two_full_sensitivities() -> None:
    """Exactly as much as P = (1−q)·N(0) + q·N(1) against Q = (1−q)·N(0) + q·N(−1), by direct integration."""
    noise, rate, level = 1.3, 0.2, 0.7
    found = per_unit([gaussian(noise, rate, 1, unit="patient")], "record")
    assert found is not None
    x = np.linspace(-20, 20, 400_001)

    def density(at: float) -> np.ndarray:
        return rate * norm.pdf(x, at, noise) + (1 - rate) * norm.pdf(x, 0, noise)

    delta = float(np.maximum(density(1) - math.exp(level) * density(-1), 0).sum() * (x[1] - x[0]))
    assert epsilon(found, delta) == pytest.approx(level, abs=1e-4)
    assert epsilon(found, delta) >= level - 1e-6
    many = [gaussian(noise, rate, 50, unit="patient")]
    read = per_unit(many, "record")
    assert read is not None
    exact = epsilon(read, 1e-6)
    assert epsilon([gaussian(noise, rate, 50)], 1e-6) < exact < epsilon([gaussian(noise / 2, rate, 50)], 1e-6)
    assert exact < epsilon(read, 1e-6, "rdp") < 1.2 * exact


@given(
    angle=st.floats(0, math.pi), first=st.floats(0, 1), second=st.floats(0, 1),
    noise=st.floats(0.5, 3), rate=st.floats(0.01, 1), level=st.floats(0, 3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_change_of_a_patients_contribution_is_worse_than_its_reversal(
    angle: float, first: float, second: float, noise: float, rate: float, level: float
) -> None:
    axis = np.linspace(-1 - 8 * noise, 1 + 8 * noise, 301)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(a: float, b: float) -> np.ndarray:
        return norm.pdf(x, a, noise) * norm.pdf(y, b, noise)

    def divergence(one: tuple[float, float], other: tuple[float, float]) -> float:
        p, q = (rate * density(*at) + (1 - rate) * density(0, 0) for at in (one, other))
        return float(np.maximum(p - math.exp(level) * q, 0).sum() * cell)

    any_change = divergence((first, 0), (second * math.cos(angle), second * math.sin(angle)))
    assert any_change <= divergence((1, 0), (-1, 0)) + 1e-9


def test_a_record_step_has_no_bound_per_patient_unless_records_per_patient_are_bounded() -> None:
    steps = gaussian(8, Fraction(1, 10), 30)
    assert per_unit([steps], "patient") is None
    bounded = per_unit([steps], "patient", most_records=4)
    assert bounded is not None
    assert epsilon(bounded, 1e-6) == epsilon([gaussian(8, Fraction(1, 10), 30, group=4)], 1e-6)
    assert (
        per_unit(bounded, "record") is None
    )  # an event with a group does not say whether records were drawn


def test_the_cost_of_a_group_of_patients_is_not_read_per_record() -> None:
    """A patient's other records can take the place of one that is removed; three patients do not cost less than one."""
    group = gaussian(5, unit="patient").grouped(3)
    assert group is not None
    assert group.per("record") is None
    assert per_unit([gaussian(5), group], "record") is None


def test_laplace_noise_protects_a_record_half_as_well_as_its_patient() -> None:
    read = per_unit([laplace(2.0, unit="patient")], "record")
    assert read == [laplace(1.0)]
    assert per_unit([laplace(3.0)], "patient", most_records=3) == [laplace(1.0, unit="patient")]


def test_studies_compose() -> None:
    one, other = gaussian(4, 1, 3), gaussian(2, Fraction(1, 20), 100)
    both = epsilon([one, other], 1e-6)
    alone = epsilon([one], 1e-6), epsilon([other], 1e-6)
    assert max(alone) < both < sum(alone)


def test_laplace_noise_costs_one_over_its_scale() -> None:
    assert epsilon([laplace(2.0, 1)], 1e-9) == pytest.approx(0.5, abs=2e-3)
    assert epsilon([laplace(2.0, 1)], 1e-9) >= 0.5 - 1e-6


def test_nothing_spent_is_nothing_and_no_noise_is_without_bound() -> None:
    assert epsilon([], 1e-6) == 0
    assert epsilon([gaussian(1, 1, 0)], 1e-6) == 0
    assert epsilon([gaussian(0, Fraction(1, 9), 1)], 1e-6) == math.inf


def test_a_group_of_records_costs_more_than_one_and_less_than_naive_group_privacy() -> None:
    one = epsilon([gaussian(4, Fraction(1, 10), 20)], 1e-6)
    three = epsilon([gaussian(4, Fraction(1, 10), 20, group=3)], 1e-6)
    at_full_batch = epsilon([gaussian(4, 1, 1, group=3)], 1e-6)
    assert one < three
    assert at_full_batch == pytest.approx(epsilon([gaussian(4 / 3, 1, 1)], 1e-6))
    looser = epsilon([gaussian(4, Fraction(1, 10), 20, group=3)], 1e-6, "rdp")
    assert three < looser < 1.2 * three


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    ("target", "rate", "steps"), [(3, Fraction(1, 74), 370), (1, Fraction(1, 4), 40), (2, 1, 10)]
)
def test_calibrated_noise_keeps_within_the_target_and_wastes_next_to_nothing(
    target: float, rate: Fraction, steps: int, accountant: str
) -> None:
    noise = calibrate(target, 1e-5, sample_rate=rate, steps=steps, accountant=accountant)  # type: ignore[arg-type]
    spent = epsilon([gaussian(noise, rate, steps)], 1e-5, accountant)  # type: ignore[arg-type]
    assert 0.999 * target <= spent <= target


def test_calibration_counts_what_was_spent_before() -> None:
    prior = [gaussian(10, 1, 4)]
    noise = calibrate(3, 1e-6, sample_rate=1, steps=10, prior=prior)
    assert epsilon([*prior, gaussian(noise, 1, 10)], 1e-6) <= 3
    assert noise > calibrate(3, 1e-6, sample_rate=1, steps=10)
    with pytest.raises(PrivacyError, match="spent already"):
        calibrate(0.5, 1e-6, sample_rate=1, steps=10, prior=prior)


def test_the_renyi_accountant_shows_small_targets_too() -> None:
    noise = calibrate(0.1, 1e-5, sample_rate=Fraction(1, 20), steps=100, accountant="rdp")
    assert 0.0999 < epsilon([gaussian(noise, Fraction(1, 20), 100)], 1e-5, "rdp") <= 0.1


@pytest.mark.parametrize("event", [gaussian(20).event, gaussian(1.4, Fraction(1, 74)).event])
def test_capacity_is_the_last_count_that_fits(event: str) -> None:
    most = capacity(event, (), 1.0, 1e-5)
    assert epsilon([Charge(event, most)], 1e-5) <= 1.0 < epsilon([Charge(event, most + 1)], 1e-5)


def test_capacity_is_zero_when_not_even_one_step_fits() -> None:
    assert capacity(gaussian(1.0).event, (), 0.5, 1e-6) == 0
    assert capacity(gaussian(20).event, (gaussian(1.0),), 3.0, 1e-6) == 0


def test_a_guarantee_reads_in_plain_words_and_never_smaller_than_it_is() -> None:
    assert str(Guarantee(1.7961, 1e-6)) == "ε = 1.8 (δ = 1e-06, per record, PLD)"
    unproven = Guarantee(2.0, 1e-6, "patient", "rdp", proven=False)
    assert str(unproven) == "ε = 2 (δ = 1e-06, per patient, RDP, as published, not proven)"
    assert [rounded_up(x) for x in (0, 2.0001, 0.012301, 243.01, math.inf)] == [
        "0",
        "2.01",
        "0.0124",
        "244",
        "∞",
    ]


def test_a_charge_is_exact_and_canonical() -> None:
    assert exact_rate(1 / 74) == Fraction(1, 74)
    assert exact_rate(0.3) == Fraction(3, 10)
    for event, count in [
        ("{}x", 1),
        ('{"b":"1","a":"2"}', 1),
        (gaussian(1).event, -1),
        (gaussian(1).event, 1.5),
    ]:
        with pytest.raises(PrivacyError):
            Charge(event, count)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="kind"):
        epsilon([Charge('{"kind":"magic"}', 1)], 1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epsilon([], 0.0), "δ"),
        (lambda: epsilon([], 1.0), "δ"),
        (lambda: epsilon([], 1e-20), "finer"),
        (lambda: check_delta(1e-3, records=2000), "1/n"),
        (lambda: epsilon([], 0.5), "more than 0.01"),
        (lambda: calibrate(0, 1e-6, sample_rate=1, steps=1), "ε"),
        (lambda: calibrate(math.nan, 1e-6, sample_rate=1, steps=1), "ε"),
        (lambda: calibrate(1, 1e-6, sample_rate=2, steps=1), "rate"),
        (lambda: calibrate(1, 1e-6, sample_rate=1, steps=0), "steps"),
        (lambda: gaussian(-1), "noise"),
        (lambda: gaussian(math.inf), "noise"),
        (lambda: laplace(0), "scale"),
        (lambda: epsilon([], 1e-6, "magic"), "pld"),  # type: ignore[arg-type]
    ],
)
def test_impossible_numbers_are_refused_with_a_reason(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfrereError, match=words) as refusal:
        call()
    assert isinstance(refusal.value, PrivacyError | StudyError)


def test_delta_is_at_most_one_in_n_and_never_above_a_hundredth() -> None:
    check_delta(1e-3, records=1000)
    check_delta(0.01, records=2)
    with pytest.raises(PrivacyError, match="1/n"):
        check_delta(1.001e-3, records=1000)
    with pytest.raises(PrivacyError, match=r"more than 0\.01"):
        check_delta(0.5, records=2)  # one release with noise 10 would have «ε = 0»


def test_an_epsilon_that_protects_nobody_is_refused_instead_of_searched_for() -> None:
    with pytest.raises(PrivacyError, match="protects nobody"):
        calibrate(1e12, 1e-5, sample_rate=1, steps=1)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 7.0, 500.0])
def test_the_closed_form_of_the_gaussian_mechanism_is_that_of_the_library(noise: float, delta: float) -> None:
    from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian

    epsilon = gaussian_epsilon(noise, delta)
    assert epsilon == pytest.approx(float(get_epsilon_gaussian(noise, delta)), rel=1e-9, abs=1e-11)
    if epsilon > 0:
        assert gaussian_noise(epsilon, delta) == pytest.approx(noise, rel=1e-6)
        assert gaussian_noise(epsilon, delta) == pytest.approx(
            float(get_sigma_gaussian(epsilon, delta)), rel=1e-9
        )


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 7.0])
def test_the_epsilon_of_a_gaussian_release_is_never_rounded_down(noise: float, delta: float) -> None:
    epsilon = gaussian_epsilon(noise, delta)
    assert accounting._log_delta(noise, epsilon) <= math.log(delta)
    assert accounting._log_delta(gaussian_noise(2.0, delta), 2.0) <= math.log(delta)


def test_at_a_tiny_delta_and_very_many_steps_the_smaller_bound_is_stated() -> None:
    charges = [gaussian(1.0, Fraction(1, 1000), 100_000)]
    composed = ((charges[0].event, charges[0].count),)
    assert (
        loss_distribution.epsilon_of(composed, 1e-12, 1e-4) > 5
    )  # the transform's rounding is as large as δ
    assert epsilon(charges, 1e-12) == epsilon(charges, 1e-12, "rdp") < 3.3
    assert epsilon(charges, 1e-9) < epsilon(charges, 1e-9, "rdp")
