"""The passengers of the Titanic by age group: sites that are unequal to varying degrees."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from confrere.core.errors import StudyError
from confrere.data.bundled.opening import open_by_site
from confrere.data.bundled.sets import BundledSet
from confrere.data.federation import Opening
from confrere.data.records import Federation

EDGES = (0.0, 18.0, 30.0, 45.0, 200.0)
GROUPS = ("under 18", "18 to 29", "30 to 44", "45 and older")


def titanic(
    own: BundledSet,
    opening: Opening,
    *,
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
    frame = own.frame()
    if by == "age":
        unknown = frame["age"].isna()
        note = f"{int(unknown.sum())} passengers of unknown age belong to no group and are left out"
        opening = replace(opening, notes=(note,))
        frame = frame[~unknown].copy()
        edges, names = (EDGES, GROUPS) if ages is None else _groups(ages)
        frame["group"] = np.array(names)[np.searchsorted(edges, frame["age"], side="right") - 1]
    else:
        frame["group"] = frame["pclass" if by == "class" else "sex"].astype(str)
    rng = np.random.default_rng([opening.seed, 0x717A])
    away = rng.uniform(size=len(frame)) >= degree
    anywhere = rng.choice(sorted(frame["group"].unique()), size=len(frame))
    frame["group"] = np.where(away, anywhere, frame["group"])
    return open_by_site(own, opening, frame)


def _groups(ages: list[int]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Edges and names of age groups."""
    if not ages or ages != sorted(set(ages)) or not 0 < ages[0] <= ages[-1] < 100:
        raise StudyError(
            f"titanic: ages = {ages}; they are years between 0 and 100, each above the one before"
        )
    between = tuple(f"{low} to {high - 1}" for low, high in pairwise(ages))
    return (0.0, *map(float, ages), 200.0), (f"under {ages[0]}", *between, f"{ages[-1]} and older")
