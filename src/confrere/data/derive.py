"""Columns that a site does not have but that follow from those it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from confrere.data.schema import Column, Derivation, Schema
from confrere.data.units import converter
from confrere.data.values import as_numbers, parse_dates

BMI_UNITS = ("kg", "cm")


def missing_sources(frame: pd.DataFrame, how: Derivation) -> list[str]:
    """What would be needed and is not there."""
    return [name for name in how.of if name not in frame.columns]


def derived(frame: pd.DataFrame, how: Derivation, units: Mapping[str, str], schema: Schema) -> pd.Series[Any]:
    """The derived column; a gap in a source is a gap here.

    `units` says in which unit the site has a source where that is not the schema's: it is converted first.
    """
    if how.how in ("days", "years"):
        first, second = (parse_dates(frame, frame[name], name) for name in how.of)
        days = (second - first).dt.total_seconds() / 86400
        return days if how.how == "days" else days / 365.25
    meant = dict(zip(how.of, BMI_UNITS, strict=True)) if how.how == "bmi" else {}
    meant |= {c.name: c.unit for c in schema.columns if c.unit}
    sources = []
    for name in how.of:
        numbers = as_numbers(frame, frame[name], Column(name, range=(-1e300, 1e300), identifying=False))
        if (unit := units.get(name, "")) and unit != meant.get(name, ""):
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
