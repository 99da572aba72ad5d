"""Labels: groups, thresholds, survival, regression, several at once."""

from __future__ import annotations

import pandas as pd
import pytest

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.encode.encoder import encode, encode_table
from confrere.data.encode.labels import task_of
from confrere.data.schema import Schema
from confrere.data.tasks import Label

FEATURE = (Column("x", range=(0, 1)),)


def targets(label: Label, **columns: list[object]) -> list[float]:
    n = len(next(iter(columns.values())))
    frame = pd.DataFrame({"x": [0.5] * n, **columns})
    return list(encode(frame, Schema(label=label, columns=FEATURE)).targets.tolist())


def test_groups_put_several_values_into_one_class() -> None:
    label = Label(column="d", classes=("none", "some"), groups=(("none", ("-", "0")), ("some", ("*",))))
    assert targets(label, d=["-", "A", "B|C", "0"]) == [0, 1, 1, 0]


def test_a_number_above_a_threshold_is_the_second_class() -> None:
    assert targets(Label(column="g", above=7.0), g=[6.9, 7.0, 7.1]) == [0, 0, 1]


def test_survival_leaves_out_who_was_lost_before_the_horizon_and_says_so() -> None:
    label = Label(column="dead", kind="survival", time="days", horizon=365.0, classes=("alive", "dead"))
    frame = pd.DataFrame({"x": 0.5, "dead": [1, 1, 0, 0], "days": [100, 500, 400, 200]})
    done = encode_table(frame, Schema(label=label, columns=FEATURE))
    assert done.records.targets.tolist() == [1, 0, 0]
    assert "1 record lost to follow-up before 365 left out" in done.notes


def test_a_regression_target_can_be_brought_back_into_its_unit() -> None:
    label = Label(column="los", kind="regression", range=(0, 100), unit="days")
    schema = Schema(label=label, columns=FEATURE)
    task = task_of(schema)
    got = targets(label, los=[0, 25, 100])
    assert [t * task.spread + task.centre for t in got] == pytest.approx([0, 25, 100])
    assert (task.kind, task.unit, task.outputs) == ("regression", "days", 1)
    with pytest.raises(DataError, match="not within 0 … 100"):
        targets(label, los=[101])


def test_several_labels_at_once() -> None:
    label = Label(kind="multilabel", columns=("a", "b"))
    assert targets(label, a=["yes", "no"], b=[1, 1]) == [[1, 1], [0, 1]]


def test_a_class_that_is_not_known_is_refused_with_its_line() -> None:
    with pytest.raises(DataError, match="record 2, column d: 'Z' is not a class of the label"):
        targets(Label(column="d", classes=("A", "B")), d=["A", "Z"])
