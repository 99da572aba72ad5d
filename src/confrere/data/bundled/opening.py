"""Turn a bundled table into sites: by its own site column, or by a chosen partition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.bundled.sets import BundledSet
from confrere.data.encode.encoder import encode_table
from confrere.data.encode.labels import task_of
from confrere.data.federation import Opening, Source, by_site
from confrere.data.read.table_origin import counted
from confrere.data.records import Federation, Records
from confrere.data.schema import Schema
from confrere.data.split.holdout import split
from confrere.data.split.partitions import held_out
from confrere.data.split.partitions import partition as partition_records
from confrere.data.tasks import Task


def open_table(own: BundledSet, opening: Opening, *, least: int | None = None) -> Federation:
    """A set that has a site column, as its declaration says."""
    return open_by_site(own, opening, own.frame(), least=own.least if least is None else least)


def open_by_site(
    own: BundledSet, opening: Opening, frame: pd.DataFrame, schema: Schema | None = None, *, least: int = 0
) -> Federation:
    """The sites that the table names; those with fewer than `least` records are left out, with a note."""
    schema, notes = schema or own.schema, opening.notes
    nowhere = frame[schema.site].isna()
    if nowhere.any():
        notes = (*notes, f"{counted(int(nowhere.sum()), 'record')} without a site left out")
        frame = frame[~nowhere]
    counts = frame[schema.site].value_counts()
    small = counts[counts < least]
    if len(small) == len(counts):
        raise DataError(f"{own.name}: no site has {least} records; the largest has {counts.max()}")
    if len(small):
        frame = frame[~frame[schema.site].isin(small.index)]
        few = counted(len(small), "site")
        notes = (*notes, f"{few} with fewer than {least} records left out ({small.sum()} records in all)")
    return by_site(frame, schema, replace(opening, notes=notes), Source(frame, units=own.units))


def open_cut(
    own: BundledSet, opening: Opening, frame: pd.DataFrame, schema: Schema | None = None, **options: Any
) -> Federation:
    """A table without sites, divided by a partition."""
    schema = schema or own.schema
    undivided = Undivided(encode_table(frame, schema).records, task_of(schema), schema)
    return open_partitioned(undivided, opening, **{**own.cut, **options})


@dataclass(frozen=True)
class Undivided:
    """A data set without sites of its own."""

    records: Records
    task: Task
    schema: Schema | None = None
    common_test: Records | None = None


def open_partitioned(
    undivided: Undivided,
    opening: Opening,
    *,
    partition: str = "iid",
    sites: int = 3,
    records: int = 0,
    common: int = 0,
    **options: Any,
) -> Federation:
    """Rehearsal sites, cut from one set; `records` is the size of each, `options` are those of the partition.

    `common` takes that many records out beforehand, all classes alike, as a common test.
    """
    notes, seed = opening.notes, opening.seed
    cases, common_test = undivided.records, undivided.common_test
    if common:
        cases, common_test = held_out(cases, common, seed)
        taken = counted(len(common_test), "record")
        notes = (*notes, f"{taken} taken out as a common test, all classes alike")
    parts = partition_records(cases, partition, sites, seed, records_per_site=records, **options)
    named = {f"site{k + 1}": part for k, part in enumerate(parts)}
    out = {name: split(part, seed, opening.split, name, common_test) for name, part in named.items()}
    notes = (*notes, f"the set has no sites of its own: {sites} were cut from it ({partition}, seed {seed})")
    return Federation(opening.name, undivided.task, out, undivided.schema, opening.card, notes)
