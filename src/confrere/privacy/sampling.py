"""Which records take part in a step: Poisson samples of records or of whole patients, or all records.

The cost of a step is stated for exactly this sampling: each unit is in with probability q, independently of
all others and of every other step. A batch has no fixed size, and may be empty. q comes from the *declared*
public number of units, never from counting the records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from confrere.core.errors import DataError, StudyError
from confrere.privacy.charges import Unit, exact_rate
from confrere.privacy.noise import Randomness


def epoch(declared: int, batch: int) -> tuple[int, Fraction]:
    """How many steps make an epoch, and the rate at which each unit is drawn in a step.

    >>> epoch(2338, 32)
    (74, Fraction(1, 74))
    """
    if declared < 1:
        raise StudyError(f"the declared number of records must be at least 1, not {declared}")
    if not 1 <= batch <= declared:
        raise StudyError(f"a batch holds between 1 and all {declared} declared records, not {batch}")
    steps = math.ceil(declared / batch)
    return steps, Fraction(1, steps)


class Patients:
    """Which records belong to which patient, for data with several records per patient."""

    def __init__(self, ids: Sequence[object]) -> None:
        numbers: dict[object, int] = {}
        for row, name in enumerate(ids):
            if name is None or name != name or (isinstance(name, str) and not name.strip()):
                raise DataError(
                    f"record {row + 1} has no patient id: every record needs one to protect patients"
                )
            numbers.setdefault(name, len(numbers))
        self.number = torch.tensor([numbers[name] for name in ids], dtype=torch.long)
        self.count = len(numbers)

    def __len__(self) -> int:
        return self.count

    @property
    def most_records(self) -> int:
        """How many records the patient with the most has. PRIVATE: it is counted from the records."""
        return int(torch.bincount(self.number).max()) if self.count else 0

    def records(self, drawn: Tensor) -> Tensor:
        """All records of the drawn patients (a mask over patients), in the order of the data."""
        rows: Tensor = drawn[self.number].nonzero()[:, 0]
        return rows

    def of(self, indices: Tensor) -> Tensor:
        """For each of these records the number of its patient among them: 0, 1, 2 …"""
        among: Tensor = torch.unique(self.number[indices], return_inverse=True)[1]
        return among


class Sampling(Protocol):
    """How a step's records are chosen, with the rate that accounting uses."""

    @property
    def rate(self) -> Fraction: ...

    @property
    def unit(self) -> Unit: ...

    def draw(self, units: int | Patients, randomness: Randomness) -> Tensor:
        """The indices of the records that take part in a step."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Each record, or each patient with all of its records, is drawn with probability `rate`.

    >>> from confrere.privacy.noise import Seeded
    >>> Poisson(Fraction(1, 4)).draw(8, Seeded(1)).dtype
    torch.int64
    """

    rate: Fraction
    unit: Unit = "record"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", exact_rate(self.rate))

    def draw(self, units: int | Patients, randomness: Randomness) -> Tensor:
        if self.unit == "patient":
            patients = _patients(units)
            return patients.records(randomness.bernoulli(patients.count, self.rate))
        return randomness.bernoulli(_records(units), self.rate).nonzero()[:, 0]


@dataclass(frozen=True)
class FullBatch:
    """All units take part in every step: no gain from sampling, and no randomness."""

    unit: Unit = "record"

    @property
    def rate(self) -> Fraction:
        return Fraction(1)

    def draw(self, units: int | Patients, randomness: Randomness) -> Tensor:
        return torch.arange(_records(units) if self.unit == "record" else len(_patients(units).number))


def _patients(units: int | Patients) -> Patients:
    if not isinstance(units, Patients):
        raise DataError("privacy per patient needs to know which records belong to which patient")
    return units


def _records(units: int | Patients) -> int:
    return len(units.number) if isinstance(units, Patients) else units
