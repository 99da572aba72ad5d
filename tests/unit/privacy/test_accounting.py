"""What a mechanism costs: published values, closed forms, and never an understatement."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from dp_accounting.pld import privacy_loss_distribution as reference

from confrere.core.errors import ConfrereError, PrivacyError, StudyError
from confrere.privacy.accounting import (
    ABSOLUTE_ERROR,
    RELATIVE_ERROR,
    Charge,
    Guarantee,
    calibrate,
    capacity,
    check_delta,
    epsilon,
    exact_rate,
    gaussian,
    laplace,
    rounded_up,
)

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
    assert round(epsilon(histology(HISTOLOGY[site]), 1e-5, "rdp"), 2) == published


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
    assert epsilon([gaussian(2, rate, 20, unit="patient"), gaussian(2, rate, 30)], 1e-6) == together
    assert gaussian(2.0, 1 / 40).event == gaussian(2, rate).event


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
    with pytest.raises(PrivacyError, match="PLD"):
        epsilon([gaussian(4, Fraction(1, 10), 20, group=3)], 1e-6, "rdp")


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


def test_a_target_that_the_renyi_accountant_cannot_show_is_refused() -> None:
    with pytest.raises(PrivacyError, match="however large the noise"):
        calibrate(0.1, 1e-5, sample_rate=Fraction(1, 20), steps=100, accountant="rdp")


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


def test_an_epsilon_that_protects_nobody_is_refused_instead_of_searched_for() -> None:
    with pytest.raises(PrivacyError, match="protects nobody"):
        calibrate(1e12, 1e-5, sample_rate=1, steps=1)
