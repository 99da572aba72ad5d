"""Differences between fixed models on the same patients: intervals over patients, corrected together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from confrere.site.predictions import RecordPredictions
from confrere.statistics.fixed_model_gain import FixedEffect, JudgedPatients, judge_fixed, model_effects


def predictions(logits: np.ndarray, labels: np.ndarray) -> RecordPredictions:
    marks = np.array([f"patient {k}" for k in range(len(labels))])
    return RecordPredictions(logits[:, None].astype(np.float32), labels, marks)


def test_the_interval_is_that_of_a_paired_t_test_with_the_degrees_of_the_rarer_class() -> None:
    half_of_them = np.random.default_rng(0).normal(0, 1, 40)
    differences = 0.2 + np.concatenate([half_of_them, -half_of_them])
    effect = JudgedPatients(np.arange(80), 20).effect(differences)
    gain = judge_fixed({"a": effect})["a"]
    half = t.ppf(0.975, 19) * differences.std(ddof=1) / math.sqrt(80)
    assert (gain.low, gain.high) == pytest.approx((differences.mean() - half, differences.mean() + half))


def test_the_interval_is_longer_on_the_side_of_the_tail_and_nowhere_shorter() -> None:
    differences = 0.4 - np.random.default_rng(1).exponential(0.3, 60)
    effect = JudgedPatients(np.arange(60), 20).effect(differences)
    low, high = effect.interval()
    half = t.ppf(0.975, 19) * differences.std(ddof=1) / math.sqrt(60)
    assert effect.skewness < 0
    assert effect.mean - low > 1.02 * half
    assert high - effect.mean == pytest.approx(half)


@pytest.mark.parametrize("skewness", [-0.4, 0.0, 0.3])
@pytest.mark.parametrize("mean", [-0.3, 0.25])
def test_the_interval_reaches_zero_at_the_level_of_the_p_value(mean: float, skewness: float) -> None:
    effect = FixedEffect(mean, 0.01, 14, skewness=skewness)
    assert min(abs(end) for end in effect.interval(effect.p)) == pytest.approx(0, abs=1e-6)


def test_words_are_corrected_together_and_agree_with_their_intervals() -> None:
    effects = {k: FixedEffect(k / 2, 1.0, 50) for k in range(9)}
    found = judge_fixed(effects)
    assert judge_fixed({4: FixedEffect(2.3, 1.0, 50)})[4].word == "better"
    assert found[4].word == "no clear difference"
    assert found[8].word == "better"
    for gain in found.values():
        assert gain.low is not None
        assert (gain.low > 0) == (gain.word == "better")


def test_fewer_than_ten_patients_of_the_rarer_class_are_too_few_and_take_no_part_in_the_correction() -> None:
    rare = JudgedPatients.of(np.array([0] * 50 + [1] * 9))
    assert rare.rarer == 9
    found = judge_fixed(
        {
            "few": rare.effect(np.full(59, 1.0)),
            "enough": FixedEffect(2.1, 1.0, 50),
            "no": FixedEffect(0, 1, 2),
        }
    )
    assert found["few"].word == "too few to judge"
    assert found["few"].low is None
    alone = judge_fixed({"enough": FixedEffect(2.1, 1.0, 50), "no": FixedEffect(0, 1, 2)})
    assert found["enough"] == alone["enough"]


def test_the_rarer_class_is_counted_in_patients_and_numbers_count_all() -> None:
    labels, who = np.array([0, 0, 0, 1, 1, 2]), np.array([7, 7, 8, 9, 9, 8])
    assert JudgedPatients.of(labels, who).rarer == 2
    assert JudgedPatients.of(labels.astype(float), who).rarer == 3


def test_nothing_differs_between_a_model_and_itself() -> None:
    rng = np.random.default_rng(2)
    same = predictions(rng.normal(size=60), rng.integers(0, 2, 60))
    gains = judge_fixed(model_effects(same, same))
    assert {g.word for g in gains.values()} == {"no clear difference"}


def test_the_effect_of_a_mean_over_patients_is_its_paired_difference() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 100)
    one, two = rng.normal(size=100), rng.normal(size=100) + labels
    effect = model_effects(predictions(one, labels), predictions(two, labels))["log_loss"]

    def losses(logits: np.ndarray) -> np.ndarray:
        return np.asarray(np.log1p(np.exp(-(2 * labels - 1) * logits)))

    paired = JudgedPatients.of(labels).effect(losses(one) - losses(two))
    assert effect.mean == pytest.approx(paired.mean, rel=1e-4)
    assert effect.variance == pytest.approx(paired.variance, rel=0.01)
    assert effect.degrees == paired.degrees


@pytest.mark.parametrize("peers", [2, 8])
def test_where_nothing_differs_a_column_has_a_wrong_word_in_about_one_of_twenty(peers: int) -> None:
    rng, patients, wrong = np.random.default_rng(4), JudgedPatients(np.arange(60), 20), 0
    for _ in range(600):
        gains = {k: patients.effect(rng.normal(size=60)) for k in range(peers)}
        wrong += any(g.clear for g in judge_fixed(gains).values())
    assert wrong / 600 < 0.08


def test_rounding_makes_no_model_better() -> None:
    gain = judge_fixed({"a": FixedEffect(1e-8, 1e-18, 39)})["a"]
    assert (gain.mean, gain.low, gain.word) == (0.0, 0.0, "no clear difference")
