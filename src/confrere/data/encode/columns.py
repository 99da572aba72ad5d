"""One column of a frame as numbers, by the schema alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.grids import load_grids
from confrere.data.encode.text import encode_texts
from confrere.data.encode.units import converter, likely_slip
from confrere.data.read.image_files import load_images
from confrere.data.read.table_origin import BadRows, counted, origin_of, some
from confrere.data.read.values import (
    as_dates,
    as_flags,
    as_numbers,
    as_text,
    as_words,
    guessed_date_format,
    kinds_of,
    parse_dates,
)
from confrere.data.schema import Column, Derivation, Schema

BMI_UNITS = ("kg", "cm")
LIMIT = 5.0
"""Encoded numbers are held within ±LIMIT: five times the half-width of the usual interval."""


@dataclass(frozen=True)
class Translation:
    """How a site's own file differs from the schema, and what becomes of records that do not fit it."""

    rename: Mapping[str, str] = field(default_factory=dict)
    """From the names in the file to those of the schema."""
    units: Mapping[str, str] = field(default_factory=dict)
    """The unit of a column in the file, where that is not the schema's."""
    folder: str = ""
    """Where image files lie."""
    drop: bool = False
    """Leave out records that do not fit the schema, which are refused otherwise."""
    guess_dates: bool = True
    """Whether the order of day and month may be found out from a whole column, where the schema does not state it."""


AS_WRITTEN = Translation()
"""A file that has the schema's own names and units."""


def encode_column(
    frame: pd.DataFrame, column: Column, schema: Schema, translation: Translation, tally: EncodingTally
) -> tuple[NDArray[Any], int]:
    """The numbers of one column, and how many of its values are missing."""
    name, n = column.name, len(frame)
    if column.kind in ("series", "bag", "volume"):
        return load_grids(frame, column, translation.folder, tally, scaled), 0
    if column.kind == "image" and name in frame.columns:
        return load_images(frame, column, translation.folder).reshape(n, -1), 0
    series = _series(frame, column, schema, translation, tally)
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
        numbers, gaps = _numbers(frame, series, column, translation, tally)
        values = scaled(numbers, column)[:, None]
        values[gaps] = 0.0 if column.typical is None else scaled(np.array([float(column.typical)]), column)[0]
        if column.marks:
            values = np.concatenate([values, values > 1.0, values < -1.0], axis=1)
    if gaps.any() and column.gaps == "refuse":
        raise BadRows(frame, gaps, name, 'is missing, and the schema says gaps = "refuse"')
    if column.has_indicator:
        values = np.concatenate([values, gaps[:, None]], axis=1)
    return values, int(gaps.sum())


def _series(
    frame: pd.DataFrame, column: Column, schema: Schema, translation: Translation, tally: EncodingTally
) -> pd.Series[Any]:
    """The fields of a column: as they are in the file, derived from other columns, or all missing."""
    name = column.name
    if name in frame.columns:
        return frame[name]
    if column.derive is not None and not missing_sources(frame, column.derive):
        of = " and ".join(column.derive.of)
        tally.tell(f"{name} was derived: {column.derive.how} of {of}", column=name)
        return derived(frame, column, schema, translation, tally)
    if schema.missing_columns != "impute" or column.gaps == "refuse" or column.kind in ("text", "image"):
        raise DataError(
            f"{origin_of(frame).name}: the column {name!r} is not there, and the schema asks for it"
        )
    tally.tell(f"{name} is not recorded here: every value is marked missing", column=name)
    return pd.Series(np.full(len(frame), np.nan), index=frame.index)


def missing_sources(frame: pd.DataFrame, how: Derivation) -> list[str]:
    """The columns that a derivation needs and the file does not have."""
    return [name for name in how.of if name not in frame.columns]


def derived(
    frame: pd.DataFrame, column: Column, schema: Schema, translation: Translation, tally: EncodingTally
) -> pd.Series[Any]:
    """A column that follows from others; a gap in a source is a gap here.

    A source that the site has in another unit than the schema is converted first.
    """
    how = column.derive
    assert how is not None
    if how.how in ("days", "years"):
        first, second = (
            parse_dates(frame, frame[name], name, (), _date_format(frame, name, column, translation, tally))
            for name in how.of
        )
        days = (second - first).dt.total_seconds() / 86400
        return days if how.how == "days" else days / 365.25
    meant = dict(zip(how.of, BMI_UNITS, strict=True)) if how.how == "bmi" else {}
    meant |= {c.name: c.unit for c in schema.columns if c.unit}
    sources = []
    for name in how.of:
        numbers = as_numbers(frame, frame[name], Column(name, range=(-1e300, 1e300), identifying=False))
        if (unit := translation.units.get(name, "")) and unit != meant.get(name, ""):
            numbers = converter(unit, meant.get(name, ""), name)(numbers)
        sources.append(numbers)
    with np.errstate(divide="ignore", invalid="ignore"):
        if how.how == "sum":
            values = np.sum(sources, axis=0)
        elif how.how == "difference":
            values = sources[0] - sources[1]
        elif how.how == "ratio":
            values = sources[0] / sources[1]
        else:
            values = sources[0] / (sources[1] / 100) ** 2
    return pd.Series(np.where(np.isfinite(values), values, np.nan), index=frame.index)


def _date_format(
    frame: pd.DataFrame, name: str, column: Column, translation: Translation, tally: EncodingTally
) -> str:
    """The schema's format of a date, or a guess from the whole column, which is reported."""
    if column.date_format or not translation.guess_dates:
        return column.date_format
    form = guessed_date_format(frame, frame[name], name, column.missing)
    if form:
        tally.tell(
            f'{name}: dates were read as {form}, a guess from all of them; a node needs date_format = "{form}" in the schema',
            column=column.name,
        )
    return form


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
    frame: pd.DataFrame,
    series: pd.Series[Any],
    column: Column,
    translation: Translation,
    tally: EncodingTally,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    name = column.name
    if column.kind == "date" and name in frame.columns:
        numbers = as_dates(frame, series, column, _date_format(frame, name, column, translation, tally))
    else:
        numbers, unit = as_numbers(frame, series, column), translation.units.get(name, "")
        if unit and unit != column.unit:
            numbers = converter(unit, column.unit, column.name)(numbers)
    gaps = np.isnan(numbers)
    low, high = column.range or (-np.inf, np.inf)
    if column.scale == "log" and column.range is None:
        low = np.nextafter(0, 1)
    outside = ~gaps & ((numbers < low) | (numbers > high))
    if outside.any():
        if column.outside == "refuse":
            slip = likely_slip(numbers[~gaps], column)
            words = f"{numbers[outside][0]:g} is not within {low:g} … {high:g} {column.unit}".rstrip()
            words += f" ({counted(outside.sum(), 'such value')}). "
            words += slip.sentence if slip else 'If that is an error, say outside = "missing" in the schema.'
            raise BadRows(frame, outside, name, words)
        if column.outside == "missing":
            tally.tell(f"{name}: ", outside.sum(), "impossible value", " taken as missing", name)
            numbers = np.where(outside, np.nan, numbers)
            gaps = gaps | outside
        else:
            tally.tell(f"{name}: ", outside.sum(), "value", " set to the end of the range", name)
            numbers = np.where(gaps, np.nan, np.clip(numbers, low, high))
    return numbers, gaps


def _one_hot(
    frame: pd.DataFrame, series: pd.Series[Any], column: Column, tally: EncodingTally
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    decimal = origin_of(frame).decimal
    own, kinds = kinds_of(
        series, column.missing, decimal
    )  # each different value once; the last stands for a gap
    if column.prefix:
        kinds = np.array([None if k is None else k[: column.prefix] for k in kinds], dtype=object)
    words = (*column.categories, *(said for said, _ in column.spellings))
    texts = pd.Series(as_words(kinds, words, decimal), dtype=object)
    if column.spellings:
        texts = texts.replace(dict(column.spellings))
    places = {c: i for i, c in enumerate(column.categories)}
    empty = texts.isna().to_numpy()
    gaps = empty[own]
    codes = np.array([-1 if empty[i] else places.get(t, -2) for i, t in enumerate(texts)])[own]
    width = len(column.categories)
    if (strange := codes == -2).any():
        if column.unknown == "refuse":
            new = sorted({str(texts[i]) for i in np.unique(own[strange])})
            message = f"{texts[own[strange][0]]!r} is not a category of the schema ({', '.join(column.categories)}); "
            message += f"not known: {some(new)} in {strange.sum()} records. "
            message += 'Add it, give its `spellings`, or say unknown = "missing".'
            raise BadRows(frame, strange, column.name, message)
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
