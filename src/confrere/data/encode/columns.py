"""Encode one column of a frame as numbers, by the schema alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column, Derivation, Fields, Translation
from confrere.data.column_kinds.numbers import date_format
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.units import converter
from confrere.data.read.table_origin import BadRows, origin_of
from confrere.data.read.values import as_numbers, parse_dates
from confrere.data.schema import Schema

BMI_UNITS = ("kg", "cm")


def encode_column(
    frame: pd.DataFrame, column: Column, schema: Schema, translation: Translation, tally: EncodingTally
) -> tuple[NDArray[Any], int]:
    """The numbers of one column, and how many of its values are missing."""
    kind = column.traits
    series = pd.Series(dtype=object) if kind.branch else _series(frame, column, schema, translation, tally)
    values, gaps = kind.encode(Fields(frame, series, column, translation, tally))
    if gaps.any() and column.gaps == "refuse":
        raise BadRows(frame, gaps, column.name, 'is missing, and the schema says gaps = "refuse"')
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
        tally.note(f"{name} was derived: {column.derive.how} of {of}", column=name)
        return derived(frame, column, schema, translation, tally)
    if schema.missing_columns != "impute" or column.gaps == "refuse" or not column.traits.optional:
        raise DataError(
            f"{origin_of(frame).name}: the column {name!r} is not there, and the schema asks for it"
        )
    tally.note(f"{name} is not recorded here: every value is marked missing", column=name)
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
            parse_dates(frame, frame[name], name, (), date_format(frame, name, column, translation, tally))
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
