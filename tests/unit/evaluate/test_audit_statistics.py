"""An audit detects what is broken, and never more than the truth beyond its stated confidence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from confrere.core.errors import StudyError
from confrere.evaluate.audit.audit_statistics import (
    Detected,
    Score,
    ThresholdTest,
    Trials,
    best_test,
    design_effect,
    detect,
    likelihood_ratio,
    logit_confidence,
    membership,
    rate_bounds,
)
from confrere.privacy.accounting import epsilon
from confrere.privacy.charges import gaussian

DELTA = 1e-5
Scores = NDArray[np.float64]


def at_most(rate: float, trials: int) -> float:
    """So many errors are plausible if each trial errs with at most this rate."""
    return float(stats.binom.isf(1e-4, trials, rate))


def halves(inside: Scores, outside: Scores, delta: float = DELTA, confidence: float = 0.95) -> float:
    """The bound with the test chosen on the even trials and judged on the odd ones."""
    test, _ = best_test(inside[::2], outside[::2], delta=delta, confidence=confidence)
    return test.bound(inside[1::2], outside[1::2], delta=delta, confidence=confidence)


def gaussian_trials(
    std: float,
    rng: np.random.Generator,
    *,
    rate: float = 1.0,
    roles: int = 1,
    runs: int = 60,
    canaries: int = 200,
) -> Trials:
    """Orthogonal canaries in Gaussian mechanisms of sensitivity 1 that share one Poisson sample."""
    coins = rng.random((runs, canaries)) < 0.5
    drawn = coins & (rng.random((runs, canaries)) < rate)
    seen = drawn[:, None, :] + rng.normal(0, std, (runs, roles, canaries))
    return Trials(seen, coins, calls=[0] * roles, rate=rate, noise=std)


def test_the_bound_exceeds_the_truth_no_more_often_than_it_may() -> None:
    rng, truth, trials = np.random.default_rng(1), 1.0, 400
    chance = math.exp(truth) / (1 + math.exp(truth))  # randomised response: as leaky as ε allows
    found = []
    for _ in range(trials):
        inside, outside = rng.random(1000) < chance, rng.random(1000) < 1 - chance
        found.append(halves(inside.astype(float), outside.astype(float), delta=0.0))
    assert sum(f > truth for f in found) <= at_most(0.05, trials)
    assert np.median(found) > 0.75 * truth  # and it is not idle


@pytest.mark.parametrize(
    ("std", "rate", "roles"), [(1.0, 1.0, 1), (4.0, 1.0, 3), (0.7, 0.1, 1), (1.5, 0.1, 4)]
)
def test_canaries_in_a_sound_mechanism_show_no_excess(std: float, rate: float, roles: int) -> None:
    """K releases of one sample are one Gaussian of std/√K at that rate."""
    rng, trials = np.random.default_rng(2), 20
    truth = epsilon([gaussian(std / math.sqrt(roles), rate)], DELTA)
    found = [
        detect(gaussian_trials(std, rng, rate=rate, roles=roles, runs=200), delta=DELTA)
        for _ in range(trials)
    ]
    assert sum(f.breaks(truth) for f in found) <= at_most(0.05, trials)
    assert np.median([f.epsilon for f in found]) > 0.2 * truth


def test_releases_of_one_sample_that_were_charged_apart_are_found() -> None:
    rng, std, rate, roles = np.random.default_rng(3), 0.8, 1 / 32, 16
    claimed = epsilon([gaussian(std, rate, roles)], DELTA)
    assert detect(gaussian_trials(std, rng, rate=rate, roles=roles, runs=400), delta=DELTA).breaks(claimed)


def test_a_single_exposed_canary_is_found_among_many() -> None:
    rng = np.random.default_rng(4)
    trials = gaussian_trials(4.0, rng, runs=400, canaries=50)
    seen = trials.seen.copy()
    seen[:, 0, 7] += 20 * trials.coins[:, 7]
    found = detect(replace(trials, seen=seen), delta=DELTA)
    assert found.how == "the most exposed canary"
    assert found.breaks(epsilon([gaussian(4.0)], DELTA))


def test_a_group_of_exposed_canaries_is_found() -> None:
    rng = np.random.default_rng(5)
    trials = gaussian_trials(4.0, rng, canaries=500)
    few = np.arange(500) < 50
    seen = trials.seen + 20 * (few & trials.coins)[:, None, :]
    found = detect(replace(trials, seen=seen, kinds={"few": few, "other": ~few}), delta=DELTA)
    assert found.how == "few canaries"
    assert found.breaks(epsilon([gaussian(4.0)], DELTA))


def test_the_score_of_a_sampled_canary_is_the_likelihood_ratio_of_the_mixture() -> None:
    trials = Trials(np.array([[[0.3], [1.1]]]), np.array([[True]]), calls=[0, 0], rate=0.25, steps=2)
    shift = np.array([0.5, 2.0])
    z, normal = trials.seen[0, :, 0], stats.norm
    chances = stats.binom.pmf([0, 1, 2], 2, 0.25)
    joint = sum(p * normal.pdf(z - k * shift).prod() for k, p in enumerate(chances))
    apart = [
        sum(p * normal.pdf(a - k * c) for k, p in enumerate(chances)) for a, c in zip(z, shift, strict=True)
    ]
    score = Score(np.zeros(2), np.ones(2), shift, shared=True)
    assert score(trials)[0, 0] == pytest.approx(math.log(joint / normal.pdf(z).prod()))
    alone = replace(score, shared=False)
    assert alone(trials)[0, 0] == pytest.approx(math.log(np.prod(apart) / normal.pdf(z).prod()))


def test_trials_of_one_run_that_move_together_count_less() -> None:
    rng, runs = np.random.default_rng(6), np.repeat(np.arange(100), 50)
    together, apart = (rng.random(100) < 0.3)[runs], rng.random(5000) < 0.3
    assert design_effect(apart, runs) < 1.6
    assert 40 < design_effect(together, runs) < 60
    inside, outside = together.astype(float), np.zeros(5000)
    plain = ThresholdTest(0.5).bound(inside, outside, delta=0.0)
    assert ThresholdTest(0.5).bound(inside, outside, delta=0.0, runs=(runs, runs)) < plain


@pytest.mark.parametrize("sign", [1, -1])
def test_many_runs_show_no_excess_in_a_sound_mechanism_and_find_a_broken_one(sign: int) -> None:
    rng, trials = np.random.default_rng(4), 60
    truth = epsilon([gaussian(2.0)], DELTA)
    found = [halves(sign * rng.normal(1, 2.0, 600), sign * rng.normal(0, 2.0, 600)) for _ in range(trials)]
    assert sum(f > truth for f in found) <= at_most(0.05, trials)
    assert halves(sign * rng.normal(1, 0.2, 600), sign * rng.normal(0, 0.2, 600)) > max(3, truth)


def test_many_runs_that_are_all_alike_detect_nothing() -> None:
    rng, trials = np.random.default_rng(5), 100
    found = [halves(rng.normal(size=100), rng.normal(size=100), delta=0.0) for _ in range(trials)]
    assert sum(f > 0 for f in found) <= at_most(0.05, trials)
    assert halves(np.zeros(50), np.zeros(50), delta=0.0) == 0


def test_choosing_and_judging_on_the_same_runs_would_flatter() -> None:
    """The reason for the two halves: judged where they were chosen, thresholds find what is not there."""
    rng, trials = np.random.default_rng(6), 100
    honest = flattered = 0
    for _ in range(trials):
        inside, outside = rng.normal(size=(2, 200))
        honest += halves(inside, outside, delta=0.0, confidence=0.5) > 0
        same = np.repeat(inside, 2), np.repeat(outside, 2)  # both halves are the same runs
        flattered += halves(*same, delta=0.0, confidence=0.5) > 0
    assert honest <= at_most(0.5, trials) < flattered


def test_clopper_and_pearsons_bounds_are_theirs() -> None:
    low, high = rate_bounds([0, 5, 10], 10, 0.975)
    exact = stats.binomtest(5, 10).proportion_ci(0.95, "exact")
    assert (low[0], high[2]) == (0, 1)
    assert (low[1], high[1]) == pytest.approx((exact.low, exact.high))


def test_a_verdict_reads_in_plain_words() -> None:
    broken = Detected(2.249, DELTA, 0.95)
    assert broken.against(0.6) == (
        "at least ε = 2.24 was detected (95 % confidence); claimed 0.6: the guarantee is broken"
    )
    assert "a low value proves nothing" in broken.against(3.0)


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
        lambda: best_test([1.0], [1.0], delta=2),
        lambda: best_test([1.0], [1.0], delta=0, confidence=1),
        lambda: best_test([], [1.0], delta=0),
        lambda: best_test([1.0, math.nan], [1.0], delta=0),
        lambda: detect(Trials(np.zeros((3, 1, 5)), np.ones((3, 5), dtype=bool), [0]), delta=0),
        lambda: membership([1.0, 2.0], [True, True]),
        lambda: likelihood_ratio([1.0, 2.0], [[1.0]], [[1.0]]),
        lambda: likelihood_ratio([1.0], [[1.0]], [[1.0]]),
    ],
)
def test_attacks_that_make_no_sense_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StudyError):
        call()
