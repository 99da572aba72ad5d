"""From a frame to tensors, by the schema alone.

No mean, no maximum and no list of categories is taken from the records, so the numbers that a record becomes
do not depend on any other record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.blocks import fill, plain
from confrere.data.derive import derived, missing_sources
from confrere.data.images import load_images
from confrere.data.labels import encode_label, task_of
from confrere.data.origin import counted, origin_of, place, some
from confrere.data.records import Records
from confrere.data.schema import Column, Schema
from confrere.data.text import encode_texts
from confrere.data.units import converter, likely_slip
from confrere.data.values import as_dates, as_flags, as_numbers, as_text, kinds_of

__all__ = ["LIMIT", "Encoded", "encode", "encode_table", "task_of"]

LIMIT = 5.0
"""Encoded numbers are held within ±LIMIT: five times the half-width of the usual interval."""


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
    if schema.unconfirmed:
        raise DataError(
            f"schema: {some(schema.unconfirmed)} were drawn from records and are PRIVATE; "
            "look at them, correct them, and delete the line `private`"
        )
    frame = translate(frame, schema, rename or {}, site)
    notes: list[str] = list(frame.attrs.get("notes", []))
    frame = _without_repeats(frame, schema, notes)
    targets, labelled = encode_label(frame, schema.label, notes)
    frame = frame[labelled] if not labelled.all() else frame
    lacks: list[str] = []
    inputs = _encode_columns(frame, schema, units or {}, folder, notes, lacks)
    tensor = torch.from_numpy(inputs.reshape(len(frame), *schema.inputs))
    records = Records(tensor, torch.from_numpy(targets), _units(frame, schema, notes))
    if not one_class and records.targets.dtype == torch.int64 and len(torch.unique(records.targets)) < 2:
        only = task_of(schema).classes[int(records.targets[0])] if len(records) else "none"
        raise DataError(
            f"{origin_of(frame).name}, column {schema.label.column}: every record has the label {only!r}; "
            "there is nothing to learn to tell apart. Is it the right column?"
        )
    return Encoded(records, tuple(notes), tuple(lacks))


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
    kinds = ("category", "text", "image")
    known = {schema.patient, schema.site, *(c.name for c in schema.columns if c.kind in kinds)}
    also = {a for c in schema.columns if c.kind in kinds for a in c.also}
    return tuple(sorted({*known, *also, *(old for old, new in rename.items() if new in known)} - {""}))


def _without_repeats(frame: pd.DataFrame, schema: Schema, notes: list[str]) -> pd.DataFrame:
    if not schema.patient:
        return frame
    if schema.patient not in frame.columns:
        raise DataError(f"{origin_of(frame).name}: the patient column {schema.patient!r} is not there")
    ids = frame[schema.patient]
    if schema.repeats == "refuse" and (again := (ids.duplicated() & ids.notna()).to_numpy()).any():
        at = int(np.flatnonzero(again)[0])
        raise DataError(
            f"{place(frame, at, schema.patient)}: the patient {ids.iloc[at]} is there for the second time, "
            f"and the schema has one record per patient ({again.sum()} such records)"
        )
    if not ids.duplicated().any():
        return frame
    same = frame.duplicated().to_numpy() & ids.notna().to_numpy()
    if not same.any():
        return frame
    if schema.repeats == "drop":
        notes.append(f"{counted(same.sum(), 'record')} that repeat another one word for word dropped")
        return frame[~same]
    at = int(np.flatnonzero(same)[0])
    raise DataError(
        f"{place(frame, at, schema.patient)}: the same record of patient {ids.iloc[at]} for the second time "
        f'({same.sum()} such records); remove it, or say repeats = "drop" in the schema'
    )


def _units(frame: pd.DataFrame, schema: Schema, notes: list[str]) -> torch.Tensor | None:
    if not schema.patient:
        return None
    codes = pd.factorize(frame[schema.patient])[0].astype(np.int64)
    unknown = codes < 0
    if unknown.any():
        codes[unknown] = codes.max() + 1 + np.arange(unknown.sum())
        notes.append(
            f"{counted(unknown.sum(), 'record')} without a patient id: each counts as a patient of its own"
        )
    return torch.from_numpy(codes)


def _encode_columns(
    frame: pd.DataFrame,
    schema: Schema,
    units: Mapping[str, str],
    folder: str,
    notes: list[str],
    lacks: list[str],
) -> NDArray[np.float32]:
    widths = [len(c.features) for c in schema.columns]
    starts = [sum(widths[:i]) for i in range(len(widths))]
    inputs = np.empty((len(frame), sum(widths)), dtype=np.float32)
    quick = {
        column.name: found
        for column, start in zip(schema.columns, starts, strict=True)
        if not units.get(column.name) and (found := plain(frame, column, start)) is not None
    }
    fill(list(quick.values()), inputs, scaled, LIMIT)
    for column, start, width in zip(schema.columns, starts, widths, strict=True):
        done = quick.get(column.name)
        if done is None or done.strange or (done.gaps and column.gaps == "refuse"):
            unit = units.get(column.name, "")
            values, gaps = _encode_column(frame, column, schema, unit, folder, notes)
            inputs[:, start : start + width] = values
        else:
            gaps = done.gaps
            if 0 < gaps < len(frame):
                notes.append(_imputed(column, gaps, len(frame)))
        if 0 < gaps == len(frame):
            lacks.append(column.name)
            if column.name in frame.columns:
                notes.append(f"{column.name} has no value here: every value is marked missing")
    return inputs


def _imputed(column: Column, gaps: int, records: int) -> str:
    return f"{column.name}: {gaps:,} of {records:,} values missing and imputed"


def _encode_column(
    frame: pd.DataFrame, column: Column, schema: Schema, unit: str, folder: str, notes: list[str]
) -> tuple[NDArray[Any], int]:
    """The numbers of one column, and how many of its values are missing."""
    name, n = column.name, len(frame)
    series: pd.Series[Any] | None = frame[name] if name in frame.columns else None
    if series is None and column.derive is not None and not missing_sources(frame, column.derive):
        series = derived(frame, column.derive)
        notes.append(f"{name} was derived: {column.derive.how} of {' and '.join(column.derive.of)}")
    if series is None:
        if schema.missing_columns != "impute" or column.gaps == "refuse" or column.kind in ("text", "image"):
            raise DataError(
                f"{origin_of(frame).name}: the column {name!r} is not there, and the schema asks for it"
            )
        notes.append(f"{name} is not recorded here: every value is marked missing")
        series = pd.Series(np.full(n, np.nan), index=frame.index)
    if column.kind == "image":
        return load_images(frame, column, folder).reshape(n, -1), 0
    if column.kind == "text":
        return encode_texts(as_text(series, column.missing), column), 0
    if column.kind == "category":
        values: NDArray[Any]
        values, gaps = _one_hot(frame, series, column, notes)
    elif column.kind == "flag":
        flags, gaps = as_flags(frame, series, column)
        flags[gaps] = float(column.typical) if column.typical is not None else 0.0
        values = flags[:, None]
    else:
        numbers, gaps = _numbers(frame, series, column, unit, notes)
        values = scaled(numbers, column)[:, None]
        values[gaps] = 0.0 if column.typical is None else scaled(np.array([float(column.typical)]), column)[0]
        if column.marks:
            values = np.concatenate([values, values > 1.0, values < -1.0], axis=1)
    if gaps.any() and column.gaps == "refuse":
        at = int(np.flatnonzero(gaps)[0])
        raise DataError(f'{place(frame, at, name)}: is missing, and the schema says gaps = "refuse"')
    if column.has_indicator:
        values = np.concatenate([values, gaps[:, None]], axis=1)
    return values, int(gaps.sum())


def scaled(numbers: NDArray[np.float64], column: Column) -> NDArray[np.float64]:
    """(value − centre) / half-width of the usual interval, on the column's scale, within ±LIMIT."""
    low, high = column.bounds
    if column.scale == "log":
        low, high = np.log(low), np.log(high)
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = np.log(numbers)
    out = (numbers - (low + high) / 2) / ((high - low) / 2)
    return np.asarray(np.clip(out, -LIMIT, LIMIT))


def _numbers(
    frame: pd.DataFrame, series: pd.Series[Any], column: Column, unit: str, notes: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if column.kind == "date":
        numbers = as_dates(frame, series, column)
    else:
        numbers = as_numbers(frame, series, column)
        if unit and unit != column.unit:
            numbers = converter(unit, column.unit, column.name)(numbers)
    gaps = np.isnan(numbers)
    low, high = column.range or (-np.inf, np.inf)
    if column.scale == "log" and column.range is None:
        low = np.nextafter(0, 1)
    outside = ~gaps & ((numbers < low) | (numbers > high))
    if outside.any():
        if column.outside == "refuse":
            at = int(np.flatnonzero(outside)[0])
            slip = likely_slip(numbers[~gaps], column)
            raise DataError(
                f"{place(frame, at, column.name)}: {numbers[at]:g} is not within {low:g} … {high:g}"
                f"{' ' + column.unit if column.unit else ''} ({outside.sum()} such values). "
                + (slip.sentence if slip else 'If that is an error, say outside = "missing" in the schema.')
            )
        if column.outside == "missing":
            notes.append(f"{column.name}: {counted(outside.sum(), 'impossible value')} taken as missing")
            numbers = np.where(outside, np.nan, numbers)
            gaps = gaps | outside
        else:
            notes.append(f"{column.name}: {counted(outside.sum(), 'value')} set to the end of the range")
            numbers = np.where(gaps, np.nan, np.clip(numbers, low, high))
    if gaps.any() and not gaps.all():
        notes.append(_imputed(column, int(gaps.sum()), len(gaps)))
    return numbers, gaps


def _one_hot(
    frame: pd.DataFrame, series: pd.Series[Any], column: Column, notes: list[str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    own, kinds = kinds_of(series, column.missing)
    texts = pd.Series(kinds, dtype=object)  # each different value once; the last stands for a gap
    if column.prefix:
        texts = texts.str.slice(0, column.prefix)
    if column.spellings:
        texts = texts.replace(dict(column.spellings))
    places = {c: i for i, c in enumerate(column.categories)}
    empty = texts.isna().to_numpy()
    gaps = empty[own]
    codes = np.array([-1 if empty[i] else places.get(t, -2) for i, t in enumerate(texts)])[own]
    width = len(column.categories)
    if (strange := codes == -2).any():
        if column.unknown == "refuse":
            at = int(np.flatnonzero(strange)[0])
            new = sorted({str(texts[i]) for i in np.unique(own[strange])})
            raise DataError(
                f"{place(frame, at, column.name)}: {texts[own[at]]!r} is not a category of the schema "
                f"({', '.join(column.categories)}); not known: {some(new)} in {strange.sum()} records. "
                'Add it, give its `spellings`, or say unknown = "missing".'
            )
        if column.unknown == "other":
            codes[strange] = width
        else:
            gaps = gaps | strange
        notes.append(
            f"{column.name}: {counted(strange.sum(), 'value')} of unknown category taken as {column.unknown}"
        )
    if column.typical is not None:
        codes[gaps] = column.categories.index(str(column.typical))
    known = width + (column.unknown == "other")
    return codes[:, None] == np.arange(known), gaps
