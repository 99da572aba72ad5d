"""Patient ids are exact and have one normal form, whatever kind of file they come from and however they are written."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from confrere.data.column_kinds import Column, Translation
from confrere.data.digests import former_ids, normal_id, of_ids, of_texts
from confrere.data.encode.encoder import Encoded, encode_table
from confrere.data.federation import Source
from confrere.data.read.sources import ReadOptions
from confrere.data.read.streaming import encode_stream
from confrere.data.read.values import as_text
from confrere.data.schema import Schema
from confrere.data.split.holdout import split
from confrere.data.tasks import Label
from confrere.privacy.ledger import Ledger
from confrere.privacy.patient_hashes import check_of, former_hashes, hashes, secret_beside

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
    assert before == of_ids(map(str, LARGE)).view("int64").tolist()


def test_a_workbook_row_without_an_id_changes_no_other_id(tmp_path: Path) -> None:
    ids = [10**15 - 3, 17, 18]  # a workbook holds 15 digits
    before = patients(encoded(save([*ids], tmp_path, "xlsx"), SCHEMA, "whole"))
    assert patients(encoded(save([*ids, None], tmp_path, "xlsx"), SCHEMA, "whole"))[:-1] == before
    assert before == of_ids(map(str, ids)).view("int64").tolist()


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_an_id_with_decimals_or_leading_zeros_is_the_same_patient(way: str, tmp_path: Path) -> None:
    found = patients(
        encoded(save(["17", "17.0", " 17 ", "0017", "e\u0301", "\u00e9"], tmp_path, "csv"), SCHEMA, way)
    )
    assert found[0] == found[1] == found[2] == found[3]
    assert found[4] == found[5] != found[0]
    floats = patients(encoded(save([17.0, 18.0], tmp_path, "parquet"), SCHEMA, way))
    assert floats[0] == found[0]


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize(
    "ids",
    [
        ["a17", "a0017"],
        ["a17", "17"],
        ["1 7", "17"],
        ["1.7", "17"],
        ["-17", "17"],
        [str(2**53), str(2**53 + 1)],
    ],
)
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
    assert sorted(patients(found)) == sorted(of_ids(["1", "2", "3"]).view("int64").tolist())
    assert len(found.records) == 3


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_a_bad_second_record_counts_as_a_second_record(way: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("p,a,y\n1,1,yes\n2,2,no\n3,3,no\n1,oops,yes\n1,4,yes\n")
    found = encoded(Source(path), ONCE, way)
    assert sorted(patients(found)) == sorted(of_ids(["2", "3"]).view("int64").tolist())


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


SPELLINGS = {
    "leading zeros": ("17", "0017"),
    "decimals": ("17", "0017.00"),
    "full-width digits": ("17", "\uff11\uff17"),
    "Arabic digits": ("17", "\u0661\u0667"),
    "spaces around": ("A-17", "\u00a0 A-17\t"),
    "spaces inside": ("A 17", "A \u2003 17"),
    "case": ("A-17", "a-17"),
    "sharp s": ("STRASSE", "stra\u00dfe"),
    "composed letters": ("\u00e9-17", "e\u0301-17"),
    "compatibility letters": ("fi17", "\ufb0117"),
    "dashes": ("A-17", "A\u201317"),
    "a hyphen that does not break": ("A-17", "A\u201117"),
    "invisible characters": ("A-17", "\ufeffA-\u200b17\u00ad"),
    "what casefolding composes": ("\u0345\u0301x", "\u03b9\u0301X"),
}


@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_spellings_of_one_id_have_one_normal_form(one: str, other: str) -> None:
    assert normal_id(one) == normal_id(other)
    assert normal_id(normal_id(other)) == normal_id(other)


@given(st.text(max_size=12))
def test_a_normal_form_is_its_own_normal_form(text: str) -> None:
    found = normal_id(text)
    assert normal_id(found) == found == normal_id(f" {text} ")


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize(("one", "other"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_spellings_are_one_patient_for_grouping_split_and_ledger(
    one: str, other: str, way: str, tmp_path: Path
) -> None:
    """All three read the patient from one place: the digest of the id's normal form."""
    others = [f"other {n}" for n in range(6)]
    found = encoded(save([one, *others, other], tmp_path, "parquet"), SCHEMA, way)
    assert found.records.patients == 7  # grouping: clipped, sampled and counted as one
    for seed in range(20):
        parts = split(found.records, seed)
        inside = [
            {first_of(found)} <= set(p.units.tolist()) for p in (parts.train, parts.validation, parts.test)
        ]  # type: ignore[union-attr]
        assert sum(inside) == 1
    path = tmp_path / "ledger.sqlite"
    secret = secret_beside(path)
    spelled = encoded(save([other, "else"], tmp_path, "parquet"), SCHEMA, way)
    with Ledger(path) as first, Ledger(path, population="maternity") as second:
        first.register(
            hashes(secret, patients(encoded(save([one], tmp_path, "parquet"), SCHEMA, way))), check_of(secret)
        )
        left_out = second.register(hashes(secret, patients(spelled)), check_of(secret))
    assert left_out == hashes(secret, patients(spelled)[:1])


def first_of(found: Encoded) -> int:
    return patients(found)[0]


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("id", ["A-17", "0017", " A 17 ", "17", "17.0", "\uff11\uff17"])
def test_a_ledger_charged_under_the_former_form_of_an_id_recognises_the_patient(
    id: str, way: str, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    secret = secret_beside(path)
    before = hashes(secret, of_texts([id]).view("int64").tolist())
    found = encoded(save([id, "b"], tmp_path, "parquet"), SCHEMA, way)
    pairs = [] if found.former is None else found.former.tolist()
    with Ledger(path) as first, Ledger(path, population="maternity") as second:
        first.register(before, check_of(secret))
        left_out = second.register(
            hashes(secret, patients(found)), check_of(secret), former_hashes(secret, pairs)
        )
    assert left_out == hashes(secret, patients(found)[:1])


def test_only_ids_that_were_written_otherwise_have_a_former_form() -> None:
    for ids, others in ((["17", "a-17", "17.0"], 0), (["0017", "A-17"], 2)):
        assert len(former_ids(ids, [normal_id(text) for text in ids])) == others


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_letters_of_other_columns_still_count(way: str, tmp_path: Path) -> None:
    """Two records of one patient that differ by the case of a letter are two records."""
    schema = Schema(
        label=Label(column="y"),
        columns=(Column("c", kind="category", categories=("s", "S")),),
        patient="p",
    )
    path = tmp_path / "a.csv"
    path.write_text("p,c,y\nA,s,yes\na,S,yes\n A,s,yes\nb,s,no\n")
    assert len(encoded(Source(path), schema, way).records) == 3
