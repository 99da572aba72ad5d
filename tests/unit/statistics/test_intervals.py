"""The variance of a gain over seeds that share patients, and the correction for several words."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import stdtr

from confrere.statistics.intervals import MeanDifference, clear, holm_levels, ratio_interval, variance_parts

Floats = NDArray[np.float64]


def test_on_a_common_test_set_it_is_the_crossed_effects_estimate() -> None:
    rng = np.random.default_rng(0)
    seeds, patients = 5, 40
    table = (
        rng.normal(size=(seeds, 1)) + 3 * rng.normal(size=(1, patients)) + rng.normal(size=(seeds, patients))
    )
    differences = table.mean(axis=1)
    centred = (table - differences[:, None]) / np.sqrt(patients * (patients - 1))
    between, shared = variance_parts(differences, centred)
    ms_seed = patients * differences.var(ddof=1)
    ms_patient = seeds * table.mean(axis=0).var(ddof=1)
    rest = table - differences[:, None] - table.mean(axis=0) + table.mean()
    ms_rest = np.square(rest).sum() / ((seeds - 1) * (patients - 1))
    expected = max(ms_seed + ms_patient - ms_rest, ms_seed, ms_patient) / (seeds * patients)
    assert between + shared == pytest.approx(expected, rel=1e-6)


def test_without_shared_patients_it_is_students_t() -> None:
    assert MeanDifference(2.0, 1.0, 0.0, 5, 9).p() == pytest.approx(2 * stdtr(4, -2.0), rel=1e-6)
    assert MeanDifference(2.0, 0.0, 1.0, 5, 9).p() == pytest.approx(2 * stdtr(9, -2.0), rel=1e-6)
    assert MeanDifference(0.0, 0.0, 0.0, 5, 9).p() == 1.0


@pytest.mark.parametrize("skewness", [-0.9, -0.4, 0.0, 0.3])
@pytest.mark.parametrize("mean", [-2.4, 1.7])
def test_the_interval_reaches_zero_at_the_level_of_the_p_value(mean: float, skewness: float) -> None:
    found = MeanDifference(mean, 0.3, 0.2, 5, 12, skewness, 40)
    assert min(abs(end) for end in found.interval(found.p())) == pytest.approx(0, abs=1e-6)


def test_a_long_tail_of_the_patients_extends_the_interval_on_its_side_only() -> None:
    plain, skewed = (MeanDifference(1.0, 0.05, 0.2, 5, 12, k, 40).interval(0.01) for k in (0.0, -0.4))
    assert skewed[0] < plain[0] - 0.2
    assert skewed[1] == plain[1]


def test_skewness_counts_less_where_the_luck_of_the_run_dominates() -> None:
    rng = np.random.default_rng(5)
    patients = 1 - rng.exponential(size=40) ** 2
    contributions = (patients - patients.mean()) / np.sqrt(40 * 39) * np.ones((5, 1))
    calm, stormy = (
        MeanDifference.of(patients.mean() + run * rng.standard_normal(5), contributions, 12)
        for run in (0.0, 5.0)
    )
    assert calm.skewness < -0.2
    assert 0.1 * calm.skewness < stormy.skewness < 0
    assert calm.patients == stormy.patients == 40


def test_what_cannot_be_judged_does_not_count_in_the_correction() -> None:
    p = np.array([[0.03, np.nan, 0.02], [np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(clear(p), [[True, False, True], [False, False, False]])


def test_holm_corrects_until_the_first_that_is_not_clear() -> None:
    levels = holm_levels(np.array([0.04, 0.001, 0.02, 0.9]))
    np.testing.assert_allclose(levels, [0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3])
    np.testing.assert_allclose(holm_levels(np.array([0.001, 0.002])), [0.025, 0.05])
    np.testing.assert_allclose(holm_levels(np.array([[0.9], [0.01]])), [[0.05], [0.05]])


def two_gains(patient: float, seed: int = 0) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Gains of .05 and .10 over five seeds and 40 patients, with this much chance of the patients in the first."""
    rng = np.random.default_rng(seed)
    tables = [
        mean + 0.002 * rng.standard_normal((5, 1)) + chance * rng.standard_normal(40)
        for mean, chance in ((0.05, patient), (0.10, 0.01))
    ]
    one, two = (table.mean(axis=1) for table in tables)
    own, other = ((t - t.mean(axis=1)[:, None]) / np.sqrt(40 * 39) for t in tables)
    return (one, two), (own, other)


def test_at_the_ends_of_a_ratio_the_difference_is_just_clear() -> None:
    (one, two), (own, other) = two_gains(0.05)
    found = ratio_interval((one, two), (own, other), 11, 0.05, 0.5)
    assert found is not None
    for ratio in found:
        p = MeanDifference.of(one - ratio * two, own - ratio * other, 12).p()
        assert p == pytest.approx(0.05, rel=1e-2)


def test_the_chance_of_the_patients_widens_the_interval_of_a_ratio_until_it_is_not_stated() -> None:
    narrow, wide = (ratio_interval(*two_gains(patient), 11, 0.05, 0.5) for patient in (0.01, 0.05))
    assert narrow is not None
    assert wide is not None
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])
    assert ratio_interval(*two_gains(0.5), 11, 0.05, 0.5) is None


def test_a_ratio_without_any_variance_is_a_point() -> None:
    same = (np.full(5, 0.05), np.full(5, 0.1)), (np.zeros((5, 4)), np.zeros((5, 4)))
    assert ratio_interval(*same, 11, 0.05, 0.5) == pytest.approx((0.5, 0.5))
