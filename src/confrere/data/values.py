"""Fields of a file as numbers, flags, dates and texts; whatever is none of these is named with its line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.delimited import GAPS
from confrere.data.origin import counted, place, some
from confrere.data.schema import Column

NO = ("0", "f", "false", "n", "no", "nein", "non", "absent", "negative", "-")
YES = ("1", "t", "true", "y", "yes", "ja", "oui", "si", "present", "positive", "+")


def as_text(series: pd.Series[Any], missing: tuple[str, ...] = ()) -> pd.Series[Any]:
    """Stripped strings, None where there is nothing; a whole number has no decimal point.

    Each different value is looked at once, so a column of few categories is quick however long it is.
    """
    codes, texts = kinds_of(series, missing)
    return pd.Series(texts[codes], index=series.index, dtype=object)


def kinds_of(
    series: pd.Series[Any], missing: tuple[str, ...] = ()
) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
    """Which of the different values each field has, and those values as `as_text` writes them.

    The last of the values is None, for fields with nothing in them; their code is −1, which counts from there.
    """
    codes, kinds = pd.factorize(series)
    gaps = {*GAPS, *missing}
    texts = np.empty(len(kinds) + 1, dtype=object)
    for i, kind in enumerate(kinds):
        text = _text(kind)
        texts[i] = None if text in gaps else text
    return codes, texts


def _text(x: Any) -> str:
    if isinstance(x, bool | np.bool_):
        return str(bool(x)).lower()
    if isinstance(x, int | float | np.number):
        return _number_text(float(x)) if not isinstance(x, int | np.integer) else str(int(x))
    return str(x).strip()


def _number_text(x: float) -> str:
    return str(int(x)) if abs(x) < 1e15 and x.is_integer() else repr(x)


def as_numbers(frame: pd.DataFrame, series: pd.Series[Any], column: Column) -> NDArray[np.float64]:
    """Numbers, NaN where missing; anything else is refused with its line."""
    if pd.api.types.is_bool_dtype(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    if pd.api.types.is_numeric_dtype(series):
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan).copy()
        for code in column.missing:
            if (value := _float(code)) is not None:
                numbers[numbers == value] = np.nan
    else:
        texts = as_text(series, column.missing)
        numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan).copy()
        wrong = np.isnan(numbers) & texts.notna().to_numpy()
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            kinds = sorted({str(t) for t in texts[wrong]})
            raise DataError(
                f"{place(frame, at, column.name)}: {texts.iloc[at]!r} is not a number "
                f"(not numbers: {some(kinds)}, {wrong.sum()} in all). If it means «not known», "
                "list it as `missing` in the schema."
            )
    if np.isinf(numbers).any():
        at = int(np.flatnonzero(np.isinf(numbers))[0])
        raise DataError(f"{place(frame, at, column.name)}: {numbers[at]} is not a finite number")
    return numbers


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def as_flags(
    frame: pd.DataFrame, series: pd.Series[Any], column: Column
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Zeros and ones, and where nothing is known."""
    own, texts = kinds_of(series, column.missing)
    if column.categories:
        known = {column.categories[0]: 0.0, column.categories[1]: 1.0}
        known.update({said: known[meant] for said, meant in column.spellings})
    else:
        known = {**dict.fromkeys(NO, 0.0), **dict.fromkeys(YES, 1.0)}
        texts = np.array([None if t is None else t.lower() for t in texts], dtype=object)
    empty = np.array([t is None for t in texts])
    values = np.array([known.get(t, np.nan) for t in texts], dtype=np.float64)[own]
    gaps: NDArray[np.bool_] = empty[own]
    strange = np.isnan(values) & ~gaps
    if strange.any():
        if column.unknown == "missing":
            return values, gaps | strange
        at = int(np.flatnonzero(strange)[0])
        raise DataError(
            f"{place(frame, at, column.name)}: {texts[own[at]]!r} is neither yes nor no "
            f'({counted(strange.sum(), "such value")}); say how they are written: categories = ["no", "yes"]'
        )
    return values, gaps


def as_dates(frame: pd.DataFrame, series: pd.Series[Any], column: Column) -> NDArray[np.float64]:
    """Years with a fraction, as coarse as the schema says, NaN where missing."""
    dates = parse_dates(frame, series, column.name, column.missing)
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
    frame: pd.DataFrame, series: pd.Series[Any], name: str, missing: tuple[str, ...] = ()
) -> pd.Series[Any]:
    """Dates written year first, or in one unmistakable order throughout the column."""
    if pd.api.types.is_datetime64_any_dtype(series):
        return series
    texts = as_text(series, missing)
    if pd.api.types.is_numeric_dtype(series) and texts.dropna().str.fullmatch(r"\d{4}").all():
        return pd.to_datetime(texts, format="%Y", errors="coerce")
    best: pd.Series[Any] | None = None
    fits = []
    for form in ("ISO8601", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d"):
        tried = pd.to_datetime(texts, format=form, errors="coerce", utc=False)
        if not (tried.isna() & texts.notna()).any():
            fits.append(form)
            best = tried if best is None else best
    if best is not None and not ({"%d/%m/%Y", "%m/%d/%Y"} <= set(fits) and texts.notna().any()):
        return best
    if best is not None:
        raise DataError(
            f"{place(frame, 0, name)}: {texts.dropna().iloc[0]!r} may be day first or month first; "
            "write dates as 2024-12-31"
        )
    iso = pd.to_datetime(texts, format="ISO8601", errors="coerce")
    at = int(np.flatnonzero((iso.isna() & texts.notna()).to_numpy())[0])
    raise DataError(f"{place(frame, at, name)}: {texts.iloc[at]!r} is not a date; write dates as 2024-12-31")
