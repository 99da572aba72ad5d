"""Missed patients, false alarms, calibration and net benefit."""

from __future__ import annotations

import numpy as np
import pytest

from confrere.core.metrics import Predictions
from confrere.core.results import InPatients
from confrere.site.predictions import RecordPredictions
from confrere.statistics.clinical_metrics import PairedErrors, in_patients, net_benefit, with_changes
from confrere.statistics.contributions import effects


def predictions(odds: list[float], ill: list[int]) -> Predictions:
    return Predictions(np.array(odds).reshape(-1, 1), np.array(ill))


def test_missed_and_false_alarms_are_counted_of_all_patients() -> None:
    found = in_patients(
        [predictions([3.0, -3.0, 3.0, -3.0, -3.0, -3.0, -3.0, -3.0], [1, 1, 0, 0, 0, 0, 0, 0])], [0.4]
    )
    assert found is not None
    assert (found.threshold, found.ill, found.missed, found.false_alarms) == (0.4, 0.25, 0.125, 0.125)


def test_every_seed_has_its_threshold_and_counts_alike() -> None:
    """The interval of a change is over seeds, so the figures beside it are means over seeds too."""
    few = predictions([0.0, 0.0], [1, 0])
    many = predictions([0.0] * 6, [1, 0, 0, 0, 0, 0])
    found = in_patients([few, many], [0.6, 0.2])
    assert found is not None
    assert (found.threshold, found.missed) == (pytest.approx(0.4), pytest.approx(0.25))
    assert (found.ill, found.false_alarms) == (pytest.approx(1 / 3), pytest.approx(5 / 12))


def test_a_stated_threshold_is_used() -> None:
    run = [predictions([0.1, -0.1, -2.0, -2.0], [1, 1, 0, 0])]
    strict, easy = in_patients(run, [0.5]), in_patients(run, [0.3])
    assert strict is not None
    assert easy is not None
    assert (strict.missed, easy.missed) == (0.25, 0.0)


def test_the_slope_finds_probabilities_that_are_too_extreme() -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(size=20_000)
    ill = rng.random(20_000) < 1 / (1 + np.exp(-odds))
    honest = in_patients([Predictions(odds[:, None], ill.astype(int))], [0.5])
    extreme = in_patients([Predictions(2 * odds[:, None] + 1, ill.astype(int))], [0.5])
    assert honest is not None
    assert extreme is not None
    assert (honest.slope, honest.intercept) == (pytest.approx(1, abs=0.05), pytest.approx(0, abs=0.05))
    assert (extreme.slope, extreme.intercept) == (pytest.approx(0.5, abs=0.05), pytest.approx(-0.5, abs=0.05))
    for stated, observed in honest.calibration:
        assert observed == pytest.approx(stated, abs=0.03)


def test_separated_classes_have_no_slope() -> None:
    found = in_patients([predictions([1.0, 2.0, -1.0, -2.0], [1, 1, 0, 0])], [0.5])
    assert found is not None
    assert found.slope is None


def test_warning_everyone_at_the_share_of_the_ill_has_no_net_benefit() -> None:
    ill = np.array([True, False, False, False])
    assert net_benefit(np.ones(4), ill, 0.25) == pytest.approx(0.0)
    assert net_benefit(np.array([1.0, 0, 0, 0]), ill, 0.25) == pytest.approx(0.25)


def test_only_two_classes_with_patients_of_both_have_a_meaning_in_patients() -> None:
    assert in_patients([predictions([1.0, 2.0], [1, 1])], [0.5]) is None
    assert in_patients([Predictions(np.zeros((2, 3)), np.array([0, 2]))], [0.5]) is None


def runs(shift: float, seeds: int = 5, patients: int = 120) -> list[RecordPredictions]:
    """Models that find all of the ill and raise false alarms; a shift towards «well» raises fewer."""
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(200)[:patients]
        ill = chosen % 4 == 0
        odds = np.where(ill, 5.0, rng.normal(size=patients) + shift)
        found.append(RecordPredictions(odds[:, None].astype("float32"), ill.astype(int), chosen.astype(str)))
    return found


def changed(before: list[RecordPredictions], after: list[RecordPredictions]) -> tuple[float, float]:
    found = in_patients([r.predictions for r in after], [0.5] * len(after))
    assert found is not None
    found = with_changes(found, [PairedErrors.of(before, after, [0.5] * len(after), 50)], [1.0])
    assert found.missed_change == (0.0, 0.0)
    assert found.false_alarms_change is not None
    return found.false_alarms_change


def test_the_interval_of_a_change_is_that_of_the_same_change_in_accuracy() -> None:
    before, after = runs(0.0), runs(-0.7)
    low, high = changed(before, after)
    judged = effects({"local": [{"A": r} for r in before], "x": [{"A": r} for r in after]}, "local")
    expected = judged["x"].sites["A"]["accuracy"].interval()
    assert expected is not None
    assert (-high, -low) == pytest.approx(expected, rel=1e-3)
    assert high < 0


def test_the_same_models_change_nothing() -> None:
    assert changed(runs(0.0), runs(0.0)) == (0.0, 0.0)


def test_no_more_than_all_of_the_ill_are_missed_or_found_again() -> None:
    found = InPatients(0.5, 0.2, 0.1, 0.1, (), ())
    by_seed = np.array([-0.3, 0.1, -0.4, 0.2, -0.1])  # a wide interval: -0.44 to +0.24
    errors = (by_seed, np.zeros((5, 50)))
    site = PairedErrors(errors, errors, rarer=10)
    found = with_changes(found, [site], [1.0])
    assert found.missed_change == (-0.2, 0.2)
    assert found.false_alarms_change is not None
    assert found.false_alarms_change[0] < -0.2
    assert found.false_alarms_change[1] > 0.2
