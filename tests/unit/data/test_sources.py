"""Sources: the same records, whatever they come from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy
import torch

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Column, Translation
from confrere.data.encode.encoder import encode
from confrere.data.federation import Opening, Source, of_files
from confrere.data.read import sql
from confrere.data.read.sources import ReadOptions, chunks, read
from confrere.data.read.streaming import encode_stream, select_mapped
from confrere.data.schema import Schema
from confrere.data.tasks import Label
from confrere.site.open_sites import open_sites
from confrere.study import load

SCHEMA = Schema(
    label=Label(column="sick", classes=("no", "yes")),
    columns=(
        Column("age", range=(0, 120)),
        Column("sex", kind="category", categories=("F", "M")),
        Column("seen", kind="date", coarsen="year", range=(2000, 2030)),
    ),
)


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 300
    return pd.DataFrame(
        {
            "age": np.where(rng.uniform(size=n) < 0.1, np.nan, rng.integers(18, 90, n)),
            "sex": rng.choice(["F", "M"], n),
            "seen": rng.choice(["2020-01-31", "2021-06-15", "2022-12-01"], n),
            "sick": rng.choice(["no", "yes"], n),
        }
    )


def save(frame: pd.DataFrame, folder: Path, kind: str) -> Path:
    path = folder / f"a.{kind}"
    if kind in ("csv", "tsv", "txt"):
        frame.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t", "txt": "|"}[kind])
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    elif kind == "xlsx":
        pytest.importorskip("openpyxl")
        frame.to_excel(path, index=False)
    else:
        arrays: dict[str, Any] = {c: np.asarray(frame[c], dtype=None if c == "age" else "U10") for c in frame}
        np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "txt", "parquet", "xlsx", "npz"])
def test_the_same_table_gives_the_same_records_from_any_file(
    frame: pd.DataFrame, tmp_path: Path, kind: str
) -> None:
    expected = encode(frame, SCHEMA)
    found = encode(read(save(frame, tmp_path, kind)), SCHEMA)
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)


@pytest.mark.parametrize("kind", ["parquet", "xlsx", "npz", "npy"])
def test_a_file_that_only_claims_its_kind_gives_a_message(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(b"this is no such file")
    with pytest.raises(DataError, match=f"a.{kind}"):
        read(path)


def test_a_pickle_inside_a_numpy_file_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read as NumPy"):
        read(path)


def test_a_workbook_with_several_sheets_asks_which(frame: pd.DataFrame, tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    path = tmp_path / "a.xlsx"
    with pd.ExcelWriter(path) as book:
        frame.to_excel(book, sheet_name="north", index=False)
        frame.head(5).to_excel(book, sheet_name="south", index=False)
    with pytest.raises(DataError, match="say which: sheet = 'north'"):
        read(path)
    assert len(read(path, ReadOptions(sheet="south"))) == 5


def test_a_database_query_gives_the_same_records(frame: pd.DataFrame, tmp_path: Path) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = f"sqlite:///{tmp_path / 'a.db'}"
    engine = sqlalchemy.create_engine(url)
    frame.to_sql("patients", engine, index=False)
    engine.dispose()
    found = encode(read(url, ReadOptions(query="SELECT * FROM patients")), SCHEMA)
    assert torch.equal(found.inputs, encode(frame, SCHEMA).inputs)
    pieces = list(chunks(url, 70, ReadOptions(query="SELECT * FROM patients")))
    assert [len(p) for p in pieces] == [70, 70, 70, 70, 20]
    with pytest.raises(DataError, match="no such table"):
        read(url, ReadOptions(query="SELECT * FROM nobody"))
    with pytest.raises(DataError, match="needs a query"):
        read(url)


def test_no_password_is_in_a_message() -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(DataError) as caught:
        read("postgresql+psycopg://me:secret@127.0.0.1:1/x", ReadOptions(query="SELECT 1"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_streamed_file_gives_the_same_records_as_a_file_in_memory(
    frame: pd.DataFrame, tmp_path: Path, kind: str
) -> None:
    frame = frame.assign(who=np.arange(300) // 3)
    schema = Schema(label=SCHEMA.label, columns=SCHEMA.columns, patient="who")
    path = save(frame, tmp_path, kind)
    whole = encode(read(path), schema)
    streamed = encode_stream(Source(path), schema, rows=37).records
    assert torch.equal(streamed.inputs, whole.inputs)
    assert torch.equal(streamed.targets, whole.targets)
    assert streamed.units is not None
    assert whole.units is not None
    assert torch.equal(streamed.units, whole.units)
    few = select_mapped(streamed, [5, 7, 250])
    assert torch.equal(few.inputs, whole.inputs[[5, 7, 250]])


def test_a_streamed_site_is_split_like_one_in_memory(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = save(frame, tmp_path, "csv")
    plain = of_files({"a": path, "b": path}, SCHEMA, Opening(seed=1))
    streamed = of_files({"a": Source(path, stream=True), "b": path}, SCHEMA, Opening(seed=1))
    assert torch.equal(streamed.sites["a"].train.inputs, plain.sites["a"].train.inputs)
    assert torch.equal(streamed.sites["a"].test.targets, plain.sites["a"].test.targets)


def test_a_line_number_is_right_in_a_later_piece(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[200, "sex"] = "?"
    path = save(frame, tmp_path, "csv")
    with pytest.raises(DataError, match="line 202, column sex"):
        encode_stream(Source(path), SCHEMA, rows=64)


def test_several_files_and_one_file_with_a_site_column_give_the_same_sites(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    halves = {"a": frame.iloc[:150], "b": frame.iloc[150:]}
    several = of_files(
        {k: save(f, _folder(tmp_path / k), "csv") for k, f in halves.items()}, SCHEMA, Opening(seed=2)
    )
    with_site = Schema(label=SCHEMA.label, columns=SCHEMA.columns, site="site")
    both = pd.concat([f.assign(site=k) for k, f in halves.items()])
    one = of_files({"all": save(both, tmp_path, "csv")}, with_site, Opening(seed=2))
    assert list(one.sites) == list(several.sites) == ["a", "b"]
    for k in halves:
        assert torch.equal(one.sites[k].train.inputs, several.sites[k].train.inputs)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_missing_column_is_imputed_left_out_everywhere_or_refused(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    paths = {"a": save(frame, tmp_path, "csv"), "b": save(frame.drop(columns="age"), tmp_path, "tsv")}
    imputed = of_files(dict(paths), SCHEMA)
    assert any("age is not recorded here" in note for note in imputed.sites["b"].notes)
    assert bool((imputed.sites["b"].all.inputs[:, 1] == 1).all())
    common = Schema(label=SCHEMA.label, columns=SCHEMA.columns, missing_columns="common")
    shared = of_files(dict(paths), common)
    assert "age" not in shared.task.features
    assert any("left out: 'age'" in note for note in shared.notes)
    strict = Schema(label=SCHEMA.label, columns=SCHEMA.columns, missing_columns="refuse")
    with pytest.raises(DataError, match=r"a\.tsv: the column 'age' is not there"):
        of_files(dict(paths), strict)


def test_names_and_units_of_a_site_are_translated(frame: pd.DataFrame) -> None:
    schema = Schema(label=SCHEMA.label, columns=(Column("weight", unit="kg", range=(1, 300)),))
    pounds = frame[["sick"]].assign(wt_lb=176.37)
    records = encode(pounds, schema, "", Translation(rename={"wt_lb": "weight"}, units={"weight": "lb"}))
    assert float(records.inputs[0, 0]) == pytest.approx((80 - 150.5) / 149.5, abs=1e-4)
    with pytest.raises(DataError, match="cannot convert stone into kg; known for kg: g, lb"):
        encode(pounds, schema, "", Translation(rename={"wt_lb": "weight"}, units={"weight": "stone"}))
    with pytest.raises(DataError, match="there is no column 'mass'"):
        encode(pounds, schema, "", Translation(rename={"mass": "weight"}))


def test_own_files_without_a_schema_work_for_a_rehearsal_and_that_is_said(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    paths = {k: save(frame.iloc[part], _folder(tmp_path / k), "csv") for k, part in
             {"a": slice(0, 150), "b": slice(150, 300)}.items()}  # fmt: skip
    opened = of_files(dict(paths), label="sick")
    assert opened.task.kind == "binary"
    assert any("rehearsal in one building only" in note for note in opened.notes)
    with pytest.raises(StudyError, match="which column is to be predicted"):
        of_files(dict(paths))


def test_a_query_whose_result_is_larger_than_expected_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect(tmp_path / "ward.db") as base:
        base.execute("CREATE TABLE notes (age REAL, text TEXT)")
        base.executemany(
            "INSERT INTO notes VALUES (?, ?)", [(float(i % 90), "x" * 5000) for i in range(2000)]
        )
    url, query = f"sqlite:///{tmp_path / 'ward.db'}", "SELECT * FROM notes"
    with pytest.raises(
        DataError, match=r"sqlite database .*: the query gives more than the 1 MB .*SELECT \* FROM"
    ):
        read(url, ReadOptions(query=query, limit=1024**2))
    assert len(read(url, ReadOptions(query=query, limit=20 * 1024**2))) == 2000


def test_a_site_says_how_large_its_data_may_be(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,sick\n" + "50,1\n" * 300_000)
    (tmp_path / "study.toml").write_text('[sites.a]\ndata = "a.csv"\nlimit_mb = 1\n[data]\nlabel = "sick"\n')
    with pytest.raises(DataError, match=r"a.csv: has 1 MB where at most 1 MB were expected.*limit_mb"):
        open_sites(load(tmp_path / "study.toml"))


WRITING = {
    "ATTACH": "ATTACH DATABASE '{made}' AS other",
    "a second statement": "SELECT * FROM patients; ATTACH DATABASE '{made}' AS other",
    "behind a comment": "SELECT 1 -- a\n; ATTACH DATABASE '{made}' AS other",
    "VACUUM INTO": "VACUUM INTO '{made}'",
    "CREATE": "CREATE TABLE other (a)",
    "DELETE": "DELETE FROM patients",
    "DELETE behind WITH": "WITH a AS (SELECT 1) DELETE FROM patients",
    "INSERT … RETURNING": "INSERT INTO patients SELECT * FROM patients RETURNING *",
    "PRAGMA": "PRAGMA user_version = 7",
    "an extension": "SELECT load_extension('{made}')",
    "a pragma as a table": "SELECT * FROM pragma_database_list",
}


@pytest.mark.parametrize("query", WRITING.values(), ids=WRITING.keys())
@pytest.mark.parametrize("guarded", [True, False], ids=["by its words", "by the database alone"])
def test_a_query_that_does_more_than_read_is_refused_and_changes_nothing(
    query: str, guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "a.sqlite", tmp_path / "made.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE patients (age, y)")
        database.execute("INSERT INTO patients VALUES (61, 'yes')")
    before = path.read_bytes()
    if not guarded:
        monkeypatch.setattr(sql, "one_select", lambda query, name: query)
    url, asked = f"sqlite:///{path}", query.format(made=made)
    with pytest.raises(DataError):
        sql.read_sql(url, asked, 10**6)
    with pytest.raises(DataError):
        list(sql.stream_sql(url, asked, 10))
    assert (path.read_bytes(), sorted(p.name for p in tmp_path.iterdir())) == (before, ["a.sqlite"])


@pytest.mark.parametrize(
    "query",
    [
        "SELECT age, y FROM patients",
        "  select age, y from patients ; ",
        "-- all; of them\nWITH old AS (SELECT * FROM patients WHERE age > 60) SELECT age, y FROM old",
        "SELECT age, replace(y, ';', 'insert into') AS y FROM patients /* delete; */",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT age, y FROM patients, n",
    ],
)
def test_a_query_that_reads_is_taken(query: str, tmp_path: Path) -> None:
    path = tmp_path / "my patients #1?.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE patients (age, y)")
        database.execute("INSERT INTO patients VALUES (61, 'yes')")
    url = sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string()
    assert list(sql.read_sql(url, query, 10**6).columns) == ["age", "y"]


HIDDEN = {
    "an escaped quote (PostgreSQL)": r"SELECT E'\'' ; COMMIT; DELETE FROM patients; --'",
    "an escaped backslash and quote": r"SELECT E'\\\'' AS b ; CREATE TABLE owned AS SELECT 1; --'",
    "an escaped quote (MySQL)": r"""SELECT '\'' INTO OUTFILE "/tmp/x" -- '""",
    "an escaped quote in a name": 'SELECT "a\\" ; DROP TABLE x; -- "',
    "a dollar in a name (SQLite)": "SELECT a AS x$$ ; DELETE FROM patients; SELECT 1 AS y$$",
    "a text in dollars (PostgreSQL)": "SELECT $a$'$a$ ; DELETE FROM patients; SELECT $a$'$a$",
    "brackets (PostgreSQL)": "SELECT ARRAY[1, (SELECT 3 ; DELETE FROM patients)]",
    "a hash sign (PostgreSQL)": "SELECT 5 # 3 ; DELETE FROM patients",
    "a carriage return": "SELECT 1 -- a\r ; DROP TABLE patients",
    "two dashes (MySQL)": "SELECT 5--1 ; DROP TABLE patients",
    "a comment within a comment": "SELECT 1 /* /* */ ' */ ; DELETE FROM patients; --'",
    "a comment that is run": "SELECT 1 /*!50000 INTO OUTFILE '/tmp/x' */",
    "a text in q (Oracle)": "SELECT q'!'!' ; DELETE FROM patients; --'",
}


@pytest.mark.parametrize("query", HIDDEN.values(), ids=HIDDEN.keys())
def test_a_statement_that_only_some_databases_see_is_refused(query: str) -> None:
    with pytest.raises(DataError, match=r"several statements|would write|read differently"):
        sql.one_select(query, "a database")


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        sql.read_sql(f"sqlite:///{tmp_path}/none.sqlite", "SELECT 1", 10**6)
    assert list(tmp_path.iterdir()) == []
