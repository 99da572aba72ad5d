"""One record or patient more changes nobody else's part: of the split, of the folds, in any kind of source."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.errors import DataError
from confrere.data.arrays import of_arrays
from confrere.data.column_kinds import Column
from confrere.data.federation import Opening, Source, of_files
from confrere.data.records import Records, SiteData
from confrere.data.schema import Schema
from confrere.data.split.holdout import SplitRule, folds
from confrere.data.tasks import Label

PARTS = ("train", "validation", "test")
COLUMNS = (Column("age", range=(0, 120)), Column("value", range=(-10, 10), gaps="impute"))

Row = tuple[int, float, int, str | None]
"""Age, value, label, patient. The age of each row of a table is its own: it names the row afterwards."""


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows with ids, without, several of one patient."""
    count = draw(st.integers(2, 40))
    ages = draw(st.lists(st.integers(0, 119), min_size=count, max_size=count, unique=True))
    some_id = st.none() | st.integers(1, 15).map(lambda i: f"P{i:03}")
    return [
        (age, draw(st.integers(-9, 9)) / 2, draw(st.integers(0, 1)), draw(some_id))
        for age in sorted(ages, key=str)
    ]


def frame_of(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["age", "value", "sick", "who"]).astype({"who": object})


def named(site: SiteData) -> dict[int, str]:
    """The part of each record, by its age."""
    return {
        round(float(row[0]) * 60 + 60): part
        for part in PARTS
        for row in getattr(site, part).inputs.flatten(1)
    }


def from_csv(rows: list[Row], *, patient: str = "who", stream: bool = False) -> dict[int, str]:
    schema = Schema(label=Label(column="sick"), columns=COLUMNS, patient=patient, site="")
    if not patient:
        schema = Schema(label=Label(column="sick"), columns=COLUMNS, unused=("who",))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        frame_of(rows).to_csv(path, index=False)
        sites = of_files({"a": Source(path, stream=stream)}, schema, Opening(seed=3, one_class=True)).sites
        return named(sites["a"])


def from_arrays(rows: list[Row], *, patient: str = "who") -> dict[int, str]:
    inputs = np.array([[(age - 60) / 60, value] for age, value, _, _ in rows], dtype=np.float32)
    targets = np.array([label for _, _, label, _ in rows])
    ids = np.array([f"{who or f'none {age}'}" for age, _, _, who in rows])
    return named(of_arrays({"a": (inputs, targets, ids if patient else None)}, seed=3).sites["a"])


WAYS: Mapping[str, Callable[[list[Row]], dict[int, str]]] = {
    "csv": from_csv,
    "csv without ids": lambda rows: from_csv(rows, patient=""),
    "streamed": lambda rows: from_csv(rows, stream=True),
    "arrays": from_arrays,
    "arrays without ids": lambda rows: from_arrays(rows, patient=""),
}


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=40)
@given(tables(), st.data())
def test_one_record_more_changes_nobody_elses_part(way: str, rows: list[Row], data: st.DataObject) -> None:
    open_ = WAYS[way]
    whole = open_(rows)
    gone = data.draw(st.integers(0, len(rows) - 1))
    left = rows[:gone] + rows[gone + 1 :]
    assert open_(left) == {age: part for age, part in whole.items() if age != rows[gone][0]}


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=40)
@given(tables(), st.data())
def test_one_patient_more_changes_nobody_elses_part(way: str, rows: list[Row], data: st.DataObject) -> None:
    open_ = WAYS[way]
    who = data.draw(st.sampled_from(sorted({r[3] or "" for r in rows})))
    left = [r for r in rows if (r[3] or "") != who]
    if not left:
        return
    whole = open_(rows)
    assert open_(left) == {r[0]: whole[r[0]] for r in left}


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=40)
@given(tables(), st.data())
def test_two_exports_agree_on_the_patients_that_both_have(
    way: str, rows: list[Row], data: st.DataObject
) -> None:
    """Another order, and some records more in each."""
    open_ = WAYS[way]
    cut = data.draw(st.integers(1, len(rows) - 1))
    first = open_(rows[: cut + 1])
    second = open_(data.draw(st.permutations(rows[cut - 1 :])))
    assert all(second[age] == part for age, part in first.items() if age in second)


@settings(deadline=None)
@given(tables(), st.data())
def test_one_record_more_changes_nobody_elses_fold(rows: list[Row], data: st.DataObject) -> None:
    ids = {who: i for i, who in enumerate(sorted({r[3] or "" for r in rows}))}
    records = Records(
        torch.tensor([[float(r[0]), r[1]] for r in rows]),
        torch.tensor([r[2] for r in rows]),
        torch.tensor([ids[r[3] or ""] for r in rows]) if data.draw(st.booleans()) else None,
    )
    gone = data.draw(st.integers(0, len(rows) - 1))
    rest = [i for i in range(len(rows)) if i != gone]

    def fold_of(some: Records) -> frozenset[frozenset[float]]:
        try:
            found = [some.inputs[judged, 0].tolist() for _, judged in folds(some, 7)]
        except DataError:  # all are in one fold
            found = [some.inputs[:, 0].tolist()]
        return frozenset(frozenset(f) for f in found)

    out = float(rows[gone][0])
    assert fold_of(records.select(rest)) == {left for f in fold_of(records) if (left := f - {out})}


def test_the_same_rows_without_ids_are_on_the_same_side() -> None:
    rows: list[Row] = [(age, 1.0, 0, None) for age in range(40) for _ in range(3)]
    for schema in (
        Schema(label=Label(column="sick"), columns=COLUMNS, patient="who"),
        Schema(label=Label(column="sick"), columns=COLUMNS, unused=("who",)),
    ):
        site = of_files({"a": frame_of(rows)}, schema, Opening(one_class=True)).sites["a"]
        sides = [set(getattr(site, part).inputs[:, 0].tolist()) for part in PARTS]
        assert sum(map(len, sides)) == len(set.union(*sides)) == 40


@pytest.mark.parametrize("kind", ["text", "number", "parquet"])
def test_an_id_is_the_same_whatever_kind_of_file_it_is_in(kind: str, tmp_path: Path) -> None:
    rows: list[Row] = [(age, 0.5, age % 2, str(1000 + age)) for age in range(60)]
    schema = Schema(label=Label(column="sick"), columns=COLUMNS, patient="who")
    frame = frame_of(rows)
    if kind != "text":
        frame["who"] = frame["who"].astype(int)
    source: pd.DataFrame | Path = frame
    if kind == "parquet":
        frame.to_parquet(source := tmp_path / "a.parquet")
    assert named(of_files({"a": source}, schema, Opening(seed=3)).sites["a"]) == from_csv(rows)


def test_a_large_file_has_about_the_shares_that_were_asked_for() -> None:
    rng = np.random.default_rng(0)
    sites = of_arrays(
        {"a": (rng.normal(size=(20_000, 3)), rng.integers(0, 2, 20_000))}, split=SplitRule((0.6, 0.15, 0.25))
    ).sites
    for part, share in zip(PARTS, (0.6, 0.15, 0.25), strict=True):
        # five standard deviations of a binomial share
        assert (
            abs(len(getattr(sites["a"], part)) / 20_000 - share) < 5 * (share * (1 - share) / 20_000) ** 0.5
        )
