"""Train, validation and test: by patient, each class in its share. For rehearsal sites see `skew`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.records import Records
from confrere.data.skew import (
    PARTITIONS,
    blank,
    by_column,
    dirichlet,
    feature,
    iid,
    inequality,
    label,
    missing,
    p_major,
    partition,
    size,
)

__all__ = [
    "FRACTIONS",
    "PARTITIONS",
    "Fractions",
    "Parts",
    "blank",
    "by_column",
    "dirichlet",
    "feature",
    "fingerprints",
    "iid",
    "inequality",
    "label",
    "missing",
    "p_major",
    "partition",
    "size",
    "split",
    "split_indices",
]

Indices = NDArray[np.int64]
Fractions = tuple[float, float, float]
FRACTIONS: Fractions = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class Parts:
    """Three sets of records; every patient is in exactly one."""

    train: Records
    validation: Records
    test: Records


def split(records: Records, seed: int, fractions: Fractions = FRACTIONS, stratify: bool = True) -> Parts:
    """Train, validation and test, by patient, each class in its share.

    Patients are put in an order that depends on the seed and on their own records only, and each class is cut
    at its share. So the order of the file does not matter, and one patient more or less moves at most one
    other patient in or out of the training part (see docs/data.md for what that means for the guarantee).
    """
    train, validation, test = split_indices(records, seed, fractions, stratify)
    return Parts(records.select(train), records.select(validation), records.select(test))


def split_indices(
    records: Records, seed: int, fractions: Fractions = FRACTIONS, stratify: bool = True
) -> tuple[list[int], list[int], list[int]]:
    """The positions of the records of each part, in the order of the file."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6 or fractions[0] <= 0:
        raise DataError(f"the shares of train, validation and test are {fractions}: they must add up to 1")
    if len(records) == 0:
        raise DataError("there are no records to split")
    unit = _units(records)
    keys = np.zeros(int(unit.max()) + 1, dtype=np.uint64)
    np.add.at(keys, unit, fingerprints(records, seed))
    strata = _strata(records, unit, len(keys)) if stratify else np.zeros(len(keys), dtype=np.int64)
    side = np.zeros(len(keys), dtype=np.int64)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        members = members[np.argsort(keys[members], kind="stable")]
        first = int(np.floor(len(members) * fractions[0] + 0.5))
        second = int(np.floor(len(members) * (fractions[0] + fractions[1]) + 0.5))
        side[members[first:second]] = 1
        side[members[second:]] = 2
    sides = side[unit]
    train, validation, test = (np.flatnonzero(sides == part).tolist() for part in range(3))
    return train, validation, test


def fingerprints(records: Records, seed: int) -> NDArray[np.uint64]:
    """A pseudo-random 64-bit number for each record, from its own content and the seed."""
    rng = np.random.default_rng([seed, 0x5B117])
    flat = records.inputs.reshape(len(records), -1).contiguous().numpy().view(np.uint32)
    factors = rng.integers(1, 2**63, size=flat.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    out = np.empty(len(records), dtype=np.uint64)
    for start in range(0, len(records), 4096):
        piece = flat[start : start + 4096].astype(np.uint64)
        out[start : start + 4096] = (piece * factors).sum(axis=1, dtype=np.uint64)
    targets = records.targets.reshape(len(records), -1).double().contiguous().numpy().view(np.uint64)
    for i in range(targets.shape[1]):
        out += _mixed(targets[:, i] + np.uint64(i + 1))
    return _mixed(out + rng.integers(0, 2**63, dtype=np.uint64))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves every bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _units(records: Records) -> Indices:
    if records.units is None:
        return np.arange(len(records))
    return np.unique(records.units.numpy(), return_inverse=True)[1].astype(np.int64)


def _strata(records: Records, unit: Indices, count: int) -> Indices:
    """The class of each patient: the highest among the patient's records. Numbers have no strata."""
    out = np.zeros(count, dtype=np.int64)
    if records.targets.dtype == torch.int64 and records.targets.dim() == 1:
        np.maximum.at(out, unit, records.targets.numpy())
    return out
