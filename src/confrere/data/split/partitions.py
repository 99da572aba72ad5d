"""Partitions: ways to divide one set of records among simulated sites that differ to a chosen degree.

Every way is a function of people, sites, rng and its own options. No patient is at two sites.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.core.registry import nearest
from confrere.data.column_kinds import HIGH, LOW, MISSING
from confrere.data.records import Records

Indices = NDArray[np.int64]
Generator = np.random.Generator


@dataclass(frozen=True)
class People:
    """One row for each patient: the class, and the inputs of the first record; `names` say what the inputs are.

    A number counts as the quarter of all records that it lies in, several labels as the first of them that is yes.
    """

    classes: Indices
    inputs: NDArray[np.float32]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.classes)


def partition(
    records: Records,
    how: str,
    sites: int,
    seed: int,
    *,
    records_per_site: int = 0,
    names: Sequence[str] = (),
    **options: Any,
) -> list[Records]:
    """Cut into sites: `how` names one of PARTITIONS, `options` are that function's own.

    `records_per_site` makes all sites equally large; `names` say what the numbers of a record are.
    """
    if how not in PARTITIONS:
        raise StudyError(f"partition = {how!r}: known are {', '.join(PARTITIONS)}")
    known = list(inspect.signature(PARTITIONS[how]).parameters)[3:]
    for option in options:
        if option not in known:
            raise StudyError(
                f"partition {how!r} has no option {option!r}; it has {', '.join(known) or 'none'}"
            )
    if sites < 1:
        raise StudyError(f"sites = {sites}: there must be at least one")
    rng = np.random.default_rng([seed, 0x517E5])
    units = _units(records)
    first = np.unique(units, return_index=True)[1]
    people = People(_classes(records, units, len(first)), records.inputs[first].numpy(), tuple(names))
    if how == "p_major" and records_per_site:
        options["records"] = records_per_site
    chosen = PARTITIONS[how](people, sites, rng, **options)
    if records_per_site:
        chosen = [_few(members, records_per_site, rng, k) for k, members in enumerate(chosen)]
    _require_disjoint(chosen, len(people))
    out = []
    for members in chosen:
        inside = np.zeros(len(people), dtype=bool)
        inside[members] = True
        out.append(records.select(np.flatnonzero(inside[units]).tolist()))
    return out


def by_column(values: Sequence[object]) -> dict[str, Indices]:
    """One site for each value of a column, in the order in which they appear."""
    out: dict[str, list[int]] = {}
    for i, value in enumerate(values):
        out.setdefault(str(value), []).append(i)
    return {name: np.array(members, dtype=np.int64) for name, members in out.items()}


def iid(people: People, sites: int, rng: Generator) -> list[Indices]:
    """All sites alike and equally large."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(people)), sites)]


def p_major(
    people: People, sites: int, rng: Generator, p: float = 0.8, records: int = 0, repeat: bool = False
) -> list[Indices]:
    """Each site has one class in the share `p`; the rest comes from the other classes alike (Kalra, Wen et al. 2023).

    Without `records`, sites are as large as the rarest majority class allows. No class is the majority of two sites
    while another one is of none; with `repeat` each site draws its own, as the published program does, so that
    several sites may share one and some classes are rare everywhere.
    """
    _between("p", p, 0.0, 1.0)
    kinds, available = np.unique(people.classes, return_counts=True)
    majors = [int(c) for c in rng.choice(kinds, sites)] if repeat else _majors(kinds, sites, rng)
    if records:
        return _drawn(people, majors, rng, p, records)
    wanted = np.array([majors.count(int(c)) * p for c in kinds])
    most = int(min(len(people) / sites, *(available[wanted > 0] / wanted[wanted > 0])))
    while most > 1:
        try:
            return _drawn(people, majors, rng, p, most)
        except DataError:
            most = int(most * 0.95)
    raise DataError(f"{len(people)} records are too few for {sites} sites with a class in the share {p:g}")


def _drawn(people: People, majors: list[int], rng: Generator, p: float, count: int) -> list[Indices]:
    kinds = [int(c) for c in np.unique(people.classes)]
    left = {c: [int(i) for i in rng.permutation(np.flatnonzero(people.classes == c))] for c in kinds}
    out = []
    for k, major in enumerate(majors):
        others = [c for c in kinds if c != major]
        drawn = rng.choice(others, size=count - round(p * count)) if others else np.zeros(0, dtype=np.int64)
        wanted = {major: count - len(drawn), **{c: int((drawn == c).sum()) for c in others}}
        members: list[int] = []
        for c, many in wanted.items():
            if many > len(left[c]):
                raise DataError(
                    f"site {k + 1} of {len(majors)} needs {many} records of class {c}, "
                    f"and {len(left[c])} are left; ask for fewer sites or fewer records per site"
                )
            members += left[c][:many]
            del left[c][:many]
        out.append(np.array(sorted(members), dtype=np.int64))
    return out


def _majors(kinds: Indices, sites: int, rng: Generator) -> list[int]:
    """Classes in a random order, each again only after all the others."""
    rounds = -(-sites // len(kinds))
    return [int(c) for _ in range(rounds) for c in rng.permutation(kinds)][:sites]


def dirichlet(
    people: People, sites: int, rng: Generator, concentration: float = 0.5, least: int = 1
) -> list[Indices]:
    """The share of each class at each site is drawn from Dirichlet(concentration); small is unlike."""
    if concentration <= 0:
        raise StudyError(f"concentration = {concentration}: it must be above 0")
    for _ in range(1000):
        out: list[list[int]] = [[] for _ in range(sites)]
        for c in np.unique(people.classes):
            members = rng.permutation(np.flatnonzero(people.classes == c))
            shares = rng.dirichlet(np.full(sites, concentration))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
            for site, part in zip(out, np.split(members, cuts), strict=True):
                site.extend(int(i) for i in part)
        if min(map(len, out)) >= least:
            return [np.array(sorted(site), dtype=np.int64) for site in out]
    raise DataError(
        f"no Dirichlet({concentration:g}) split of {len(people)} patients over {sites} sites leaves each "
        f"at least {least}; ask for fewer sites or a larger concentration"
    )


def label(people: People, sites: int, rng: Generator, classes_per_site: int = 1) -> list[Indices]:
    """Each site has only a few classes; a class is shared evenly by the sites that have it."""
    kinds = np.unique(people.classes)
    if not 1 <= classes_per_site <= len(kinds):
        raise StudyError(f"classes_per_site = {classes_per_site}: there are {len(kinds)} classes")
    deck = _majors(kinds, sites * classes_per_site, rng)
    hands = [set(deck[k * classes_per_site : (k + 1) * classes_per_site]) for k in range(sites)]
    for hand in hands:  # a hand over the edge of two shuffles may hold a class twice
        while len(hand) < classes_per_site:
            hand.add(int(rng.choice([c for c in kinds if int(c) not in hand])))
    out: list[list[int]] = [[] for _ in range(sites)]
    for c in kinds:
        holders = [k for k in range(sites) if int(c) in hands[k]]
        members = rng.permutation(np.flatnonzero(people.classes == c))
        if holders:
            for k, part in zip(holders, np.array_split(members, len(holders)), strict=True):
                out[k].extend(int(i) for i in part)
    return [np.array(sorted(site), dtype=np.int64) for site in out]


def given(people: People, sites: int, rng: Generator, counts: Sequence[Sequence[int]] = ()) -> list[Indices]:
    """Each site has a stated number of records of each class: `counts` has a list for each site, with a number for each class.

    Without `counts` every site has as many of each class as there are for all of them.
    """
    kinds, available = np.unique(people.classes, return_counts=True)
    if not counts:
        counts = [[int(n) // sites for n in available]] * sites
    if len(counts) != sites or any(len(row) != len(kinds) or min(row) < 0 for row in counts):
        raise StudyError(
            f"counts has a list for each of the {sites} sites, with a number for each of the {len(kinds)} classes"
        )
    out: list[list[int]] = [[] for _ in range(sites)]
    for at, c in enumerate(kinds):
        members = rng.permutation(np.flatnonzero(people.classes == c))
        wanted = [int(row[at]) for row in counts]
        if sum(wanted) > len(members):
            raise DataError(
                f"counts asks for {sum(wanted)} records of class {c}, and there are {len(members)}"
            )
        for site, part in zip(out, np.split(members, np.cumsum(wanted)), strict=False):
            site.extend(int(i) for i in part)
    return [np.array(sorted(site), dtype=np.int64) for site in out]


def held_out(records: Records, count: int, seed: int) -> tuple[Records, Records]:
    """The records without, and a common test of about `count` records with as many patients of each class."""
    rng = np.random.default_rng([seed, 0xC0330])
    units = _units(records)
    people = int(units.max()) + 1
    classes = _classes(records, units, people)
    kinds = np.unique(classes)
    test = np.zeros(people, dtype=bool)
    for c in kinds:
        members = np.flatnonzero(classes == c)
        each = count // len(kinds)
        if each >= len(members):
            raise DataError(f"a common test of {count} leaves no record of class {c} to learn from")
        test[rng.choice(members, size=each, replace=False)] = True
    inside = test[units]
    return records.select(np.flatnonzero(~inside).tolist()), records.select(np.flatnonzero(inside).tolist())


def feature(
    people: People, sites: int, rng: Generator, column: int | str = 0, strength: float = 1.0
) -> list[Indices]:
    """Sites see different ranges of one feature (by name or place); `strength` 0 is iid, 1 cuts the sorted records."""
    _between("strength", strength, 0.0, 1.0)
    flat = people.inputs.reshape(len(people), -1)
    if isinstance(column, str):
        if column not in people.names:
            raise StudyError(
                f"column = {column!r}: no number of a record is called so{nearest(column, people.names)}"
            )
        column = people.names.index(column)
    if not 0 <= column < flat.shape[1]:
        raise StudyError(f"column = {column}: a record has {flat.shape[1]} numbers")
    rank = np.argsort(np.argsort(flat[:, column] + rng.uniform(0, 1e-6, len(people)))) / max(len(people), 1)
    position = strength * rank + (1 - strength) * rng.uniform(size=len(people))
    return [np.sort(part) for part in np.array_split(np.argsort(position), sites)]


def size(people: People, sites: int, rng: Generator, ratio: float = 2.0, least: int = 2) -> list[Indices]:
    """All sites alike in kind; each is `ratio` times as large as the next."""
    if ratio < 1:
        raise StudyError(f"ratio = {ratio}: it must be 1 or more")
    shares = ratio ** -np.arange(sites, dtype=np.float64)
    cuts = np.round(np.cumsum(shares / shares.sum())[:-1] * len(people)).astype(int)
    out = [np.sort(part) for part in np.split(rng.permutation(len(people)), cuts)]
    if min(map(len, out)) < least:
        raise DataError(
            f"the smallest of {sites} sites would have {min(map(len, out))} patients; lower ratio"
        )
    return out


def missing(people: People, sites: int, rng: Generator) -> list[Indices]:
    """All sites alike; use `blank` on each afterwards, so that they lack different things."""
    return iid(people, sites, rng)


def inequality(
    people: People,
    sites: int,
    rng: Generator,
    degree: float = 0.5,
    of: str = "label",
    column: int | str = 0,
) -> list[Indices]:
    """From all alike (`degree` 0) to as unlike as can be (1): one knob for each way in which data sets are unequal.

    Of labels: each patient goes home, to the site of the own class, with probability `degree`, and else anywhere. Of a
    feature: as `feature` with that strength. Of size: each site has the part 1 − `degree` of the records of the one
    before. Of missing values: sites alike, of which each then lacks that share of some columns (see `split.redistribute`).
    """
    _between("degree", degree, 0.0, 1.0)
    if of == "feature":
        return feature(people, sites, rng, column, degree)
    if of == "size":
        if degree == 1:
            raise StudyError(
                'degree = 1: with of = "size" all records would be at one site; it must be below 1'
            )
        return size(people, sites, rng, 1 / (1 - degree))
    if of == "missing":
        return iid(people, sites, rng)
    if of != "label":
        raise StudyError(f"of = {of!r}: inequality is of label, feature, size or missing")
    kinds, own = np.unique(people.classes, return_inverse=True)
    homes = [[k for k in range(sites) if k % len(kinds) == c] or [c % sites] for c in range(len(kinds))]
    home = np.array([homes[c][int(rng.integers(len(homes[c])))] for c in own], dtype=np.int64)
    away = rng.integers(0, sites, len(people))
    place = np.where(rng.uniform(size=len(people)) < degree, home, away)
    return [np.flatnonzero(place == k) for k in range(sites)]


PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "iid": iid,
    "p_major": p_major,
    "dirichlet": dirichlet,
    "label": label,
    "given": given,
    "feature": feature,
    "size": size,
    "missing": missing,
    "inequality": inequality,
}


def blank(
    records: Records, features: Sequence[str], columns: Sequence[str], share: float, seed: int
) -> Records:
    """The records with a share of the values of some columns made missing: value 0, indicator 1."""
    _between("share", share, 0.0, 1.0)
    rng = np.random.default_rng([seed, 0xB1A4C])
    inputs = records.inputs.clone()
    for column in columns:
        if column + MISSING not in features:
            raise StudyError(f"the column {column!r} has no missing-value indicator; it cannot be blanked")
        names = (column, column + HIGH, column + LOW)
        own = [i for i, f in enumerate(features) if f in names or f.startswith(f"{column}=")]
        rows = torch.from_numpy(np.flatnonzero(rng.uniform(size=len(records)) < share))
        for i in own:
            inputs[rows, i] = 0.0
        inputs[rows, list(features).index(column + MISSING)] = 1.0
    return Records(inputs, records.targets, records.units)


def _units(records: Records) -> Indices:
    if records.units is None:
        return np.arange(len(records))
    return pd.factorize(records.units.numpy())[0].astype(np.int64)


def _classes(records: Records, units: Indices, count: int) -> Indices:
    out = np.zeros(count, dtype=np.int64)
    targets = records.targets
    if targets.dtype != torch.int64 and targets.dim() == 2 and targets.shape[1] > 1:
        yes = targets > 0.5
        kinds = torch.where(yes.any(1), yes.float().argmax(1) + 1, 0).numpy()
    elif targets.dtype != torch.int64:
        values = targets.reshape(-1).double().numpy()
        kinds = np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), values)
    else:
        kinds = targets.reshape(-1).numpy()
    np.maximum.at(out, units, kinds)
    return out


def _few(members: Indices, count: int, rng: Generator, site: int) -> Indices:
    if len(members) < count:
        raise DataError(f"site {site + 1} has {len(members)} patients where {count} were asked for")
    return np.sort(rng.choice(members, size=count, replace=False))


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise StudyError(f"{name} = {value:g}: it must be from {low:g} to {high:g}")


def _require_disjoint(parts: Sequence[Indices], count: int) -> None:
    seen = np.zeros(count, dtype=np.int64)
    for k, part in enumerate(parts):
        if not len(part):
            raise DataError(f"site {k + 1} of {len(parts)} would have no patient; ask for fewer sites")
        seen[part] += 1
    if (seen > 1).any():  # a mistake of a partition function, not of the data
        raise AssertionError("a patient is at two sites")
