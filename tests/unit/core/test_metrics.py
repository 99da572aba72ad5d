"""The table of metrics: a weight is a number of copies, and a new metric is used wherever metrics are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from confrere.core import metrics
from confrere.core.errors import StudyError
from confrere.core.metrics import (
    METRICS,
    Metric,
    Predictions,
    draws,
    in_order,
    measure,
    metrics_of,
    named,
    proper,
)

FORMS = {
    "two classes": lambda rng, n: (rng.normal(size=(n, 1)), rng.integers(0, 2, n)),
    "four classes": lambda rng, n: (rng.normal(size=(n, 4)), rng.integers(0, 4, n)),
    "three labels": lambda rng, n: (rng.normal(size=(n, 3)), (rng.random((n, 3)) < 0.4).astype(np.float32)),
    "a number": lambda rng, n: (rng.normal(size=(n, 1)), rng.normal(size=n).astype(np.float32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_record_of_weight_three_counts_as_three_records(form: str) -> None:
    rng = np.random.default_rng(5)
    outputs, targets = FORMS[form](rng, 40)
    copies = rng.integers(0, 4, 40)
    weighted = draws(Predictions(outputs, targets, 7.0), copies[None].astype(np.float32))
    repeated = measure(Predictions(np.repeat(outputs, copies, 0), np.repeat(targets, copies, 0), 7.0))
    assert {name: float(value[0]) for name, value in weighted.items()} == pytest.approx(repeated, rel=1e-5)


def test_a_draw_without_one_of_two_classes_has_no_area() -> None:
    predictions = Predictions(np.array([[1.0], [2.0], [0.5]]), np.array([0, 1, 1]))
    found = draws(predictions, np.array([[1.0, 0, 1.0], [0, 1.0, 1.0]], dtype=np.float32))
    assert found["auc"][0] == 0.0
    assert np.isnan(found["auc"][1])


def test_every_metric_says_what_it_means_and_which_way_is_better() -> None:
    for found in map(METRICS.__getitem__, METRICS):
        assert found.label
        assert found.meaning
        assert found.sign == (1.0 if found.higher_is_better else -1.0)
        assert found.forms


def test_each_form_has_one_proper_scoring_rule() -> None:
    for form in ("classes", "labels", "number"):
        assert len([m for m in metrics_of(form) if m.proper]) == 1
    assert proper(["r2", "rmse"]) == "rmse"
    assert proper(["accuracy"]) is None


def test_names_are_put_in_the_order_of_the_table_and_unknown_ones_last() -> None:
    assert in_order(["new", "log_loss", "auc", "auc"]) == ("auc", "log_loss", "new")
    assert named("new_thing").label == "new thing"


@pytest.fixture
def brier() -> Iterator[metrics.Compute]:
    @metrics.metric("my_brier", label="Brier score", meaning="…", forms=("classes",), higher_is_better=False)
    def brier(p: Predictions, weights: metrics.Weights) -> metrics.Floats:
        return metrics.weighted_mean(((np.exp(p.logs) - p.truth) ** 2).sum(1), weights)

    yield brier
    METRICS.remove("my_brier")


def test_a_new_metric_is_measured_without_touching_anything_else(brier: metrics.Compute) -> None:
    assert measure(Predictions(np.zeros((4, 1)), np.array([0, 1, 0, 1])))["my_brier"] == pytest.approx(0.5)
    assert list(METRICS)[-1] == "my_brier"


def test_two_metrics_of_one_name_are_refused(brier: metrics.Compute) -> None:
    again = metrics.metric("my_brier", label="B", meaning="…", forms=("number",))
    with pytest.raises(StudyError, match='two metric definitions are called "my_brier"'):
        again(lambda p, weights: np.zeros(len(weights)))
    assert named("my_brier").label == "Brier score"


@dataclass
class Point:
    """What an installed package declares under the group `confrere.metrics`."""

    thing: object
    name: str = "halves"

    def load(self) -> object:
        return self.thing


def test_a_metric_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Metric("halves", lambda p, weights: np.full(len(weights), 0.5), "halves", "…", ("classes",))
    points = [Point(halves)]
    monkeypatch.setattr(
        "confrere.core.registry.entry_points", lambda group: points if group == "confrere.metrics" else []
    )
    monkeypatch.setattr(METRICS, "_things", dict(METRICS._things))
    monkeypatch.setattr(METRICS, "_loaded", False)
    assert measure(Predictions(np.zeros((4, 1)), np.array([0, 1, 0, 1])))["halves"] == 0.5
    points[:] = [Point(len, "length")]
    monkeypatch.setattr(METRICS, "_loaded", False)
    with pytest.raises(StudyError, match=r'metric "length" .* not a Metric; register it'):
        METRICS.names()
