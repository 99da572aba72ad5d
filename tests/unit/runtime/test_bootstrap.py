"""A paired bootstrap over test records: sure where it can be, and not surer than that."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from confrere.data.records import Records
from confrere.learning.evaluate import auc, measure
from confrere.runtime.bootstrap import areas, intervals, measured
from confrere.runtime.said import Said, marks_of


def said(logits: np.ndarray, labels: np.ndarray, first: int = 0) -> Said:
    marks = np.array([f"a/{first + n}" for n in range(len(labels))])
    return Said(logits.astype(np.float32).reshape(len(labels), -1), labels.astype(np.int64), marks)


def site(seed: int, records: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=records)
    return logits, (rng.random(records) < 1 / (1 + np.exp(-2 * logits))).astype(int)


def test_the_area_is_the_one_that_is_reported_ties_and_all() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 6, 200).astype(float), rng.random(200) < 0.4
    found = areas(scores, positive, np.ones((1, 200), dtype=np.float32))
    assert found[0] == pytest.approx(auc(torch.as_tensor(scores), torch.as_tensor(positive)))


@pytest.mark.parametrize("classes", [2, 4])
def test_drawn_once_each_every_measure_is_the_reported_one(classes: int) -> None:
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(150, 1 if classes == 2 else classes)), rng.integers(0, classes, 150)
    drawn = measured(said(logits, labels), np.ones((1, 150), dtype=np.float32))
    reported = measure(torch.as_tensor(logits, dtype=torch.float32), torch.as_tensor(labels))
    assert {m: float(v[0]) for m, v in drawn.items()} == pytest.approx(reported, rel=1e-5)


def test_drawn_once_each_many_labels_and_numbers_are_measured_as_they_are_reported() -> None:
    rng = np.random.default_rng(2)
    once = np.ones((1, 150), dtype=np.float32)
    logits, labels = (
        rng.normal(size=(150, 3)).astype(np.float32),
        (rng.random((150, 3)) < 0.3).astype(np.float32),
    )
    drawn = measured(Said(logits, labels, np.arange(150).astype(str)), once)
    reported = measure(torch.as_tensor(logits), torch.as_tensor(labels))
    assert {m: float(v[0]) for m, v in drawn.items()} == pytest.approx(reported, rel=1e-5)
    numbers = measured(Said(logits[:, :1], labels[:, 0], np.arange(150).astype(str), spread=40.0), once)
    assert float(numbers["rmse"][0]) == pytest.approx(
        measure(torch.as_tensor(logits[:, :1]), torch.as_tensor(labels[:, 0]), 40.0)["rmse"], rel=1e-5
    )


def test_a_large_gain_is_seen_and_a_difference_of_nothing_is_not() -> None:
    logits, labels = site(0)
    noisy = logits + np.random.default_rng(1).normal(size=300) * 2
    ways = {
        "local": [{"a": said(noisy, labels)}],
        "good": [{"a": said(2 * logits, labels)}],
        "same": [{"a": said(noisy + 1e-3 * np.random.default_rng(2).normal(size=300), labels)}],
    }
    found = intervals(ways, "local")
    assert found["good"].mean["log_loss"][0] > 0
    assert found["good"].sites["a"]["auc"][0] > 0
    low, high = found["same"].mean["log_loss"]
    assert low < 0 < high


def test_intervals_miss_nothing_more_often_than_they_say() -> None:
    """Two models that are equally good: about one interval in twenty may leave out zero."""
    missed = 0
    for trial in range(60):
        logits, labels = site(trial, 150)
        rng = np.random.default_rng(1000 + trial)
        one, two = logits + rng.normal(size=150), logits + rng.normal(size=150)
        found = intervals(
            {"local": [{"a": said(one, labels)}], "x": [{"a": said(two, labels)}]}, "local", draws=300
        )
        low, high = found["x"].mean["log_loss"]
        missed += not low <= 0 <= high
    assert missed <= 9


def test_the_same_records_in_five_seeds_are_no_more_records() -> None:
    """Whoever draws seeds as if they had patients of their own is surer than the records allow."""
    logits, labels = site(0)
    noisy = logits + np.random.default_rng(1).normal(size=300)

    def width(first: list[int]) -> float:
        ways = {
            "local": [{"a": said(noisy, labels, n)} for n in first],
            "x": [{"a": said(logits, labels, n)} for n in first],
        }
        low, high = intervals(ways, "local")["x"].mean["log_loss"]
        return high - low

    once, same, other = width([0]), width([0] * 5), width([0, 1000, 2000, 3000, 4000])
    assert same == pytest.approx(once, rel=0.15)
    assert other < 0.7 * once


def test_other_records_make_no_pairs() -> None:
    logits, labels = site(0)
    ways = {"local": [{"a": said(logits, labels)}], "x": [{"a": said(logits, labels, first=7)}]}
    assert intervals(ways, "local") == {}


def test_the_records_of_a_patient_are_drawn_together() -> None:
    records = Records(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), torch.tensor([5, 5, 7, 7]))
    assert marks_of(records, "a").tolist() == ["a/5", "a/5", "a/7", "a/7"]
    alone = marks_of(Records(torch.eye(3), torch.tensor([0, 1, 0])), "a")
    assert len(set(alone)) == 3
