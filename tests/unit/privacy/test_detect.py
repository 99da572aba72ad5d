"""An audit detects what is broken, and never more than the truth beyond its stated confidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from confrere.core.errors import StudyError
from confrere.privacy.accounting import epsilon, gaussian
from confrere.privacy.detect import (
    Detected,
    canaries_in_one_run,
    likelihood_ratio,
    logit_confidence,
    membership,
    one_run,
    one_run_p_value,
    rate_bounds,
    worst_case,
)

DELTA = 1e-5
Scores = NDArray[np.float64]


def one_gaussian_run(std: float, canaries: int, rng: np.random.Generator) -> tuple[Scores, NDArray[np.bool_]]:
    """Orthogonal canaries in a Gaussian mechanism of sensitivity 1."""
    included = rng.random(canaries) < 0.5
    return included + rng.normal(0, std, canaries), included


def at_most(rate: float, trials: int) -> float:
    """So many errors are plausible if each trial errs with at most this rate."""
    return float(stats.binom.isf(1e-4, trials, rate))


def test_one_run_never_claims_more_than_the_truth_beyond_its_confidence() -> None:
    rng, truth, trials = np.random.default_rng(1), 1.0, 400
    chance = math.exp(truth) / (1 + math.exp(truth))  # randomised response: as leaky as ε allows
    claims = [
        one_run(canaries=500, guesses=500, right=int(rng.binomial(500, chance)), delta=0.0)
        for _ in range(trials)
    ]
    assert sum(claim > truth for claim in claims) <= at_most(0.05, trials)
    assert np.median(claims) > 0.75 * truth  # and it is not idle


@pytest.mark.parametrize("std", [1.0, 4.0])
def test_canaries_in_a_sound_gaussian_mechanism_show_no_excess(std: float) -> None:
    rng, truth, trials = np.random.default_rng(2), epsilon([gaussian(std)], DELTA), 60
    found = [canaries_in_one_run(*one_gaussian_run(std, 400, rng), delta=DELTA) for _ in range(trials)]
    assert sum(f.breaks(truth) for f in found) <= at_most(0.05, trials)


def test_canaries_find_a_mechanism_with_too_little_noise() -> None:
    rng, claimed = np.random.default_rng(3), epsilon([gaussian(4.0)], DELTA)
    found = [canaries_in_one_run(*one_gaussian_run(0.7, 1000, rng), delta=DELTA) for _ in range(10)]
    assert all(f.breaks(claimed) for f in found)


def test_guessing_at_random_detects_nothing() -> None:
    assert one_run(canaries=1000, guesses=1000, right=500, delta=DELTA) == 0
    assert one_run(canaries=10, guesses=0, right=0, delta=DELTA) == 0


def test_more_right_guesses_detect_more_and_a_larger_delta_less() -> None:
    found = [one_run(canaries=1000, guesses=100, right=v, delta=DELTA) for v in (60, 75, 90, 100)]
    assert found == sorted(found)
    assert found[-1] > 3
    assert one_run(canaries=1000, guesses=100, right=90, delta=1e-3) < found[2]


def test_the_p_value_follows_the_formula() -> None:
    epsilon_, r, v, m, delta = 0.7, 20, 15, 30, 1e-3
    q = math.exp(epsilon_) / (1 + math.exp(epsilon_))
    tail = stats.binom.sf(v - 1, r, q)
    slack = max(
        (stats.binom.cdf(v - 1, r, q) - (stats.binom.cdf(v - i - 1, r, q) if v - i > 0 else 0)) / i
        for i in range(1, v + 1)
    )
    expected = tail + 2 * m * delta * slack
    found = one_run_p_value(epsilon_, canaries=m, guesses=r, right=v, delta=delta)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_many_runs_show_no_excess_in_a_sound_mechanism_and_find_a_broken_one(sign: int) -> None:
    rng, trials = np.random.default_rng(4), 60
    truth = epsilon([gaussian(2.0)], DELTA)
    found = [
        worst_case(sign * rng.normal(1, 2.0, 600), sign * rng.normal(0, 2.0, 600), delta=DELTA)
        for _ in range(trials)
    ]
    assert sum(f.breaks(truth) for f in found) <= at_most(0.05, trials)
    broken = worst_case(sign * rng.normal(1, 0.2, 600), sign * rng.normal(0, 0.2, 600), delta=DELTA)
    assert broken.breaks(truth)
    assert broken.epsilon > 3


def test_many_runs_that_are_all_alike_detect_nothing() -> None:
    rng, trials = np.random.default_rng(5), 100
    found = [worst_case(rng.normal(size=100), rng.normal(size=100), delta=0.0) for _ in range(trials)]
    assert sum(f.epsilon > 0 for f in found) <= at_most(0.05, trials)
    assert worst_case(np.zeros(50), np.zeros(50), delta=0.0).epsilon == 0


def test_choosing_and_judging_on_the_same_runs_would_flatter() -> None:
    """The reason for the two halves: judged where they were chosen, thresholds find what is not there."""
    rng, trials = np.random.default_rng(6), 100
    honest = flattered = 0
    for _ in range(trials):
        inside, outside = rng.normal(size=(2, 200))
        honest += worst_case(inside, outside, delta=0.0, confidence=0.5).epsilon > 0
        same = np.repeat(inside, 2), np.repeat(outside, 2)  # both halves are the same runs
        flattered += worst_case(*same, delta=0.0, confidence=0.5).epsilon > 0
    assert honest <= at_most(0.5, trials) < flattered


def test_clopper_and_pearsons_bounds_are_theirs() -> None:
    low, high = rate_bounds([0, 5, 10], 10, 0.975)
    exact = stats.binomtest(5, 10).proportion_ci(0.95, "exact")
    assert (low[0], high[2]) == (0, 1)
    assert (low[1], high[1]) == pytest.approx((exact.low, exact.high))


def test_a_verdict_reads_in_plain_words() -> None:
    broken = Detected(2.249, DELTA, 0.95, "many runs")
    assert broken.against(0.6) == (
        "at least ε = 2.24 was detected (95 % confidence, many runs); claimed 0.6: the guarantee is broken"
    )
    assert "proves nothing" in broken.against(3.0)


def test_the_likelihood_ratio_finds_members_and_chance_does_not() -> None:
    rng, records = np.random.default_rng(7), 400
    hardness = rng.normal(0, 3, records)  # records differ far more from one another than membership matters
    members = rng.random(records) < 0.5
    inside = hardness + 1.5 + rng.normal(0, 0.5, (16, records))
    outside = hardness + rng.normal(0, 0.5, (16, records))
    observed = hardness + 1.5 * members + rng.normal(0, 0.5, records)
    attack = membership(likelihood_ratio(observed, inside, outside), members)
    assert attack.area > 0.95
    assert attack.caught > 0.5 > 0.05 > attack.false_alarms
    assert attack.caught_at_least < attack.caught
    assert membership(observed, members).caught < 0.2  # the raw score does not see it
    nothing = membership(rng.normal(size=records), members)
    assert 0.4 < nothing.area < 0.6
    assert nothing.advantage < 0.2
    assert "0.50 is chance" in str(nothing)


def test_confidences_at_the_ends_stay_finite() -> None:
    assert np.isfinite(logit_confidence([0.0, 0.5, 1.0])).all()
    assert logit_confidence([0.5])[0] == pytest.approx(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: one_run(canaries=10, guesses=11, right=1, delta=0),
        lambda: one_run(canaries=10, guesses=5, right=6, delta=0),
        lambda: one_run(canaries=10, guesses=5, right=5, delta=2),
        lambda: one_run(canaries=10, guesses=5, right=5, delta=0, confidence=1),
        lambda: canaries_in_one_run([1.0], [True], delta=0),
        lambda: canaries_in_one_run([1.0, math.nan], [True, False], delta=0),
        lambda: worst_case([1.0], [1.0], delta=0),
        lambda: membership([1.0, 2.0], [True, True]),
        lambda: likelihood_ratio([1.0, 2.0], [[1.0]], [[1.0]]),
        lambda: likelihood_ratio([1.0], [[1.0]], [[1.0]]),
    ],
)
def test_attacks_that_make_no_sense_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StudyError):
        call()
