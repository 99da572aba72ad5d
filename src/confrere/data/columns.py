"""One column of a frame as numbers, by the schema alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.derive import derived, missing_sources
from confrere.data.grids import load_grids
from confrere.data.images import load_images
from confrere.data.origin import counted, origin_of, place, some
from confrere.data.schema import Column, Schema
from confrere.data.tally import Tally
from confrere.data.text import encode_texts
from confrere.data.units import converter, likely_slip
from confrere.data.values import as_dates, as_flags, as_numbers, as_text, kinds_of

LIMIT = 5.0
"""Encoded numbers are held within ±LIMIT: five times the half-width of the usual interval."""


def encode_column(
    frame: pd.DataFrame, column: Column, schema: Schema, units: Mapping[str, str], folder: str, tally: Tally
) -> tuple[NDArray[Any], int]:
    """The numbers of one column, and how many of its values are missing."""
    name, n = column.name, len(frame)
    if column.kind in ("series", "bag", "volume"):
        return load_grids(frame, column, folder, tally, scaled), 0
    series: pd.Series[Any] | None = frame[name] if name in frame.columns else None
    if series is None and column.derive is not None and not missing_sources(frame, column.derive):
        series = derived(frame, column.derive, units, schema)
        of = " and ".join(column.derive.of)
        tally.tell(f"{name} was derived: {column.derive.how} of {of}", column=name)
    if series is None:
        if schema.missing_columns != "impute" or column.gaps == "refuse" or column.kind in ("text", "image"):
            raise DataError(
                f"{origin_of(frame).name}: the column {name!r} is not there, and the schema asks for it"
            )
        tally.tell(f"{name} is not recorded here: every value is marked missing", column=name)
        series = pd.Series(np.full(n, np.nan), index=frame.index)
    if column.kind == "image":
        return load_images(frame, column, folder).reshape(n, -1), 0
    if column.kind == "text":
        return encode_texts(as_text(series, column.missing), column), 0
    if column.kind == "category":
        values: NDArray[Any]
        values, gaps = _one_hot(frame, series, column, tally)
    elif column.kind == "flag":
        flags, gaps = as_flags(frame, series, column)
        flags[gaps] = float(column.typical) if column.typical is not None else 0.0
        values = flags[:, None]
    else:
        numbers, gaps = _numbers(frame, series, column, units.get(name, ""), tally)
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
    frame: pd.DataFrame, series: pd.Series[Any], column: Column, unit: str, tally: Tally
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    name = column.name
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
                f"{' ' + column.unit if column.unit else ''} ({counted(outside.sum(), 'such value')}). "
                + (slip.sentence if slip else 'If that is an error, say outside = "missing" in the schema.')
            )
        if column.outside == "missing":
            tally.tell(f"{name}: ", outside.sum(), "impossible value", " taken as missing", name)
            numbers = np.where(outside, np.nan, numbers)
            gaps = gaps | outside
        else:
            tally.tell(f"{name}: ", outside.sum(), "value", " set to the end of the range", name)
            numbers = np.where(gaps, np.nan, np.clip(numbers, low, high))
    return numbers, gaps


def _one_hot(
    frame: pd.DataFrame, series: pd.Series[Any], column: Column, tally: Tally
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
        after = f" of unknown category taken as {column.unknown}"
        tally.tell(f"{column.name}: ", strange.sum(), "value", after, column.name)
    if column.typical is not None:
        codes[gaps] = column.categories.index(str(column.typical))
    known = width + (column.unknown == "other")
    return codes[:, None] == np.arange(known), gaps
