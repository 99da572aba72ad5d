"""Tables that need more than their declaration in sets.toml: a column computed, records left out, another file format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from confrere.core.errors import StudyError
from confrere.data.bundled.invented_gender import with_gender
from confrere.data.bundled.opening import open_by_site, open_cut
from confrere.data.bundled.sets import BundledSet
from confrere.data.federation import Opening
from confrere.data.records import Federation

TINY_SOURCE = "WEST"
"""The referral source of the thyroid patients that has three patients."""
DIALYSIS_MONTHS = 45
"""How long the dialysis study followed its patients."""


def thyroid(own: BundledSet, opening: Opening, *, partition: str = "", **how: Any) -> Federation:
    """By referral source; with `partition`, cut into rehearsal sites instead."""
    frame = own.frame()
    if partition:
        return open_cut(own, opening, frame, partition=partition, **how)
    for option in how:
        raise StudyError(
            f"the data set 'thyroid' has no option {option!r}; with partition = … it has those of the partition"
        )
    small = frame["referral_source"] == TINY_SOURCE
    note = f"the referral source {TINY_SOURCE} has {int(small.sum())} patients and is left out"
    return open_by_site(own, replace(opening, notes=(note,)), frame[~small])


def dialysis(
    own: BundledSet, opening: Opening, *, least: int | None = None, horizon: float = 6.0
) -> Federation:
    """Without patients who entered too late to be followed for `horizon` months."""
    frame = own.frame()
    least = own.least if least is None else least
    late = frame["num_begin"] + horizon > DIALYSIS_MONTHS
    small = frame["fac_center"].map(frame["fac_center"].value_counts()) < least
    notes = (
        f"{int(late.sum()):,} patients entered too late for {horizon:g} months of follow-up and are left out",
        f"{frame['fac_center'][small].nunique()} centres with fewer than {least} patients are left out",
    )
    schema = replace(own.schema, label=replace(own.schema.label, horizon=horizon))
    return open_by_site(own, replace(opening, notes=notes), frame[~late & ~small], schema)


def aids(own: BundledSet, opening: Opening, *, least: int = 0) -> Federation:
    """The time of follow-up is the difference of two dates."""
    frame = own.frame()
    frame["followed"] = frame["death"] - frame["diag"]
    return open_by_site(own, opening, frame, least=least)


def breast_original(own: BundledSet, opening: Opening, *, gender_bias: float = 0.0, **how: Any) -> Federation:
    """`gender_bias` adds an invented gender that misleads: see `with_gender`."""
    opened = open_cut(own, opening, own.frame(), **how)
    return with_gender(opened, gender_bias, opening.seed) if gender_bias else opened


def breast_diagnostic(own: BundledSet, opening: Opening, **how: Any) -> Federation:
    """The file has a first line of counts in place of column names."""
    names = [*(column.name for column in own.schema.columns), own.schema.label.column]
    frame = pd.read_csv(own.file(), header=None, skiprows=1, names=names)
    return open_cut(own, opening, frame, **how)
