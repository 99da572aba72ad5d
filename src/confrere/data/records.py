"""Core data types: Records, SiteData, Card and Federation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from confrere.core.errors import DataError
from confrere.data import digests
from confrere.data.schema import Schema
from confrere.data.tasks import Task

Handling = Literal["imputed", "left out"]
"""How a column that a site lacks is handled: marked missing there, or used by no site."""


@dataclass(frozen=True)
class Records:
    """Encoded records of one site: PRIVATE, like everything that is computed from them.

    `inputs` is float32 [n, …]; `targets` int64 classes [n], float32 values [n] for regression, or
    float32 zeros and ones [n, labels] for multi-label tasks. `units` says which patient each record
    belongs to: int64 [n], a digest of the patient's id, so that it is the same in every export (a record
    without an id has a digest of its content). None means that each record is a patient of its own.
    `later` says which records are from the day of a split by date on: bool [n]; None without such a split.
    """

    inputs: Tensor
    targets: Tensor
    units: Tensor | None = None
    later: Tensor | None = None

    def __post_init__(self) -> None:
        n = self.inputs.shape[0]
        others = (self.targets, self.units, self.later)
        if any(part is not None and part.shape[0] != n for part in others):
            raise DataError(f"{n} inputs, {self.targets.shape[0]} targets: each record needs both")

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def select(self, indices: Tensor | Sequence[int]) -> Records:
        """These records, in this order."""
        at = torch.as_tensor(indices, dtype=torch.int64)
        units, later = (None if part is None else part[at] for part in (self.units, self.later))
        return Records(self.inputs[at], self.targets[at], units, later)

    @property
    def patients(self) -> int:
        """How many patients the records belong to."""
        return len(self) if self.units is None else int(torch.unique(self.units).numel())


def concatenate(parts: Sequence[Records]) -> Records:
    """All records one after the other; patients of different parts stay different patients."""
    if not parts:
        raise DataError("there are no records to put together")
    units: Tensor | None = None
    if any(p.units is not None for p in parts):
        apart = []
        for k, p in enumerate(parts):
            known = (
                digests.of_rows(p.inputs, p.targets) if p.units is None else p.units.numpy().view(np.uint64)
            )
            apart.append(digests.mixed(known + np.uint64(k * 0x9E3779B97F4A7C15 % 2**64)))
        units = torch.from_numpy(np.concatenate(apart).view(np.int64))
    return Records(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]), units)


def of_one_site(parts: Sequence[Records]) -> Records:
    """All records one after the other; a patient keeps its number over the parts."""
    units = None
    if parts[0].units is not None:
        units = torch.cat([p.units for p in parts if p.units is not None])
    return Records(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]), units)


def declared_count(records: int) -> int:
    """What a rehearsal takes for the declared size of a site that states none: two significant digits, halves up.

    It is a function of the records, so no node computes it: there the owner states the size at enrolment.

    >>> declared_count(5493), declared_count(71), declared_count(1), declared_count(956)
    (5500, 71, 1, 960)
    """
    if records < 100:
        return max(records, 1)
    step = 10 ** (math.floor(math.log10(records)) - 1)
    return int((records + step // 2) // step * step)


def training_size(declared: int, share: float) -> int:
    """The public number of training units: the training share of the declared ones, rounded to the nearest, halves up.

    Sampling rates, steps, δ and averaging weights use this number in every runtime, never the true one.

    >>> training_size(2300, 0.6), training_size(75, 0.7), training_size(1, 0.2)
    (1380, 53, 1)
    """
    exact = declared * Fraction(share).limit_denominator(10**6)
    return max(1, math.floor(exact + Fraction(1, 2)))


@dataclass(frozen=True)
class SiteData:
    """One site's records in three parts; no patient is in two of them.

    `declared` and `size` are PUBLIC. `declared` are the privacy units (records or patients) of the whole file, as its
    owner states them; `size` is the training part of these (`training_size`). In a rehearsal of a site that states
    none, both are `computed` from its records. `common_test` is a test set that all sites share, where there is one.
    `notes` say in plain words what was dropped, imputed or missing; they are PRIVATE, since they count records. `lacks`
    names the columns of the schema that the site has not, each with how it is handled; it follows from the records and
    is PRIVATE too.
    """

    name: str
    train: Records
    validation: Records
    test: Records
    declared: int = 0
    common_test: Records | None = None
    notes: tuple[str, ...] = ()
    lacks: Mapping[str, Handling] = field(default_factory=dict)
    size: int = 0
    computed: bool = False
    former: Tensor | None = None
    """Int64 [n, 2]: patients whose id had another form before, as the digests of both, so that ledgers recognise them."""

    def __post_init__(self) -> None:
        if self.size <= 0:  # until a study opens it, which knows the split
            object.__setattr__(self, "size", declared_count(len(self.train)))

    def declaring(self, declared: int, share: float, unit: str = "record") -> SiteData:
        """This site with a declared size, or, where that is 0, with a rounded count of its units (rehearsals only)."""
        if declared > 0:
            return replace(self, declared=declared, size=training_size(declared, share), computed=False)
        parts = (self.train, self.validation, self.test)
        count = declared_count(sum(p.patients if unit == "patient" else len(p) for p in parts))
        return replace(self, declared=count, size=training_size(count, share), computed=True)

    def with_notes(self, *notes: str) -> SiteData:
        return replace(self, notes=(*self.notes, *notes))

    @property
    def all(self) -> Records:
        """The three parts together, for looking at a site as a whole."""
        return of_one_site([self.train, self.validation, self.test])

    @property
    def without_test(self) -> Records:
        """Training and validation records: what a site may use once nothing is held back for choosing."""
        return of_one_site([r for r in (self.train, self.validation) if len(r)] or [self.train])


def made_up_inputs(task: Task, count: int) -> Tensor:
    """Inputs of artificial records, always the same: zeros and ones."""
    return torch.randint(0, 2, (count, *task.inputs), generator=torch.Generator().manual_seed(0)).float()


def made_up_targets(task: Task, count: int) -> Tensor:
    """Targets of artificial records, always the same, and of every class."""
    chance = torch.Generator().manual_seed(0)
    if task.form == "classes":
        return torch.arange(count) % len(task.classes)
    if task.form == "labels":
        return torch.randint(0, 2, (count, task.outputs), generator=chance).float()
    return torch.randn(count, generator=chance)


@dataclass(frozen=True)
class Card:
    """Where a data set comes from and what it is good for."""

    name: str
    summary: str
    source: str
    licence: str
    size: str
    sites: str
    task: str
    reach: str = ""
    caveats: tuple[str, ...] = ()
    fetched: bool = False

    def facts(self) -> dict[str, str]:
        """What a page about the data set states, by its heading."""
        return {
            "Source": self.source, "Licence as stated": self.licence, "Size": self.size, "Sites": self.sites,
            "Task": self.task, "What training reached": self.reach,
        }  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.__dict__.items()}


@dataclass(frozen=True)
class Federation:
    """Several sites with one task."""

    name: str
    task: Task
    sites: Mapping[str, SiteData]
    schema: Schema | None = None
    card: Card | None = None
    notes: tuple[str, ...] = field(default=())
    encoder: str = ""
    """The identity of the encoder whose features the records are; "" where they are as the schema says."""

    def __post_init__(self) -> None:
        for site in self.sites.values():
            shape = tuple(site.train.inputs.shape[1:])
            if shape != self.task.inputs:
                raise DataError(
                    f"site {site.name}: a record has the shape {shape}, the task says {self.task.inputs}"
                )
