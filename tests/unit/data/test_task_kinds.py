"""The table of task kinds: what each kind asks of a label, a model and a report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch

import confrere
from confrere.core.errors import StudyError
from confrere.core.metrics import Predictions
from confrere.data.column_kinds import Column
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.labels import encode_label, task_of
from confrere.data.schema import Schema
from confrere.data.tasks import Label, Task, task_kinds
from confrere.learning.objectives import supervised_loss


@dataclass(frozen=True)
class Row:
    """A kind, a label of it, values of its columns, and what must come of them."""

    label: Label
    columns: dict[str, list[object]]
    kind: str
    outputs: int
    flipped: list[object]
    constant: dict[str, list[object]]
    predicted: set[str]


GRADES = ("low", "mid", "high")
ROWS = {
    "binary": Row(
        Label(column="y"), {"y": ["no", "yes"]}, "binary", 1, [1, 0], {"y": ["no", "no"]},
        {"prediction", "probability of no", "probability of yes"},
    ),
    "multiclass": Row(
        Label(column="y", kind="multiclass", classes=GRADES), {"y": ["low", "high"]}, "multiclass", 3, [2, 0],
        {"y": ["mid", "mid"]}, {"prediction", *(f"probability of {g}" for g in GRADES)},
    ),
    "regression": Row(
        Label(column="y", kind="regression", range=(0, 10)), {"y": [0, 7.5]}, "regression", 1, [1.0, -0.5],
        {"y": [3, 3]}, {"prediction"},
    ),
    "survival": Row(
        Label(column="y", kind="survival", time="t", horizon=2.0), {"y": [0, 1], "t": [5, 1]}, "binary", 1, [1, 0],
        {"y": [0, 0], "t": [5, 5]}, {"prediction", "probability of no", "probability of yes"},
    ),
    "multilabel": Row(
        Label(kind="multilabel", columns=("a", "b")), {"a": [0, 1], "b": [1, 0]}, "multilabel", 2,
        [[1, 0], [0, 1]], {"a": [1, 1], "b": [0, 1]}, {"probability of a", "probability of b"},
    ),
}  # fmt: skip


def test_every_kind_has_a_row() -> None:
    assert task_kinds.names() == sorted(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_kind_answers_everything_that_depends_on_it(name: str) -> None:
    row = ROWS[name]
    task = task_of(Schema(label=row.label, columns=(Column("x", range=(0, 1)),)))
    targets, known = encode_label(pd.DataFrame(row.columns), row.label, EncodingTally())
    found = torch.from_numpy(targets)
    outputs = torch.zeros(2, task.outputs)
    assert (task.kind, task.outputs, bool(known.all())) == (row.kind, row.outputs, True)
    assert task.traits.flipped(task, found).tolist() == row.flipped
    assert task.traits.unlearnable(task, found) is None
    constant = torch.from_numpy(encode_label(pd.DataFrame(row.constant), row.label, EncodingTally())[0])
    assert "in all records" in (why := task.traits.unlearnable(task, constant) or "") or "one class" in why
    assert set(task.traits.predictions(task, outputs)) == row.predicted
    assert task.traits.summary_text(task, task.traits.summary(task, found))


@pytest.mark.parametrize("name", ROWS)
def test_the_stated_form_is_what_losses_and_metrics_read_off_the_targets(name: str) -> None:
    row = ROWS[name]
    task = task_of(Schema(label=row.label, columns=(Column("x", range=(0, 1)),)))
    targets, _ = encode_label(pd.DataFrame(row.columns), row.label, EncodingTally())
    outputs = torch.zeros(2, task.outputs)
    assert Predictions(outputs.numpy(), targets).form == task.form
    assert supervised_loss(outputs, torch.from_numpy(targets)).shape == (2,)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StudyError, match=r'unknown task kind "bianry".*did you mean "binary".*multilabel'):
        Task("bianry", ("a", "b"), (1,))
    with pytest.raises(
        ValueError, match=f'unknown task kind "grades-of-none".*known: {", ".join(sorted(ROWS))}'
    ):
        Label(column="y", kind="grades-of-none")


def test_no_other_module_asks_for_the_name_of_a_kind() -> None:
    names = "|".join(ROWS)
    asks = re.compile(rf'\bkind\s*(==|!=|in|not in)\s*\(?\s*"({names})"')
    source = Path(confrere.__file__).parent
    found = [str(p) for p in source.rglob("*.py") if asks.search(p.read_text(encoding="utf-8"))]
    assert found == []
