"""What training sees of a site's files: tensors, and a few plain words about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from confrere.core.errors import DataError
from confrere.data.schema import Schema

Kind = Literal["binary", "multiclass", "regression", "multilabel"]
Handling = Literal["imputed", "left out"]
"""What became of a column that a site lacks: marked missing there, or used by no site."""


@dataclass(frozen=True)
class Records:
    """Encoded records of one site: PRIVATE, like everything that is computed from them.

    `inputs` is float32 [n, …]; `targets` int64 classes [n], float32 values [n] for regression, or
    float32 zeros and ones [n, labels] for multi-label tasks. `units` says which patient each record
    belongs to; None means that each record is a patient of its own.
    """

    inputs: Tensor
    targets: Tensor
    units: Tensor | None = None

    def __post_init__(self) -> None:
        n = self.inputs.shape[0]
        if self.targets.shape[0] != n or (self.units is not None and self.units.shape[0] != n):
            raise DataError(f"{n} inputs, {self.targets.shape[0]} targets: each record needs both")

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def select(self, indices: Tensor | Sequence[int]) -> Records:
        """These records, in this order."""
        at = torch.as_tensor(indices, dtype=torch.int64)
        return Records(self.inputs[at], self.targets[at], None if self.units is None else self.units[at])

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
        shifted, start = [], 0
        for p in parts:
            own = torch.arange(len(p)) if p.units is None else torch.unique(p.units, return_inverse=True)[1]
            shifted.append(own + start)
            start += int(own.max()) + 1 if len(own) else 0
        units = torch.cat(shifted)
    return Records(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]), units)


def declared_count(records: int) -> int:
    """The count that a site makes public where it states none: two significant digits, halves up.

    Sampling rates, δ and averaging weights use this number, never the true one. It is still a function
    of the records: a site that minds states its own in site.toml.

    >>> declared_count(5493), declared_count(71), declared_count(1), declared_count(956)
    (5500, 71, 1, 960)
    """
    if records < 100:
        return max(records, 1)
    step = 10 ** (math.floor(math.log10(records)) - 1)
    return int((records + step // 2) // step * step)


@dataclass(frozen=True)
class SiteData:
    """One site's records in three parts; no patient is in two of them.

    `declared` is PUBLIC: the record count of the training part that the site owns up to.
    `common_test` is a test set that all sites share, where there is one. `notes` say in plain words what was
    dropped, imputed or missing; they are PRIVATE, since they count records. `lacks` names the columns of the
    schema that the site has not, each with how it is handled; it follows from the records and is PRIVATE too.
    """

    name: str
    train: Records
    validation: Records
    test: Records
    declared: int = 0
    common_test: Records | None = None
    notes: tuple[str, ...] = ()
    lacks: Mapping[str, Handling] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.declared <= 0:
            object.__setattr__(self, "declared", declared_count(len(self.train)))

    def with_notes(self, *notes: str) -> SiteData:
        return replace(self, notes=(*self.notes, *notes))

    @property
    def all(self) -> Records:
        """The three parts together, for looking at a site as a whole (patients keep their numbers)."""
        parts = (self.train, self.validation, self.test)
        units = None
        if self.train.units is not None:
            units = torch.cat([p.units for p in parts if p.units is not None])
        return Records(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]), units)


BranchKind = Literal["table", "image", "series", "bag", "volume"]


@dataclass(frozen=True)
class Branch:
    """A part of a record that belongs together: where it lies in the record's numbers, and its shape."""

    name: str
    start: int
    shape: tuple[int, ...]
    kind: BranchKind = "table"
    mask: bool = False
    """Whether the last channel says which steps (or members of a bag) are there: 1, or 0 for padding."""


@dataclass(frozen=True)
class Task:
    """What is asked: PUBLIC, the same at every site.

    `inputs` is the shape of one record. A regression target is stored as (value − centre) / spread with
    the schema's numbers: `centre`, `spread` and `unit` bring an error back into the unit of the column.
    `branches` says what lies where in a record of several parts (an image with a history), which is then one row of
    numbers; of a record that is one sequence or bag, it says whether there is a mask.
    """

    kind: Kind
    classes: tuple[str, ...]
    inputs: tuple[int, ...]
    features: tuple[str, ...] = ()
    centre: float = 0.0
    spread: float = 1.0
    unit: str = ""
    branches: tuple[Branch, ...] = ()

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for one record."""
        return 1 if self.kind == "regression" else len(self.classes)


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

    def __post_init__(self) -> None:
        for site in self.sites.values():
            shape = tuple(site.train.inputs.shape[1:])
            if shape != self.task.inputs:
                raise DataError(
                    f"site {site.name}: a record has the shape {shape}, the task says {self.task.inputs}"
                )
