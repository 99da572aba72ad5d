"""Derive the task from a schema, and encode the label of each record."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.read.table_origin import BadRows, counted, origin_of, some
from confrere.data.schema import TABLE, Schema
from confrere.data.tasks import Branch, BranchKind, Label, Targets, Task, task_kinds


def task_of(schema: Schema) -> Task:
    """What the schema asks of a model."""
    features = tuple(n for c in schema.columns if not c.traits.branch for n in c.features)
    kind = task_kinds[schema.label.kind]
    return kind.task(schema.label, inputs=schema.inputs, features=features, branches=branches_of(schema))


def encode_label(frame: pd.DataFrame, label: Label, tally: EncodingTally) -> Targets:
    """The targets of the records that have one, and which records those are."""
    for name in label.all_columns:
        if name not in frame.columns:
            raise DataError(
                f"{origin_of(frame).name}: the label column {name!r} is not there; "
                f"columns are {some([str(c) for c in frame.columns], 12)}"
            )
    return task_kinds[label.kind].encode(frame, label, tally)


def label_column(label: Label, name: str = "") -> Column:
    """A column that the label reads as a number."""
    return Column(name or label.column, range=(-1e300, 1e300), missing=label.missing, identifying=False)


def refuse_gaps(frame: pd.DataFrame, label: Label, known: NDArray[np.bool_], tally: EncodingTally) -> None:
    """Refuse records without a label, or count them where the schema drops them."""
    if known.all():
        return
    if label.unlabelled == "refuse":
        words = f"the label is missing ({counted((~known).sum(), 'such record')}); "
        words += 'to leave these records out, set unlabelled = "drop" in the schema'
        raise BadRows(frame, ~known, label.column, words)
    tally.note("", (~known).sum(), "record", " without a label left out")


def branches_of(schema: Schema) -> tuple[Branch, ...]:
    """What lies where in an encoded record; nothing where there is but one branch and no mask in it."""
    plain = [c for c in schema.columns if not c.traits.branch]
    width = sum(len(c.features) for c in plain)
    found = [Branch(TABLE, 0, (width,))] if plain else []
    for column in schema.columns:
        if column.traits.branch:
            kind = cast("BranchKind", column.kind)
            found.append(Branch(column.name, width, column.array, kind, column.traits.mask))
            width += len(column.features)
    return tuple(found) if len(found) > 1 or any(b.mask for b in found) else ()
