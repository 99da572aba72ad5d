"""Turn a bundled table into sites: by its own site column, or by a chosen partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.bundled.fetch import fetched
from confrere.data.bundled.recipes import RECIPES
from confrere.data.encode.encoder import encode_table
from confrere.data.encode.labels import task_of
from confrere.data.federation import Opening, Source, by_site
from confrere.data.read.sources import read
from confrere.data.read.table_origin import counted
from confrere.data.records import Card, Federation, Records, SiteData, Task
from confrere.data.schema import Schema
from confrere.data.split.holdout import SPLIT, SplitRule, partition, split_indices
from confrere.data.split.partitions import held_out

Prepare = Callable[[pd.DataFrame], pd.DataFrame]


def folder_of(name: str) -> Path:
    """Where the files of a fetched set lie."""
    return fetched(RECIPES[name])


def table_of(name: str) -> pd.DataFrame:
    """The table of a fetched set, as it is."""
    return read(folder_of(name) / "table.csv")


def open_by_site(
    frame: pd.DataFrame,
    schema: Schema,
    card: Card,
    *,
    seed: int,
    split: SplitRule = SPLIT,
    least: int = 0,
    units: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Federation:
    """Sites as the table names them; those with fewer than `least` records are left out, and that is said."""
    nowhere = frame[schema.site].isna()
    if nowhere.any():
        notes = (*notes, f"{counted(int(nowhere.sum()), 'record')} without a site left out")
        frame = frame[~nowhere]
    counts = frame[schema.site].value_counts()
    small = counts[counts < least]
    if len(small) == len(counts):
        raise DataError(f"{card.name}: no site has {least} records; the largest has {counts.max()}")
    if len(small):
        frame = frame[~frame[schema.site].isin(small.index)]
        few = counted(len(small), "site")
        notes = (*notes, f"{few} with fewer than {least} records left out ({small.sum()} records in all)")
    source = Source(frame, units=units or {})
    return by_site(
        frame, schema, Opening(card.name, seed, split, one_class=True, card=card, notes=notes), source
    )


def open_partitioned(
    records: Records,
    task: Task,
    card: Card,
    *,
    seed: int,
    split: SplitRule = SPLIT,
    how: str = "iid",
    sites: int = 3,
    records_per_site: int = 0,
    schema: Schema | None = None,
    common_test: Records | None = None,
    common: int = 0,
    notes: tuple[str, ...] = (),
    **options: Any,
) -> Federation:
    """Rehearsal sites, cut from one set that has none of its own.

    `common` takes that many records out beforehand, all classes alike, as a common test.
    """
    if common:
        records, common_test = held_out(records, common, seed)
        notes = (
            *notes,
            f"{counted(len(common_test), 'record')} taken out as a common test, all classes alike",
        )
    parts = partition(records, how, sites, seed, records_per_site=records_per_site, **options)
    out = {}
    for k, part in enumerate(parts):
        name = f"site{k + 1}"
        train, validation, test = (part.select(p) for p in split_indices(part, seed, split, name))
        out[name] = SiteData(name, train, validation, test, common_test=common_test)
    notes = (*notes, f"the set has no sites of its own: {sites} were cut from it ({how}, seed {seed})")
    return Federation(card.name, task, out, schema, card, notes)


def encoded(frame: pd.DataFrame, schema: Schema) -> tuple[Records, Task]:
    """One table without sites."""
    return encode_table(frame, schema).records, task_of(schema)
