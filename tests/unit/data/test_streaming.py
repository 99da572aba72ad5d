"""A file that is encoded while it is read gives what the whole table gives: records, notes and messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import confrere.data.read.streaming as streaming
from confrere.core.errors import DataError
from confrere.data.column_kinds import Column, Derivation
from confrere.data.encode.encoder import encode_table
from confrere.data.federation import Source, of_files
from confrere.data.read.streaming import encode_file, encode_stream
from confrere.data.schema import Schema
from confrere.data.tasks import Label

SCHEMA = Schema(
    label=Label(column="sick", classes=("no", "yes"), unlabelled="drop"),
    patient="who",
    columns=(
        Column("age", range=(0, 120), outside="missing"),
        Column("weight", range=(0, 300), outside="clip"),
        Column("sex", kind="category", categories=("F", "M"), unknown="missing"),
        Column("smokes", kind="flag"),
        Column("TSH", range=(0, 100)),
    ),
)


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 300
    return pd.DataFrame(
        {
            "who": [f"{i:05}" for i in range(n)],
            "age": np.where(rng.uniform(size=n) < 0.1, np.nan, rng.integers(18, 140, n)),
            "weight": rng.normal(80, 90, n).round(1),
            "sex": rng.choice(["F", "M", "?"], n),
            "smokes": rng.choice(["0", "1"], n),
            "TSH": [""] * n,
            "sick": rng.choice(["no", "yes", ""], n),
        }
    )


def save(frame: pd.DataFrame, folder: Path, name: str = "a.csv", encoding: str = "utf-8") -> Path:
    frame.to_csv(folder / name, index=False, encoding=encoding)
    return folder / name


def test_records_notes_and_empty_columns_are_those_of_the_whole_table(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    source = Source(save(frame, tmp_path))
    whole = encode_table(source.read(SCHEMA), SCHEMA)
    for done in (encode_file(source, SCHEMA, rows=37), encode_stream(source, SCHEMA, rows=37)):
        assert done is not None
        assert torch.equal(done.records.inputs, whole.records.inputs)
        assert torch.equal(done.records.targets, whole.records.targets)
        assert done.records.units is not None
        assert whole.records.units is not None
        assert torch.equal(done.records.units, whole.records.units)
        assert done.notes == whole.notes
        assert done.lacks == whole.lacks == ("TSH",)
    assert any("impossible values taken as missing" in note for note in whole.notes)


def test_memory_grows_where_the_beginning_of_a_file_foretold_fewer_records(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(save(frame, tmp_path))
    monkeypatch.setattr(streaming, "_records", lambda _: 1)
    done = encode_file(source, SCHEMA, rows=37)
    assert done is not None
    assert torch.equal(done.records.inputs, encode_table(source.read(SCHEMA), SCHEMA).records.inputs)


def test_what_needs_the_whole_table_is_left_to_it(frame: pd.DataFrame, tmp_path: Path) -> None:
    dated = frame.assign(**{"in": "05/11/2020", "out": "30/11/2020", "seen": "30/11/2020"})
    seen = Column("seen", kind="date", coarsen="year", range=(2000, 2030))
    days = Column("stay", range=(0, 99), derive=Derivation(how="days", of=("in", "out")))
    source = Source(save(dated, tmp_path, "dated.csv"))
    for column in (seen, days):
        schema = replace(SCHEMA, columns=(*SCHEMA.columns, column))
        assert encode_file(source, schema) is None, "the order of day and month is in no field by itself"
        stated = replace(SCHEMA, columns=(*SCHEMA.columns, replace(column, date_format="%d/%m/%Y")))
        assert encode_file(source, stated) is not None
    again = frame.assign(who=["00000", *frame["who"][:-1]])
    assert encode_file(Source(save(again, tmp_path, "again.csv")), SCHEMA, rows=37) is None
    far = frame.assign(who=[*frame["who"][:-1], "00000"])
    assert encode_file(Source(save(far, tmp_path, "far.csv")), SCHEMA, rows=37) is None
    alike = frame.assign(sick="no")
    assert encode_file(Source(save(alike, tmp_path, "alike.csv")), SCHEMA, one_class=False) is None


@pytest.mark.parametrize(
    ("column", "value"), [("weight", "heavy"), ("smokes", "perhaps"), ("sick", "so-so"), ("age", "inf")]
)
def test_a_message_about_a_large_file_is_the_one_about_a_small_one(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: str
) -> None:
    broken = frame.assign(sick="no").astype({column: object})
    broken.loc[::2, "sick"] = "yes"
    broken.loc[[150, 250], column] = value
    path = save(broken, tmp_path)
    with pytest.raises(DataError) as small:
        of_files({"a": path, "b": path}, SCHEMA)
    monkeypatch.setattr(streaming, "LARGE", 1)
    with pytest.raises(DataError, match=f"a.csv, line 152, column {column}") as large:
        of_files({"a": path, "b": path}, SCHEMA)
    assert str(large.value) == str(small.value)


def test_a_study_encodes_a_large_file_while_it_reads_it(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(frame, tmp_path)
    small = of_files({"a": path, "b": path}, SCHEMA).sites["a"]
    monkeypatch.setattr(streaming, "LARGE", 1)
    monkeypatch.setattr("confrere.data.federation.encode_table", None)  # the whole table is not needed
    large = of_files({"a": path, "b": path}, SCHEMA).sites["a"]
    assert torch.equal(large.train.inputs, small.train.inputs)
    assert large.notes == small.notes


def test_a_short_line_far_down_is_refused_and_a_guessed_encoding_is_told(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    named = frame.assign(who=[f"Müller {i}" for i in range(300)])
    source = Source(save(named, tmp_path, encoding="cp1252"))
    assert "cp1252" in encode_stream(source, SCHEMA, rows=64).notes[0]
    path = save(frame, tmp_path, "short.csv")
    lines = path.read_text().splitlines()
    lines[200] = lines[200].rsplit(",", 2)[0]
    path.write_text("\n".join(lines))
    assert encode_file(Source(path), SCHEMA, rows=64) is None
    with pytest.raises(DataError, match=r"short.csv, line 201: 5 fields where 7 were expected"):
        encode_stream(Source(path), SCHEMA, rows=64)
