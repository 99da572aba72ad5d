"""Tables of several sites as one federation."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.encode import encode_table
from confrere.data.labels import task_of
from confrere.data.origin import origin_of
from confrere.data.partition import FRACTIONS, Fractions
from confrere.data.partition import split as cut
from confrere.data.records import Card, Federation, SiteData
from confrere.data.schema import Schema


def by_site(
    frame: pd.DataFrame,
    schema: Schema,
    *,
    name: str,
    seed: int,
    split: Fractions = FRACTIONS,
    card: Card | None = None,
    notes: tuple[str, ...] = (),
) -> Federation:
    """One table whose schema names a site column, as a federation."""
    if not schema.site or schema.site not in frame.columns:
        raise DataError(f"{origin_of(frame).name}: the site column {schema.site!r} is not there")
    frames = {str(site): part for site, part in frame.groupby(schema.site, sort=False)}
    return of_frames(frames, schema, name=name, seed=seed, split=split, card=card, notes=notes)


def of_frames(
    frames: Mapping[str, pd.DataFrame],
    schema: Schema,
    *,
    name: str,
    seed: int,
    split: Fractions = FRACTIONS,
    card: Card | None = None,
    notes: tuple[str, ...] = (),
) -> Federation:
    """One table for each site."""
    sites = {}
    for site, frame in frames.items():
        encoded = encode_table(frame, schema, site)
        parts = cut(encoded.records, seed, split)
        sites[site] = SiteData(site, parts.train, parts.validation, parts.test, notes=encoded.notes)
    return Federation(name, task_of(schema), sites, schema, card, notes)
