"""Patient ids are exact and have one canonical form, whatever kind of file they come from."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from confrere.data.column_kinds import Translation
from confrere.data.digests import of_texts
from confrere.data.encode.encoder import Encoded, encode_table
from confrere.data.federation import Source
from confrere.data.read.sources import ReadOptions
from confrere.data.read.streaming import encode_stream
from confrere.data.read.values import as_text
from confrere.data.schema import Column, Label, Schema

SCHEMA = Schema(label=Label(column="y"), columns=(Column("a", range=(0, 100)),), patient="p")
ONCE = Schema(label=Label(column="y"), columns=(Column("a", range=(0, 100)),), patient="p", repeats="refuse")
LARGE = [2**53 + i for i in range(6)]


def save(ids: list[Any], path: Path, kind: str) -> Source:
    """The ids with a different value of `a` each."""
    a, y = list(range(len(ids))), ["yes", "no"] * len(ids)
    path = path / f"{len(list(path.iterdir()))}.{kind}"
    rows = list(zip(ids, a, y, strict=False))
    if kind == "csv":
        text = "\n".join(f"{'' if p is None else p},{x},{y}" for p, x, y in rows)
        path.write_text(f"p,a,y\n{text}\n")
    elif kind == "parquet":
        parquet.write_table(pa.table({"p": pa.array(ids), "a": a, "y": y[: len(a)]}), path)
    elif kind == "xlsx":
        pd.DataFrame({"p": pd.array(ids, dtype=object), "a": a, "y": y[: len(a)]}).to_excel(path, index=False)
    else:
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE t (p, a, y)")
            database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        database.close()
        return Source(f"sqlite:///{path}", ReadOptions("SELECT * FROM t"))
    return Source(path)


def encoded(source: Source, schema: Schema, way: str, rows: int = 2, drop: bool = True) -> Encoded:
    if way == "streamed":
        return encode_stream(source, schema, rows=rows, drop=drop)
    return encode_table(source.read(schema), schema, "", Translation(drop=drop))


def patients(found: Encoded) -> list[int]:
    assert found.records.units is not None
    return list(found.records.units.tolist())


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "sqlite"])
def test_a_record_without_an_id_changes_no_other_id(kind: str, way: str, tmp_path: Path) -> None:
    before = patients(encoded(save([*LARGE], tmp_path, kind), SCHEMA, way))
    after = patients(encoded(save([*LARGE, None], tmp_path, kind), SCHEMA, way))
    assert len(set(before)) == len(LARGE)
    assert after[:-1] == before
    assert before == of_texts(map(str, LARGE)).view("int64").tolist()


def test_a_workbook_row_without_an_id_changes_no_other_id(tmp_path: Path) -> None:
    ids = [10**15 - 3, 17, 18]  # a workbook holds 15 digits
    before = patients(encoded(save([*ids], tmp_path, "xlsx"), SCHEMA, "whole"))
    assert patients(encoded(save([*ids, None], tmp_path, "xlsx"), SCHEMA, "whole"))[:-1] == before
    assert before == of_texts(map(str, ids)).view("int64").tolist()


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_an_id_with_decimals_is_the_same_patient_and_one_with_zeros_is_not(way: str, tmp_path: Path) -> None:
    found = patients(
        encoded(save(["17", "17.0", " 17 ", "0017", "e\u0301", "\u00e9"], tmp_path, "csv"), SCHEMA, way)
    )
    assert found[0] == found[1] == found[2] != found[3]
    assert found[4] == found[5]
    floats = patients(encoded(save([17.0, 18.0], tmp_path, "parquet"), SCHEMA, way))
    assert floats[0] == found[0]


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("ids", [["17", "0017"], [str(2**53), str(2**53 + 1)]])
def test_different_ids_are_never_taken_for_one_patient(way: str, ids: list[str], tmp_path: Path) -> None:
    found = encoded(save([*ids, "x"], tmp_path, "csv"), ONCE, way, drop=False)
    assert len(set(patients(found))) == 3


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize(
    "ids", [["5", "1", "2", "5", "3"], ["1", "5", "5", "2", "3"], ["5.0", "1", "2", "3", "5", "5"]]
)
def test_a_patient_with_more_records_than_allowed_is_left_out_in_any_order(
    way: str, ids: list[str], tmp_path: Path
) -> None:
    found = encoded(save(ids, tmp_path, "csv"), ONCE, way)
    assert sorted(patients(found)) == sorted(of_texts(["1", "2", "3"]).view("int64").tolist())
    assert len(found.records) == 3


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_a_bad_second_record_counts_as_a_second_record(way: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("p,a,y\n1,1,yes\n2,2,no\n3,3,no\n1,oops,yes\n1,4,yes\n")
    found = encoded(Source(path), ONCE, way)
    assert sorted(patients(found)) == sorted(of_texts(["2", "3"]).view("int64").tolist())


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_the_same_record_is_recognised_beside_a_bad_number(way: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("p,a,y\n1,1.50,yes\n2,2,no\n3,oops,no\n1,1.5,yes\n")
    assert len(encoded(Source(path), SCHEMA, way).records) == 2


def test_an_id_with_more_digits_than_python_writes_stops_nothing() -> None:
    ids = [Decimal("1e131071"), Decimal("1e999999"), 10**5000, 10**5000 + 1, Decimal("17.0"), 17]
    texts = as_text(pd.Series(ids, dtype=object)).tolist()
    assert texts[-2:] == ["17", "17"]
    assert len(set(texts)) == 5
