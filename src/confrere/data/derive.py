"""Columns that a site does not have but that follow from those it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from confrere.data.schema import Column, Derivation
from confrere.data.values import as_numbers, parse_dates


def missing_sources(frame: pd.DataFrame, how: Derivation) -> list[str]:
    """What would be needed and is not there."""
    return [name for name in how.of if name not in frame.columns]


def derived(frame: pd.DataFrame, how: Derivation) -> pd.Series[Any]:
    """The derived column; a gap in a source is a gap here."""
    if how.how in ("days", "years"):
        first, second = (parse_dates(frame, frame[name], name) for name in how.of)
        days = (second - first).dt.total_seconds() / 86400
        return days if how.how == "days" else days / 365.25
    sources = [
        as_numbers(frame, frame[name], Column(name, range=(-1e300, 1e300), identifying=False))
        for name in how.of
    ]
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
