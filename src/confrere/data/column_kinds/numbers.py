"""Numbers and dates: scaled by the schema's interval alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.data.column_kinds import (
    HIGH,
    LOW,
    Column,
    ColumnKind,
    Encoding,
    Fields,
    Translation,
    column_kind,
)
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.units import converter, likely_slip
from confrere.data.read.table_origin import BadRows, counted
from confrere.data.read.values import as_dates, as_numbers, guessed_date_format

LIMIT = 5.0
"""Encoded numbers are held within ±LIMIT: five times the half-width of the usual interval."""


@column_kind("number")
class NumberColumn(ColumnKind):
    """A quantity with a plausible range."""

    imputed = True
    quantity = True
    takes = ("marks",)
    example = "[0, 120]"

    def problems(self, column: Column) -> list[str]:
        out = []
        if column.range is None and column.usual is None:
            out.append(
                f"a {column.kind} needs a plausible range, for example range = {self.example}: "
                "it may not come from the records"
            )
        if isinstance(column.typical, str):
            out.append(f"typical = {column.typical!r} must be a number")
        return out

    def features(self, column: Column) -> tuple[str, ...]:
        name = column.name
        return (name, name + HIGH, name + LOW) if column.marks else (name,)

    @property
    def only_scales(self) -> bool:
        own = type(self)
        return own.read is NumberColumn.read and own.encode is NumberColumn.encode

    def read(self, fields: Fields) -> NDArray[np.float64]:
        """The numbers in the unit of the schema, NaN where missing."""
        column = fields.column
        numbers = as_numbers(fields.frame, fields.series, column)
        unit = fields.translation.units.get(column.name, "")
        return converter(unit, column.unit, column.name)(numbers) if unit and unit != column.unit else numbers

    def encode(self, fields: Fields) -> Encoding:
        column = fields.column
        numbers, gaps = _plausible(fields, self.read(fields))
        values = scaled(numbers, column)[:, None]
        values[gaps] = 0.0 if column.typical is None else scaled(np.array([float(column.typical)]), column)[0]
        if column.marks:
            values = np.concatenate([values, values > 1.0, values < -1.0], axis=1)
        return values, gaps


@column_kind("date")
class DateColumn(NumberColumn):
    """A date as coarse as the schema says, in years."""

    quantity = False
    takes = ("coarsen",)
    example = "[1990, 2030] (years)"

    def problems(self, column: Column) -> list[str]:
        out = super().problems(column)
        if not column.coarsen and column.identifying is not False:
            out.append('a date identifies people: coarsen it (coarsen = "year"), or set identifying = false')
        return out

    def read(self, fields: Fields) -> NDArray[np.float64]:
        column, frame = fields.column, fields.frame
        if column.name not in frame.columns:  # derived, or missing at this site
            return super().read(fields)
        form = date_format(frame, column.name, column, fields.translation, fields.tally)
        return as_dates(frame, fields.series, column, form)


def scaled(numbers: NDArray[np.float64], column: Column) -> NDArray[np.float64]:
    """(value − centre) / half-width of the usual interval, on the column's scale, within ±LIMIT."""
    low, high = column.bounds
    if column.scale == "log":
        low, high = np.log(low), np.log(high)
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = np.log(numbers)
    out = (numbers - (low + high) / 2) / ((high - low) / 2)
    return np.asarray(np.clip(out, -LIMIT, LIMIT))


def date_format(
    frame: pd.DataFrame, name: str, column: Column, translation: Translation, tally: EncodingTally
) -> str:
    """The schema's format of a date, or a guess from the whole column, which is reported."""
    if column.date_format or not translation.guess_dates:
        return column.date_format
    form = guessed_date_format(frame, frame[name], name, column.missing)
    if form:
        tally.note(
            f'{name}: dates were read as {form}, a guess from all of them; a node needs date_format = "{form}" in the schema',
            column=column.name,
        )
    return form


def _plausible(fields: Fields, numbers: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers and the gaps after values outside of the range were handled as the schema says."""
    column, tally, name, gaps = fields.column, fields.tally, fields.column.name, np.isnan(numbers)
    low, high = column.range or (-np.inf, np.inf)
    if column.scale == "log" and column.range is None:
        low = np.nextafter(0, 1)
    outside = ~gaps & ((numbers < low) | (numbers > high))
    if not outside.any():
        return numbers, gaps
    if column.outside == "refuse":
        slip = likely_slip(numbers[~gaps], column)
        words = f"{numbers[outside][0]:g} is not within {low:g} … {high:g} {column.unit}".rstrip()
        words += f" ({counted(outside.sum(), 'such value')}). "
        words += slip.sentence if slip else 'If that is an error, set outside = "missing" in the schema.'
        raise BadRows(fields.frame, outside, name, words)
    if column.outside == "missing":
        tally.note(f"{name}: ", outside.sum(), "impossible value", " taken as missing", name)
        return np.where(outside, np.nan, numbers), gaps | outside
    tally.note(f"{name}: ", outside.sum(), "value", " set to the end of the range", name)
    return np.where(gaps, np.nan, np.clip(numbers, low, high)), gaps
