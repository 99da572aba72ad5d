"""Movie reviews from two sources: long reviews and one-liners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from confrere.core.errors import StudyError
from confrere.data.bundled.opening import open_by_site, open_cut
from confrere.data.bundled.sets import BundledSet
from confrere.data.federation import Opening
from confrere.data.records import Federation

TEXT = ("encoding", "buckets", "ngrams", "length")


def reviews(
    own: BundledSet,
    opening: Opening,
    *,
    records: int = 0,
    hosts: int = 0,
    sizes: list[int] | None = None,
    common: int = 0,
    **text: Any,
) -> Federation:
    """`records` draws that many reviews of each source (or for each host); `sizes` states it host by host.

    `common` takes a common test of the hosts out beforehand. `text` are options of the text column (`TEXT`).
    """
    for option in text:
        if option not in TEXT:
            has = ", ".join((*TEXT, "records", "hosts", "sizes", "common"))
            raise StudyError(f"the data set 'movie-reviews' has no option {option!r}; it has {has}")
    if (encoding := text.get("encoding", "hashed")) not in ("hashed", "ids"):
        raise StudyError(f'movie-reviews: encoding = {encoding!r}; known are "hashed" and "ids"')
    (column,) = own.schema.columns
    schema, frame = replace(own.schema, columns=(replace(column, **text),)), own.frame()
    rng = np.random.default_rng([opening.seed, 0x4E71E])
    if sizes is not None:
        if hosts not in (0, len(sizes)) or min(sizes, default=0) < 2:
            raise StudyError("movie-reviews: sizes has a number of at least 2 for each host")
        few = _drawn(frame, 2 * sum(sizes) + 2 * common, rng)
        counts = [[n // 2, n - n // 2] for n in sizes]
        return open_cut(
            own, opening, few, schema, partition="given", sites=len(sizes), common=common, counts=counts
        )
    if hosts:
        few = _drawn(frame, records * hosts, rng) if records else frame
        return open_cut(own, opening, few, schema, sites=hosts, common=common)
    if records:
        shuffled = frame.iloc[rng.permutation(len(frame))]
        frame = shuffled.groupby("source").head(records).sort_index()
        frame.attrs.clear()
    return open_by_site(own, opening, frame, schema)


def _drawn(frame: pd.DataFrame, count: int, rng: np.random.Generator) -> pd.DataFrame:
    """Some of the records, drawn by lot, in the order of the file."""
    return frame.iloc[np.sort(rng.choice(len(frame), min(len(frame), count), replace=False))]
