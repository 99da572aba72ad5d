"""Tables that need more than their declaration in sets.toml: a column computed, records left out, another file format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

from confrere.core.errors import StudyError
from confrere.core.seeds import derive
from confrere.data.bundled.opening import open_by_site, open_cut
from confrere.data.bundled.sets import BundledSet
from confrere.data.federation import Opening
from confrere.data.records import Federation, Records, SiteData

TINY_SOURCE = "WEST"
"""The referral source of the thyroid patients that has three patients."""
DIALYSIS_MONTHS = 45
"""How long the dialysis study followed its patients."""
TITANIC_EDGES = (0.0, 18.0, 30.0, 45.0, 200.0)
TITANIC_GROUPS = ("under 18", "18 to 29", "30 to 44", "45 and older")
"""The age groups of the Titanic's passengers, unless an option states others."""
INVENTED_GENDER = "gender (invented)"
"""A feature that misleads at every site, as a published experiment adds it to breast-original."""


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


def titanic(
    own: BundledSet,
    opening: Opening,
    *,
    by: str = "age",
    degree: float = 1.0,
    ages: list[int] | None = None,
) -> Federation:
    """The Titanic's passengers by age group (or class, or sex).

    `degree` 1: every group is a site of its own; 0: every passenger is at a random site.
    `ages` are the ages at which a group begins, but the first: [21, 41] for three groups.
    """
    if by not in ("age", "class", "sex"):
        raise StudyError(f'titanic: by = {by!r}; known are "age", "class" and "sex"')
    if not 0 <= degree <= 1:
        raise StudyError(f"titanic: degree = {degree:g}; it must be from 0 to 1")
    frame = own.frame()
    if by == "age":
        unknown = frame["age"].isna()
        note = f"{int(unknown.sum())} passengers of unknown age belong to no group and are left out"
        opening = replace(opening, notes=(note,))
        frame = frame[~unknown].copy()
        edges, names = (TITANIC_EDGES, TITANIC_GROUPS) if ages is None else _age_groups(ages)
        frame["group"] = np.array(names)[np.searchsorted(edges, frame["age"], side="right") - 1]
    else:
        frame["group"] = frame["pclass" if by == "class" else "sex"].astype(str)
    rng = np.random.default_rng([opening.seed, 0x717A])
    away = rng.uniform(size=len(frame)) >= degree
    anywhere = rng.choice(sorted(frame["group"].unique()), size=len(frame))
    frame["group"] = np.where(away, anywhere, frame["group"])
    return open_by_site(own, opening, frame)


def _age_groups(ages: list[int]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Edges and names of age groups."""
    if not ages or ages != sorted(set(ages)) or not 0 < ages[0] <= ages[-1] < 100:
        raise StudyError(
            f"titanic: ages = {ages}; they are years between 0 and 100, each above the one before"
        )
    between = tuple(f"{low} to {high - 1}" for low, high in pairwise(ages))
    return (0.0, *map(float, ages), 200.0), (f"under {ages[0]}", *between, f"{ages[-1]} and older")


def with_gender(federation: Federation, bias: float, seed: int) -> Federation:
    """The federation with one more feature, 1 for male.

    At every other site, beginning with the first, `bias` of the positive records are male and as many of the negative ones
    female; at the others it is the other way round. In the common test, gender says nothing.
    """
    if not 0.5 <= bias <= 1:
        raise StudyError(f"gender_bias = {bias:g}: it is a share from 0.5 (says nothing) to 1")
    sites: dict[str, SiteData] = {}
    for k, (name, site) in enumerate(sorted(federation.sites.items())):
        share = bias if k % 2 == 0 else 1 - bias
        train, validation, test = (
            _invented(records, (1 - share, share), derive(seed, "gender", name, part))
            for part, records in (("train", site.train), ("validation", site.validation), ("test", site.test))
        )
        common = site.common_test
        if common is not None:  # the same for all sites
            common = _invented(common, (0.5, 0.5), derive(seed, "gender", "common"))
        sites[name] = replace(site, train=train, validation=validation, test=test, common_test=common)
    features = (*federation.task.features, INVENTED_GENDER)
    task = replace(federation.task, inputs=(federation.task.inputs[0] + 1,), features=features)
    note = f"a gender was invented: {bias:.0%} of the malignant cases are male at every other site, female at the others"
    # the schema does not describe the invented column
    return replace(federation, sites=sites, task=task, schema=None, notes=(*federation.notes, note))


def _invented(records: Records, male: Sequence[float], seed: int) -> Records:
    chance = torch.tensor(male)[records.targets]
    drawn = torch.rand(len(records), generator=torch.Generator().manual_seed(seed % 2**63)) < chance
    return Records(torch.cat([records.inputs, drawn[:, None].float()], 1), records.targets, records.units)
