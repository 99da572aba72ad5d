"""Train, validation and test, by patient. For rehearsal sites see `partitions`.

The default is a threshold on each patient's own keyed hash. Which part a patient is in then depends on no other patient,
so a guarantee about the training part holds for the site's whole file. The price: parts have their shares only on the
average, and at a small site one of them may be empty. A split by date (`date_cut`) tests later patients and has the same
property.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.core.seeds import derive
from confrere.data import digests
from confrere.data.records import Records, SiteData
from confrere.data.split.date_cut import DateCut

Indices = NDArray[np.int64]
Fractions = tuple[float, float, float]
FRACTIONS: Fractions = (0.6, 0.2, 0.2)
Method = Literal["hash", "stratified"]


@dataclass(frozen=True)
class SplitRule:
    """How a site's patients are divided into train, validation and test."""

    fractions: Fractions = FRACTIONS
    method: Method = "hash"
    key: bytes = b""
    """Of a node: its own, the same for life. Empty in a rehearsal: it is derived from the seed and the site's name."""
    cut: DateCut | None = None
    """Where patients are tested by date: see `date_cut`."""

    def __post_init__(self) -> None:
        f = self.fractions
        if len(f) != 3 or min(f) < 0 or abs(sum(f) - 1) > 1e-6 or f[0] <= 0:
            raise DataError(f"the shares of train, validation and test are {f}: they must add up to 1")


SPLIT = SplitRule()


def file_group(method: Method) -> int:
    """How many patients of the three parts may differ where one patient of the whole file does.

    By hash, only that one. Stratified parts are cut by rank, so that one patient moves up to two others: one between
    train and validation, and one between validation and test.
    """
    return 1 if method == "hash" else 3


def whole_file(method: Method) -> str:
    """What the split means for the guarantee, in words."""
    if file_group(method) == 1:
        return "split by keyed hash: one record moves no other, so that ε holds for a site's whole file"
    return (
        "split by rank (stratified): one record moves up to two others, so that for a site's whole file ε is"
        " that of a group of three; for rehearsals only, a node refuses it"
    )


def split_facts(method: Method, by_date: date | None = None) -> dict[str, str | int]:
    """The split as results in JSON state it."""
    if by_date is None:
        return {"method": method, "group": file_group(method), "words": whole_file(method)}
    words = (
        f"patients first seen before {by_date} train, later ones test: the date of a record decides on it alone, so"
        " that ε holds for a site's whole file"
    )
    return {"method": method, "group": 1, "words": words, "by_date": by_date.isoformat()}


def split(
    records: Records, seed: int, rule: SplitRule = SPLIT, site: str = "", common_test: Records | None = None
) -> SiteData:
    """A site with its records in three parts, by patient. The order of the file does not matter."""
    train, validation, test = (records.select(part) for part in split_indices(records, seed, rule, site))
    return SiteData(site, train, validation, test, common_test=common_test)


def split_indices(
    records: Records, seed: int, rule: SplitRule = SPLIT, site: str = ""
) -> tuple[list[int], list[int], list[int]]:
    """The positions of the records of each part, in the order of the file.

    `seed` and `site` make the key where the rule has none. The stratified split of all sites is by the same seed.
    """
    if len(records) == 0:
        return [], [], []
    key = rule.key or derive(seed, "split key", site).to_bytes(8, "big")
    if rule.cut is not None:
        sides = _by_date(records, key, rule)
    elif rule.method == "stratified":
        sides = _by_rank(records, seed, rule.fractions)
    else:
        ends = np.cumsum(rule.fractions[:2])
        sides = np.searchsorted(ends, _positions(records, key), side="right")
    train, validation, test = (np.flatnonzero(sides == part).tolist() for part in range(3))
    return train, validation, test


def _by_date(records: Records, key: bytes, rule: SplitRule) -> Indices:
    """The part of each record, or 3 for none: a later record of a patient who has an earlier one."""
    if records.later is None:
        raise StudyError(
            "data.split.by_date needs tables with a date column: bundled data sets, arrays and encoded records have none"
        )
    later = records.later.numpy()
    train, validation, _ = rule.fractions
    sides = (_positions(records, key) >= train / (train + validation)).astype(np.int64)
    sides[later] = 2
    if records.units is not None:
        units = records.units.numpy()
        sides[later & np.isin(units, units[~later])] = 3
    return sides


def check_sides(records: Records, parts: Sequence[Sequence[int]], rule: SplitRule, site: str) -> None:
    """Refuse a split by date with nothing on one side."""
    if rule.cut is None:
        return
    train, validation, test = parts
    for side, before, what in ((test, "before", "test"), ((*train, *validation), "on or after", "train")):
        if not side:
            raise DataError(
                f'site "{site}": all {records.patients:,} patients were first seen {before} {rule.cut.day}'
                f" ({rule.cut.column}), so that none is left to {what} on; choose another data.split.by_date"
            )


def folds(records: Records, seed: int, count: int = 5) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows to learn from and rows to judge by: a patient's fold depends on no other patient.

    Folds are equally large only on the average. An empty one is left out.
    """
    key = derive(seed, "folds").to_bytes(8, "big")
    fold = torch.from_numpy((_positions(records, key) * count).astype(np.int64))
    kept = torch.unique(fold).tolist()
    if len(kept) < 2:
        raise DataError(
            f"{records.patients} patients are too few for cross-validation: all are in the same fold"
        )
    for k in kept:
        yield (fold != k).nonzero()[:, 0], (fold == k).nonzero()[:, 0]


def _positions(records: Records, key: bytes) -> NDArray[np.float64]:
    """Where its keyed hash puts each record between 0 and 1: by its patient, else by its own content."""
    if records.units is None:
        hashed = digests.of_rows(records.inputs, records.targets, key)
    else:
        patients, own = np.unique(records.units.numpy().view(np.uint64), return_inverse=True)
        hashed = digests.keyed(patients, key)[own]
    return (hashed >> np.uint64(11)).astype(np.float64) / 2**53


def _by_rank(records: Records, seed: int, fractions: Fractions) -> Indices:
    """The part of each record, each class in its share: patients in an order of their own records, cut by rank."""
    unit = _units(records)
    keys = np.zeros(int(unit.max()) + 1, dtype=np.uint64)
    np.add.at(keys, unit, fingerprints(records, seed))
    strata = _strata(records, unit, len(keys))
    side = np.zeros(len(keys), dtype=np.int64)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        members = members[np.argsort(keys[members], kind="stable")]
        first = int(np.floor(len(members) * fractions[0] + 0.5))
        second = int(np.floor(len(members) * (fractions[0] + fractions[1]) + 0.5))
        side[members[first:second]] = 1
        side[members[second:]] = 2
    return side[unit]


def fingerprints(records: Records, seed: int) -> NDArray[np.uint64]:
    """A pseudo-random 64-bit number for each record, from its own content and the seed."""
    flat = records.inputs.reshape(len(records), -1).contiguous().numpy().view(np.uint32)
    factors, offset = _factors(seed, flat.shape[1])
    out = np.empty(len(records), dtype=np.uint64)
    for start in range(0, len(records), 4096):
        out[start : start + 4096] = flat[start : start + 4096].astype(np.uint64) @ factors
    targets = records.targets.reshape(len(records), -1).double().contiguous().numpy().view(np.uint64)
    for i in range(targets.shape[1]):
        out += digests.mixed(targets[:, i] + np.uint64(i + 1))
    return digests.mixed(out + offset)


@lru_cache(maxsize=64)
def _factors(seed: int, columns: int) -> tuple[NDArray[np.uint64], np.uint64]:
    """The odd factor of each column and a summand, drawn once for all sites."""
    rng = np.random.default_rng([seed, 0x5B117])
    factors = rng.integers(1, 2**63, size=columns, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return factors, rng.integers(0, 2**63, dtype=np.uint64)


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
