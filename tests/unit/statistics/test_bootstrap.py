"""A paired bootstrap over test records: sure where it can be, and not surer than that."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from confrere.data.records import Records
from confrere.site.predictions import RecordPredictions, marks_of
from confrere.statistics.bootstrap import intervals


def said(logits: np.ndarray, labels: np.ndarray, first: int = 0) -> RecordPredictions:
    marks = np.array([f"a/{first + n}" for n in range(len(labels))])
    return RecordPredictions(
        logits.astype(np.float32).reshape(len(labels), -1), labels.astype(np.int64), marks
    )


def site(seed: int, records: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=records)
    return logits, (rng.random(records) < 1 / (1 + np.exp(-2 * logits))).astype(int)


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
