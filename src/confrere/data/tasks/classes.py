"""One of several classes per record: binary, multiclass, and survival up to a horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.metrics import log_probabilities
from confrere.data.column_kinds import Column
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.labels import label_column, refuse_gaps
from confrere.data.read.table_origin import BadRows, origin_of, some
from confrere.data.read.values import as_flags, as_numbers, as_words, kinds_of
from confrere.data.tasks import Label, Targets, Task, TaskKind, task_kind


class Classes(TaskKind):
    """What binary and multiclass tasks have in common."""

    form = "classes"

    def encode(self, frame: pd.DataFrame, label: Label, tally: EncodingTally) -> Targets:
        series = frame[label.column]
        if label.above is not None:
            numbers = as_numbers(frame, series, label_column(label))
            values = np.where(np.isnan(numbers), np.nan, (numbers > label.above).astype(float))
        else:
            values = class_numbers(frame, label, series)
        known = ~np.isnan(values)
        refuse_gaps(frame, label, known, tally)
        return values[known].astype(np.int64), known

    def unlearnable(self, task: Task, targets: Tensor) -> str | None:
        if len(torch.unique(targets)) > 1:
            return None
        only = task.classes[int(targets[0])]
        return (
            f"all records are of one class ({only}); a site needs at least two"
            ' (or set data.one_class = "allow")'
        )

    def flipped(self, task: Task, targets: Tensor) -> Tensor:
        return len(task.classes) - 1 - targets

    def predictions(self, task: Task, outputs: Tensor) -> Mapping[str, Sequence[Any] | NDArray[Any]]:
        shares = np.exp(log_probabilities(outputs.double().numpy()))
        answers = [task.classes[i] for i in shares.argmax(axis=1)]
        return {
            "prediction": answers,
            **{f"probability of {name}": shares[:, n] for n, name in enumerate(task.classes)},
        }

    def summary(self, task: Task, targets: Tensor) -> dict[str, float]:
        counts = torch.bincount(targets, minlength=len(task.classes)).double()
        return dict(zip(task.classes, (counts / max(len(targets), 1)).tolist(), strict=True))


@task_kind("multiclass")
class Multiclass(Classes):
    """One of three or more classes: one output per class."""

    def problems(self, label: Label) -> list[str]:
        out = super().problems(label)
        if len(label.classes) < 2:
            out.append("a multiclass label needs its `classes`: they may not come from the records")
        return out

    def task(self, label: Label, **shape: Any) -> Task:
        return Task("multiclass", label.classes, **shape)

    def outputs(self, task: Task) -> int:
        return len(task.classes)


@task_kind("binary")
class Binary(Classes):
    """Yes or no. One logit for two classes: half the parameters, so half the noise, of one output per class."""

    chart = "rate"
    outputs_hint = " (two classes take one output)"

    def problems(self, label: Label) -> list[str]:
        out = super().problems(label)
        if len(label.classes) not in (0, 2):
            out.append(f"a {label.kind} label has two classes, not {len(label.classes)}")
        return out

    def task(self, label: Label, **shape: Any) -> Task:
        return Task("binary", label.classes or ("no", "yes"), **shape)

    def outputs(self, task: Task) -> int:
        return 1

    def summary_text(self, task: Task, summary: Mapping[str, float]) -> str:
        name = task.classes[1]
        return f"{summary[name]:4.0%} {name} {'█' * round(10 * summary[name])}"


@task_kind("survival")
class Survival(Binary):
    """Whether an event happens within a horizon: a binary task, without the records lost before the horizon."""

    def problems(self, label: Label) -> list[str]:
        timed = label.time and label.horizon
        missing = "a survival label needs `time` (a column) and `horizon` (in the unit of that column)"
        return [*super().problems(label), *([] if timed else [missing])]

    def encode(self, frame: pd.DataFrame, label: Label, tally: EncodingTally) -> Targets:
        if label.groups:
            event = class_numbers(frame, label, frame[label.column])
            unknown = np.isnan(event)
        else:
            column = Column(label.column, kind="flag", missing=label.missing, identifying=False)
            event, unknown = as_flags(frame, frame[label.column], column)
        time = as_numbers(frame, frame[label.time], label_column(label, label.time))
        horizon = label.horizon or 0.0
        unknown = unknown | np.isnan(time)
        refuse_gaps(frame, label, ~unknown, tally)
        happened = (event == 1) & (time <= horizon)
        lost = (event == 0) & (time < horizon)
        if lost.any():
            tally.note("", lost.sum(), "record", f" lost to follow-up before {horizon:g} left out")
        known = ~(unknown | lost)
        return happened[known].astype(np.int64), known


def class_numbers(frame: pd.DataFrame, label: Label, series: pd.Series[Any]) -> NDArray[np.float64]:
    """The number of each record's class; NaN where it has none."""
    if not label.classes:
        column = Column(label.column, kind="flag", missing=label.missing, identifying=False)
        return as_flags(frame, series, column)[0]
    decimal = origin_of(frame).decimal
    own, texts = kinds_of(series, label.missing, decimal)
    meant = {value: name for name, values in label.groups for value in values}
    rest = meant.pop("*", None)
    texts = as_words(texts, meant if label.groups else label.classes, decimal)
    places = {c: float(i) for i, c in enumerate(label.classes)}

    def value(text: str | None) -> float:
        if text is None:
            return np.nan
        return places.get(meant.get(text, rest) or "", -1.0) if label.groups else places.get(text, -1.0)

    values = np.array([value(t) for t in texts])[own]
    strange = values == -1.0
    if strange.any():
        words = f"{texts[own[strange][0]]!r} is not a class of the label ({', '.join(label.classes)}); not known: "
        words += some(sorted(texts[np.unique(own[strange])]))
        raise BadRows(frame, strange, label.column, words)
    return values
