"""Parse the fields of a file as numbers, flags, dates and texts; an error names the line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.core.registry import nearest
from confrere.data.column_kinds import Column
from confrere.data.read.delimited import GAPS, parse_numbers
from confrere.data.read.table_origin import BadRows, counted, origin_of, place, some
from confrere.data.split.date_cut import DateCut

NO = ("0", "f", "false", "n", "no", "nein", "non", "absent", "negative", "-")
TRUTH = {"false": 0.0, "true": 1.0}
MOST_DIGITS = 1000
"""Longer whole numbers are not plausible ids; they are distinguished without being written out."""
YES = ("1", "t", "true", "y", "yes", "ja", "oui", "si", "present", "positive", "+")


def as_text(series: pd.Series[Any], missing: tuple[str, ...] = ()) -> pd.Series[Any]:
    """Stripped strings, None where there is nothing; a whole number has no decimal point.

    Each different value is looked at once, so a column of few categories is quick however long it is.
    """
    codes, texts = kinds_of(series, missing)
    return pd.Series(texts[codes], index=series.index, dtype=object)


def kinds_of(
    series: pd.Series[Any], missing: tuple[str, ...] = (), decimal: str = "."
) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
    """Which of the different values each field has, and those values as `as_text` writes them.

    The last of the values is None, for fields with nothing in them; their code is −1, which counts from there.
    A missing code that is a number stands for every way of writing that number.
    """
    codes, texts, _ = _kinds(series, missing, decimal)
    return codes, texts


def _kinds(
    series: pd.Series[Any], missing: tuple[str, ...], decimal: str, numeric: bool = False
) -> tuple[NDArray[np.intp], NDArray[np.object_], NDArray[np.float64]]:
    """As `kinds_of`, and with `numeric` the number that each of the values is, or NaN."""
    codes, kinds = pd.factorize(series)
    gaps = {*GAPS, *missing}
    texts = np.empty(len(kinds) + 1, dtype=object)
    for i, kind in enumerate(kinds):
        text = _text(kind)
        texts[i] = None if text in gaps else text
    values = np.full(len(texts), np.nan)
    missing_values = _code_values(missing, decimal)
    if numeric or len(missing_values):
        values[:-1] = _values(list(kinds), decimal)
        texts[np.isin(values, missing_values)] = None
    return codes, texts, values


def numbers_or_texts(series: pd.Series[Any], decimal: str) -> tuple[NDArray[np.float64], NDArray[np.object_]]:
    """The number in each field, or NaN; and the texts of the fields, None where there is nothing."""
    if pd.api.types.is_numeric_dtype(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan), np.full(len(series), None, dtype=object)
    own, texts, values = _kinds(series, (), decimal, numeric=True)
    return values[own], texts[own]


def _values(kinds: list[Any], decimal: str) -> NDArray[np.float64]:
    """Numbers by value, texts as a text file's parser reads them; NaN for all else."""
    out = np.full(len(kinds), np.nan)
    written = []
    for i, kind in enumerate(kinds):
        if isinstance(kind, str):
            written.append(i)
        elif isinstance(kind, int | float | np.number | Decimal) and not isinstance(kind, bool):
            out[i] = float(kind)
    out[written] = parse_numbers([kinds[i] for i in written], decimal)
    return out


def _code_values(missing: tuple[str, ...], decimal: str) -> NDArray[np.float64]:
    found = np.concatenate([parse_numbers(missing, mark) for mark in {".", decimal}])
    return np.unique(found[~np.isnan(found)])


def as_words(texts: NDArray[np.object_], words: Iterable[str], decimal: str = ".") -> NDArray[np.object_]:
    """Each text as the schema's word for it, where it is one: as written, else the same number, else true or false in
    other letters. Two words that are the same number («1» and «01») are told apart as written only.

    >>> as_words(np.array(["1.0", "02", "3", None], dtype=object), ["01", "02"]).tolist()
    ['01', '02', '3', None]
    """
    known = list(dict.fromkeys(words))
    numbers = parse_numbers(known)
    by_value: dict[float, str | None] = {}
    truth: dict[str, str | None] = {}
    for word, number in zip(known, numbers.tolist(), strict=True):
        if not np.isnan(number):
            by_value[number] = None if number in by_value else word
        if (lower := word.lower()) in ("true", "false"):
            truth[lower] = None if lower in truth else word
    out = texts.copy()
    other = [i for i, text in enumerate(texts) if text is not None and text not in known]
    values = parse_numbers([texts[i] for i in other], decimal) if by_value else np.full(len(other), np.nan)
    for i, value in zip(other, values.tolist(), strict=True):
        out[i] = by_value.get(value) or truth.get(texts[i].lower()) or texts[i]
    return out


def _text(x: Any) -> str:
    if isinstance(x, bool | np.bool_):
        return str(bool(x)).lower()
    if isinstance(x, Decimal):
        if not x.is_finite() or x.adjusted() > MOST_DIGITS:
            return str(x)
        return str(int(x)) if x == x.to_integral_value() else repr(float(x))
    if isinstance(x, int) and x.bit_length() > 4 * MOST_DIGITS:
        return hex(x)  # Python refuses to write that many decimal digits
    if isinstance(x, int | float | np.number):
        return _number_text(float(x)) if not isinstance(x, int | np.integer) else str(int(x))
    return str(x).strip()


def _number_text(x: float) -> str:
    return str(int(x)) if abs(x) < 2**63 and x.is_integer() else repr(x)


def as_numbers(frame: pd.DataFrame, series: pd.Series[Any], column: Column) -> NDArray[np.float64]:
    """Numbers, NaN where missing; anything else is refused with its line."""
    decimal = origin_of(frame).decimal
    if pd.api.types.is_numeric_dtype(series):  # truth values are
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan).copy()
        if len(codes := _code_values(column.missing, decimal)):
            numbers[np.isin(numbers, codes)] = np.nan
    else:
        own, texts, values = _kinds(series, column.missing, decimal, numeric=True)
        for i, text in enumerate(texts):
            if text is None:
                values[i] = np.nan
            elif text.lower() in TRUTH:
                values[i] = TRUTH[text.lower()]
        numbers = values[own]
        wrong = (np.isnan(values) & (texts != None))[own]  # noqa: E711
        if wrong.any():
            kinds = sorted({str(t) for t in texts[np.unique(own[wrong])]})
            words = f"{texts[own[wrong][0]]!r} is not a number (not numbers: {some(kinds)}, {wrong.sum()} in all). "
            words += "If it means «not known», list it as `missing` in the schema."
            raise BadRows(frame, wrong, column.name, words)
    if (infinite := np.isinf(numbers)).any():
        raise BadRows(frame, infinite, column.name, f"{numbers[infinite][0]} is not a finite number")
    return numbers


def as_flags(
    frame: pd.DataFrame, series: pd.Series[Any], column: Column
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Zeros and ones, and where nothing is known."""
    decimal = origin_of(frame).decimal
    own, texts = kinds_of(series, column.missing, decimal)
    if column.categories:
        known = {column.categories[0]: 0.0, column.categories[1]: 1.0}
        known.update({written: known[meant] for written, meant in column.spellings})
    else:
        known = {**dict.fromkeys(NO, 0.0), **dict.fromkeys(YES, 1.0)}
        texts = np.array([None if t is None else t.lower() for t in texts], dtype=object)
    texts = as_words(texts, known, decimal)
    empty = np.array([t is None for t in texts])
    values = np.array([known.get(t, np.nan) for t in texts], dtype=np.float64)[own]
    gaps: NDArray[np.bool_] = empty[own]
    strange = np.isnan(values) & ~gaps
    if strange.any():
        if column.unknown == "missing":
            return values, gaps | strange
        words = f"{texts[own[strange][0]]!r} is neither yes nor no ({counted(strange.sum(), 'such value')}); "
        words += 'say how they are written: categories = ["no", "yes"]'
        raise BadRows(frame, strange, column.name, words)
    return values, gaps


def as_dates(
    frame: pd.DataFrame, series: pd.Series[Any], column: Column, form: str = ""
) -> NDArray[np.float64]:
    """Years with a fraction, as coarse as the schema says, NaN where missing."""
    dates = parse_dates(frame, series, column.name, column.missing, form)
    years = dates.dt.year.to_numpy(dtype=np.float64, na_value=np.nan)
    if column.coarsen == "decade":
        return np.asarray(np.floor(years / 10) * 10)
    if column.coarsen == "year":
        return np.asarray(years)
    months = dates.dt.month.to_numpy(dtype=np.float64, na_value=np.nan)
    if column.coarsen == "month":
        return np.asarray(years + (months - 1) / 12)
    return np.asarray(years + dates.dt.dayofyear.to_numpy(dtype=np.float64, na_value=np.nan) / 366)


def parse_dates(
    frame: pd.DataFrame,
    series: pd.Series[Any],
    name: str,
    missing: tuple[str, ...] = (),
    form: str = "",
    where: str = "the schema",
) -> pd.Series[Any]:
    """The date in each field, read by itself; `form` is the `date_format` that is stated in `where`."""
    if pd.api.types.is_datetime64_any_dtype(series):
        return series
    own, texts = kinds_of(series, missing)
    dates = [None if text is None else read_date(text, form) for text in texts]
    unread = np.array([date is None and text is not None for date, text in zip(dates, texts, strict=True)])
    wrong: NDArray[np.bool_] = unread[own]
    if wrong.any():
        words = f"{texts[own[wrong][0]]!r} is not a date{f' as {form}' if form else ''}; "
        words += f'write dates as 2024-12-31, or state date_format = "%d/%m/%Y" in {where}'
        raise BadRows(frame, wrong, name, words)
    return pd.Series(np.array(dates, dtype="datetime64[us]")[own], index=series.index)


YEAR_FIRST = ("%Y/%m/%d", "%Y-%m", "%Y")
DAY_FIRST = ("%d.%m.%Y", "%d-%m-%Y")
EITHER_FIRST = ("%d/%m/%Y", "%m/%d/%Y")
"""Day and month cannot be told apart in one field."""


def read_date(text: str, form: str = "") -> datetime | None:
    """The date that one field holds: as `form` says, else as ISO 8601 or in another form that has one meaning only.

    >>> read_date("2024-12-31"), read_date("31.12.2024"), read_date("31/12/2024")
    (datetime.datetime(2024, 12, 31, 0, 0), datetime.datetime(2024, 12, 31, 0, 0), None)
    """
    if form and (found := _strptime(text, form)):
        return found
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).replace(tzinfo=None)  # the time of day where it was written
    ways = YEAR_FIRST if form else (*YEAR_FIRST, *DAY_FIRST)
    return next((found for way in ways if (found := _strptime(text, way))), None)


def guessed_date_format(
    frame: pd.DataFrame, series: pd.Series[Any], name: str, missing: tuple[str, ...]
) -> str:
    """The order of day and month that all fields of a column fit; "" where each field can be read by itself.

    One field can change the answer, so a node does not ask.
    """
    if pd.api.types.is_datetime64_any_dtype(series):
        return ""
    texts = [text for text in kinds_of(series, missing)[1] if text is not None]
    if all(read_date(text) for text in texts):
        return ""
    fits = [form for form in EITHER_FIRST if all(_strptime(text, form) for text in texts)]
    if len(fits) > 1:
        raise DataError(
            f"{place(frame, 0, name)}: {texts[0]!r} may be day first or month first; write dates as 2024-12-31, or"
            ' state date_format = "%d/%m/%Y" (or "%m/%d/%Y") in the schema'
        )
    return fits[0] if fits else ""


def _strptime(text: str, form: str) -> datetime | None:
    with contextlib.suppress(ValueError):
        return datetime.strptime(text, form)
    return None


def later_records(frame: pd.DataFrame, cut: DateCut, described: Column | None) -> NDArray[np.bool_]:
    """For each record of a table, whether it is from the day of a split by date on. A record without a date is refused.

    `described` is the column of the dates in the schema, where it is one.
    """
    if cut.column not in frame.columns:
        known = [str(c) for c in frame.columns]
        raise DataError(
            f"{origin_of(frame).name}: the column {cut.column!r} of data.split.date_column is not there"
            f"{nearest(cut.column, known)}"
        )
    form = cut.form or (described.date_format if described else "")
    missing = described.missing if described else ()
    dates = parse_dates(frame, frame[cut.column], cut.column, missing, form, "data.split")
    dates = dates.dt.tz_localize(None) if dates.dt.tz is not None else dates
    unknown = dates.isna().to_numpy()
    if unknown.any():
        words = f"the record has no date ({counted(unknown.sum(), 'such record')})"
        raise BadRows(frame, unknown, cut.column, f"{words}; data.split.by_date needs one in every record")
    return np.array(dates >= pd.Timestamp(cut.day), dtype=bool)
