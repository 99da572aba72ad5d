"""A field of a text file is read by itself: what stands in other rows of its column does not matter."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.data.column_kinds import Column, Translation
from confrere.data.encode.encoder import Encoded, encode_table
from confrere.data.federation import Source
from confrere.data.read import streaming
from confrere.data.read.delimited import parse_numbers
from confrere.data.read.sources import ReadOptions
from confrere.data.read.values import numbers_or_texts
from confrere.data.schema import Schema
from confrere.data.tasks import Label

SCHEMA = Schema(
    label=Label(column="y", classes=("0", "1"), missing=("-9",), unlabelled="drop"),
    columns=(
        Column("a", range=(-1e4, 1e4), missing=("-2", "-9,5", "unknown"), outside="clip"),
        Column("b", range=(-1e4, 1e4), outside="clip"),
        Column("c", kind="category", categories=("01", "2", "true"), unknown="missing", missing=("-1",)),
        Column("f", kind="flag"),
    ),
)
NUMBERS = st.one_of(
    st.sampled_from(["", "NA", "-2", "-2.0", "-9.5", "1e3", " 7 ", "+4", "007", "0.1", "9007199254740993"]),
    st.floats(-1e4, 1e4).map(repr),
    st.integers(-9999, 9999).map(str),
)
ROWS = st.lists(
    st.tuples(
        NUMBERS,
        NUMBERS,
        st.sampled_from(["01", "1", "1.0", "2", "2.0", "True", "TRUE", "true", "", "-1", "-1.0"]),
        st.sampled_from(["0", "1", "1.0", "True", "false", "yes", "N", ""]),
        st.sampled_from(["0", "1", "0.0", "1.0", "01", "-9", "-9.0", ""]),
    ),
    min_size=1,
    max_size=12,
)
BAD = st.sampled_from([("oops", 0), ("1.5.2", 1), ("5 mg", 0), ("inf", 1), ("perhaps", 4), ("perhaps", 3)])


def encoded(rows: list[tuple[str, ...]], decimal: str, way: str) -> Encoded:
    lines = [";".join(field.replace(".", decimal) for field in row) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_text("\n".join(["a;b;c;f;y", *lines]) + "\n")
        source = Source(path, ReadOptions(delimiter=";", decimal=decimal))
        if way == "streamed":
            return streaming.encode_stream(source, SCHEMA, rows=4, drop=True)
        if way == "while read":
            found = streaming.encode_file(source, SCHEMA, rows=4)
            assert found is not None
            return found
        tolerant = way == "tolerant"
        return encode_table(source.read(SCHEMA, tolerant), SCHEMA, "", Translation(drop=tolerant))


def same(one: Encoded, two: Encoded) -> bool:
    a, b = one.records, two.records
    return torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("way", ["tolerant", "streamed"])
@settings(deadline=None, max_examples=40)
@given(rows=ROWS, bad=BAD, place=st.integers(0, 12))
def test_one_bad_field_changes_nobody_elses_encoding(
    way: str, decimal: str, rows: list[tuple[str, ...]], bad: tuple[str, int], place: int
) -> None:
    worse = ["1", "1", "2", "1", "1"]
    worse[bad[1]] = bad[0]
    more = [*rows[:place], tuple(worse), *rows[place:]]
    assert same(encoded(rows, decimal, way), encoded(more, decimal, way))


@pytest.mark.parametrize("way", ["tolerant", "streamed"])
@settings(deadline=None, max_examples=40)
@given(rows=ROWS, fields=st.sampled_from([1, 4, 6, 9]), place=st.integers(0, 12))
def test_a_line_that_is_no_record_changes_no_other(
    way: str, rows: list[tuple[str, ...]], fields: int, place: int
) -> None:
    more = [*rows[:place], ("1",) * fields, *rows[place:]]
    assert same(encoded(rows, ".", way), encoded(more, ".", way))


@pytest.mark.parametrize("decimal", [".", ","])
@settings(deadline=None, max_examples=40)
@given(rows=ROWS)
def test_a_file_is_encoded_the_same_in_every_way_of_reading_it(
    decimal: str, rows: list[tuple[str, ...]]
) -> None:
    rows = [*rows, ("1", "1", "2", "1", "1")]
    whole = encoded(rows, decimal, "strict")
    for way in ("tolerant", "streamed", "while read"):
        assert same(whole, encoded(rows, decimal, way)), way


@pytest.mark.parametrize("decimal", [".", ","])
@settings(deadline=None, max_examples=60)
@given(rows=ROWS, place=st.integers(0, 12))
def test_a_word_taken_as_missing_changes_no_other_number(
    decimal: str, rows: list[tuple[str, ...]], place: int
) -> None:
    place = min(place, len(rows))
    more = [*rows[:place], ("unknown", "1", "2", "1", "1"), *rows[place:]]
    alone = encoded([("unknown", "1", "2", "1", "1")], decimal, "strict")
    labelled = [row for row in rows[:place] if row[4] in ("0", "1", "0.0", "1.0", "01")]
    found = encoded(more, decimal, "strict").records.inputs
    before = encoded(rows, decimal, "tolerant").records.inputs
    at = len(labelled)
    assert torch.equal(torch.cat([before[:at], alone.records.inputs, before[at:]]), found)


@settings(deadline=None, max_examples=200)
@given(texts=st.lists(st.text("0123456789.,eE+-inf ", max_size=6), min_size=1, max_size=20))
def test_a_text_is_the_same_number_alone_and_among_others(texts: list[str]) -> None:
    together = parse_numbers(texts)
    apart = np.concatenate([parse_numbers([text]) for text in texts])
    np.testing.assert_array_equal(together, apart)


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12),
    place=st.integers(0, 11),
    text=st.text(
        st.characters(codec="ascii", exclude_characters=';\r\n"', exclude_categories=["Cc"]), max_size=8
    ),
)
def test_the_text_of_one_field_never_changes_how_another_is_read(
    rows: list[tuple[str, str]], place: int, text: str
) -> None:
    """Whether a column is parsed as numbers or, because of one field, as text: all other fields are the same numbers."""
    place = min(place, len(rows) - 1)
    changed = [(text, b) if i == place else (a, b) for i, (a, b) in enumerate(rows)]
    others = np.arange(len(rows)) != place
    for rows_at_once in (0, 3):
        before, after = (_numbers_read(r, rows_at_once) for r in (rows, changed))
        np.testing.assert_array_equal(before["a"][others], after["a"][others])
        np.testing.assert_array_equal(before["b"], after["b"])


def _numbers_read(rows: list[tuple[str, str]], at_once: int) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_text("\n".join(["a;b;y", *(f"{a};{b};0" for a, b in rows)]) + "\n")
        source = Source(path, ReadOptions(delimiter=";", decimal="."))
        pieces = list(source.pieces(SCHEMA, at_once)) if at_once else [source.read(SCHEMA)]
        return {n: np.concatenate([numbers_or_texts(p[n], ".")[0] for p in pieces]) for n in ("a", "b")}


DATED = Schema(
    label=Label(column="y", classes=("0", "1")),
    columns=(Column("seen", kind="date", coarsen="year", range=(1900, 2100), outside="missing"),),
)
DATES = st.sampled_from(
    ["2024-12-31", "31.12.2023", "1999", "2001-02", "20200131", "2020-01-31T23:30:00+02:00", "", "NA"]
)


@pytest.mark.parametrize("form", ["", "%d/%m/%Y", "%m/%d/%Y"])
@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(DATES, min_size=1, max_size=8), more=st.sampled_from(["13/12/2020", "12/13/2020", "soon"])
)
def test_one_date_does_not_decide_how_a_node_reads_the_others(form: str, rows: list[str], more: str) -> None:
    """A day above 12 used to settle the order of day and month for the whole column."""
    column = replace(DATED.columns[0], date_format=form)
    schema = replace(DATED, columns=(column,))

    def found(texts: list[str]) -> torch.Tensor:
        frame = pd.DataFrame({"seen": texts, "y": "0"})
        return encode_table(frame, schema, "", Translation(drop=True)).records.inputs

    without = found([*rows, "01/02/2021"])
    assert torch.equal(found([*rows, "01/02/2021", more])[: len(without)], without)
