"""The label of each record, by the schema alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.branches import branches_of
from confrere.data.origin import counted, origin_of, place, some
from confrere.data.records import Task
from confrere.data.schema import ARRAYS, Column, Label, Schema
from confrere.data.tally import Tally
from confrere.data.values import as_flags, as_numbers, kinds_of


def task_of(schema: Schema) -> Task:
    """What the schema asks of a model."""
    label = schema.label
    features = tuple(n for c in schema.columns if c.kind not in ARRAYS for n in c.features)
    branches = branches_of(schema)
    if label.kind == "regression":
        low, high = label.range or (-1.0, 1.0)
        return Task("regression", (), schema.inputs, features, (low + high) / 2, (high - low) / 2, label.unit,
                    branches)  # fmt: skip
    if label.kind == "multilabel":
        return Task("multilabel", label.columns, schema.inputs, features, branches=branches)
    kind = "multiclass" if label.kind == "multiclass" else "binary"
    classes = label.classes or ("no", "yes")
    return Task("binary" if kind == "binary" else "multiclass", classes, schema.inputs, features,
                branches=branches)  # fmt: skip


def encode_label(frame: pd.DataFrame, label: Label, tally: Tally) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The targets of the records that have one, and which records those are."""
    for name in label.all_columns:
        if name not in frame.columns:
            raise DataError(
                f"{origin_of(frame).name}: the label column {name!r} is not there; "
                f"columns are {some([str(c) for c in frame.columns], 12)}"
            )
    if label.kind == "multilabel":
        return _multilabel(frame, label, tally)
    series = frame[label.column]
    if label.kind == "regression":
        values = _regression(frame, label, series)
        known = ~np.isnan(values)
        _refuse_gaps(frame, label, known, tally)
        return values[known].astype(np.float32), known
    if label.kind == "survival":
        values = _survival(frame, label, tally)
    elif label.above is not None:
        numbers = as_numbers(frame, series, _column(label))
        values = np.where(np.isnan(numbers), np.nan, (numbers > label.above).astype(float))
    else:
        values = _classes(frame, label, series)
    known = ~np.isnan(values)
    if label.kind != "survival":
        _refuse_gaps(frame, label, known, tally)
    return values[known].astype(np.int64), known


def _column(label: Label, name: str = "") -> Column:
    return Column(name or label.column, range=(-1e300, 1e300), missing=label.missing, identifying=False)


def _refuse_gaps(frame: pd.DataFrame, label: Label, known: NDArray[np.bool_], tally: Tally) -> None:
    if known.all():
        return
    if label.unlabelled == "refuse":
        at = int(np.flatnonzero(~known)[0])
        raise DataError(
            f"{place(frame, at, label.column)}: the label is missing ({counted((~known).sum(), 'such record')}); "
            'to leave these records out, say unlabelled = "drop" in the schema'
        )
    tally.tell("", (~known).sum(), "record", " without a label left out")


def _classes(frame: pd.DataFrame, label: Label, series: pd.Series[Any]) -> NDArray[np.float64]:
    if not label.classes:
        column = Column(label.column, kind="flag", missing=label.missing, identifying=False)
        return as_flags(frame, series, column)[0]
    own, texts = kinds_of(series, label.missing)
    meant = {value: name for name, values in label.groups for value in values}
    rest = meant.pop("*", None)
    places = {c: float(i) for i, c in enumerate(label.classes)}

    def value(text: str | None) -> float:
        if text is None:
            return np.nan
        return places.get(meant.get(text, rest) or "", -1.0) if label.groups else places.get(text, -1.0)

    values = np.array([value(t) for t in texts])[own]
    strange = values == -1.0
    if strange.any():
        at = int(np.flatnonzero(strange)[0])
        raise DataError(
            f"{place(frame, at, label.column)}: {texts[own[at]]!r} is not a class of the label "
            f"({', '.join(label.classes)}); not known: {some(sorted(texts[np.unique(own[strange])]))}"
        )
    return values


def _regression(frame: pd.DataFrame, label: Label, series: pd.Series[Any]) -> NDArray[np.float64]:
    numbers = as_numbers(frame, series, _column(label))
    low, high = label.range or (-1.0, 1.0)
    outside = (numbers < low) | (numbers > high)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise DataError(
            f"{place(frame, at, label.column)}: {numbers[at]:g} is not within {low:g} … {high:g} "
            f"({counted(outside.sum(), 'such value')}); correct it, or widen the label's range"
        )
    return np.asarray((numbers - (low + high) / 2) / ((high - low) / 2))


def _survival(frame: pd.DataFrame, label: Label, tally: Tally) -> NDArray[np.float64]:
    if label.groups:
        event = _classes(frame, label, frame[label.column])
        unknown = np.isnan(event)
    else:
        column = Column(label.column, kind="flag", missing=label.missing, identifying=False)
        event, unknown = as_flags(frame, frame[label.column], column)
    time = as_numbers(frame, frame[label.time], _column(label, label.time))
    horizon = label.horizon or 0.0
    unknown = unknown | np.isnan(time)
    _refuse_gaps(frame, label, ~unknown, tally)
    happened = (event == 1) & (time <= horizon)
    lost = (event == 0) & (time < horizon)
    if lost.any():
        tally.tell("", lost.sum(), "record", f" lost to follow-up before {horizon:g} left out")
    return np.where(unknown | lost, np.nan, happened.astype(float))


def _multilabel(
    frame: pd.DataFrame, label: Label, tally: Tally
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    columns = []
    for name in label.columns:
        values, gaps = as_flags(
            frame, frame[name], Column(name, kind="flag", missing=label.missing, identifying=False)
        )
        columns.append(np.where(gaps, np.nan, values))
    values = np.stack(columns, axis=1)
    known: NDArray[np.bool_] = np.asarray(~np.isnan(values).any(axis=1))
    _refuse_gaps(frame, Label(column=label.columns[0], unlabelled=label.unlabelled), known, tally)
    return values[known].astype(np.float32), known
