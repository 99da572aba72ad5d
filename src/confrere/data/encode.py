"""From a frame to tensors, by the schema alone.

No mean, no maximum and no list of categories is taken from the records, so the numbers that a record becomes
do not depend on any other record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.blocks import fill, plain
from confrere.data.columns import LIMIT, encode_column, scaled
from confrere.data.labels import encode_label, task_of
from confrere.data.origin import counted, origin_of, place, some
from confrere.data.records import Records
from confrere.data.schema import ARRAYS, Schema
from confrere.data.tally import Tally

__all__ = ["LIMIT", "Encoded", "encode", "encode_table", "task_of"]

Room = Callable[[int], NDArray[np.float32]]
"""Where the numbers of so many records go: an array with a row for each."""


@dataclass(frozen=True)
class Encoded:
    """Records, and in plain words what happened to them. Both are PRIVATE."""

    records: Records
    notes: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    """Columns that are not there, or have no value in any record: all of them are imputed."""


def encode(frame: pd.DataFrame, schema: Schema, site: str = "", **translation: Any) -> Records:
    """The records of a frame as the schema says; see `encode_table` for what was imputed or dropped."""
    return encode_table(frame, schema, site, **translation).records


def encode_table(
    frame: pd.DataFrame,
    schema: Schema,
    site: str = "",
    *,
    rename: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    folder: str = "",
    one_class: bool = True,
) -> Encoded:
    """Encode with a site's own translation.

    `rename` maps a name in the file to the schema's, `units` says in which unit a file has a column where
    that is not the schema's, `folder` is where image files lie. `one_class = False` refuses records whose
    labels are all the same.
    """
    tally = Tally()
    rows = encode_rows(frame, schema, tally, site, rename=rename, units=units, folder=folder)
    numbers = None if rows.patients is None else patient_numbers(rows.patients, tally)
    shaped = rows.inputs.reshape(len(rows.inputs), *schema.inputs)
    records = Records(torch.from_numpy(shaped), torch.from_numpy(rows.targets), numbers)
    if not one_class and (only := only_class(records, schema)):
        raise DataError(
            f"{origin_of(frame).name}, column {schema.label.column}: every record has the label {only!r}; "
            "there is nothing to learn to tell apart. Is it the right column?"
        )
    return Encoded(records, tally.words(c.name for c in schema.columns), tally.lacks)


def only_class(records: Records, schema: Schema) -> str:
    """The class of all records where there is but one."""
    if records.targets.dtype != torch.int64 or len(torch.unique(records.targets)) > 1:
        return ""
    return task_of(schema).classes[int(records.targets[0])] if len(records) else "none"


@dataclass(frozen=True)
class Rows:
    """Some records of a site: a whole table, or a piece of it."""

    inputs: NDArray[np.float32]
    targets: NDArray[Any]
    patients: pd.Series[Any] | None
    met: pd.Series[Any] | None
    """The patients also of records that were left out since they have no label."""


def encode_rows(
    frame: pd.DataFrame,
    schema: Schema,
    tally: Tally,
    site: str = "",
    *,
    rename: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    folder: str = "",
    room: Room | None = None,
) -> Rows:
    """Encode a table or a piece of one; `tally` goes on counting, and the numbers go to `room`."""
    if schema.unconfirmed:
        raise DataError(
            f"schema: {some(schema.unconfirmed)} were drawn from records and are PRIVATE; "
            "look at them, correct them, and delete the line `private`"
        )
    frame = translate(frame, schema, rename or {}, site)
    for note in frame.attrs.get("notes", []):
        tally.tell(note)
    frame = _without_repeats(frame, schema, tally)
    targets, labelled = encode_label(frame, schema.label, tally)
    met = frame[schema.patient] if schema.patient else None
    frame = frame[labelled] if not labelled.all() else frame
    width = sum(len(c.features) for c in schema.columns)
    inputs = room(len(frame)) if room else np.empty((len(frame), width), dtype=np.float32)
    _encode_columns(frame, schema, units or {}, folder, tally, inputs)
    return Rows(inputs, targets, frame[schema.patient] if schema.patient else None, met)


def translate(frame: pd.DataFrame, schema: Schema, rename: Mapping[str, str], site: str = "") -> pd.DataFrame:
    """The frame with the schema's column names, from a site's own translation and the schema's `also`."""
    names = {str(c): str(c).strip() for c in frame.columns}
    for old in rename:
        if old not in frame.columns:
            raise DataError(
                f"{origin_of(frame).name}: rename: there is no column {old!r}"
                + (f" at {site}" if site else "")
            )
    names.update(rename)
    present = set(names.values())
    for known, also in [(c.name, c.also) for c in schema.columns] + [
        (schema.label.column, schema.label.also)
    ]:
        found = [a for a in also if a in present]
        if known not in present and found:
            names = {old: (known if new == found[0] else new) for old, new in names.items()}
    if all(old == new for old, new in names.items()):
        return frame
    out = frame.rename(columns=names)
    twice = out.columns[out.columns.duplicated()]
    if len(twice):
        raise DataError(f"{origin_of(frame).name}: two columns would both be {twice[0]!r} after renaming")
    return out


def written_names(schema: Schema, rename: Mapping[str, str]) -> tuple[str, ...]:
    """The columns, by their names in a file, whose fields are codes rather than numbers."""
    kinds = ("category", "text", *ARRAYS)
    known = {schema.patient, schema.site, *(c.name for c in schema.columns if c.kind in kinds)}
    also = {a for c in schema.columns if c.kind in kinds for a in c.also}
    return tuple(sorted({*known, *also, *(old for old, new in rename.items() if new in known)} - {""}))


def _without_repeats(frame: pd.DataFrame, schema: Schema, tally: Tally) -> pd.DataFrame:
    if not schema.patient:
        return frame
    if schema.patient not in frame.columns:
        raise DataError(f"{origin_of(frame).name}: the patient column {schema.patient!r} is not there")
    ids = frame[schema.patient]
    if schema.repeats == "refuse" and (again := (ids.duplicated() & ids.notna()).to_numpy()).any():
        at = int(np.flatnonzero(again)[0])
        raise DataError(
            f"{place(frame, at, schema.patient)}: the patient {ids.iloc[at]} is there for the second time, "
            f"and the schema has one record per patient ({counted(again.sum(), 'such record')})"
        )
    if not ids.duplicated().any():
        return frame
    same = _hashable(frame, schema).duplicated().to_numpy() & ids.notna().to_numpy()
    if not same.any():
        return frame
    if schema.repeats == "drop":
        tally.tell("", same.sum(), "record", " that repeat another one word for word dropped")
        return frame[~same]
    at = int(np.flatnonzero(same)[0])
    raise DataError(
        f"{place(frame, at, schema.patient)}: the same record of patient {ids.iloc[at]} for the second time "
        f'({counted(same.sum(), "such record")}); remove it, or say repeats = "drop" in the schema'
    )


def _hashable(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The frame with arrays as their bytes, so that records can be told apart."""
    held = [c.name for c in schema.columns if c.kind in ARRAYS and c.name in frame.columns]
    return frame.assign(
        **{n: frame[n].map(lambda v: v.tobytes() if isinstance(v, np.ndarray) else v) for n in held}
    )


def patient_numbers(patients: pd.Series[Any], tally: Tally) -> torch.Tensor:
    """Which patient each record belongs to."""
    codes = pd.factorize(patients)[0].astype(np.int64)
    unknown = codes < 0
    if unknown.any():
        codes[unknown] = codes.max() + 1 + np.arange(unknown.sum())
        tally.tell("", unknown.sum(), "record", NO_ID)
    return torch.from_numpy(codes)


NO_ID = " without a patient id: each counts as a patient of its own"


def _encode_columns(
    frame: pd.DataFrame,
    schema: Schema,
    units: Mapping[str, str],
    folder: str,
    tally: Tally,
    inputs: NDArray[np.float32],
) -> None:
    widths = [len(c.features) for c in schema.columns]
    starts = [sum(widths[:i]) for i in range(len(widths))]
    quick = {
        column.name: found
        for column, start in zip(schema.columns, starts, strict=True)
        if not units.get(column.name) and (found := plain(frame, column, start)) is not None
    }
    fill(list(quick.values()), inputs, scaled, LIMIT)
    tally.records += len(frame)
    for column, start, width in zip(schema.columns, starts, widths, strict=True):
        done = quick.get(column.name)
        if done is None or done.strange or (done.gaps and column.gaps == "refuse"):
            values, gaps = encode_column(frame, column, schema, units, folder, tally)
            inputs[:, start : start + width] = values
        else:
            gaps = done.gaps
        tally.missing(column, gaps, here=column.name in frame.columns or column.kind in ARRAYS)
