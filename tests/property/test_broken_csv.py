"""Broken CSV files: a message, never a traceback, and never a record more or less than the file has."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.encode.encoder import encode
from confrere.data.read.sources import read
from confrere.data.schema import Schema
from confrere.data.schema_draft import draft
from confrere.data.tasks import Label

SCHEMA = Schema(
    label=Label(column="y", unlabelled="drop"),
    columns=(
        Column("a", range=(-1e6, 1e6)),
        Column("b", kind="category", categories=("x", "y"), unknown="other"),
        Column("c", kind="date", coarsen="year", range=(1900, 2100), outside="missing"),
    ),
)
GOOD = "a,b,c,y\n1,x,2020-01-02,yes\n2,y,2021-05-06,no\n,x,,yes\n-3.5,x,2019-12-31,no\n"
PIECES = ["\0", '"', '""', ",", ";", "\t", "|", "\n", "\r", "\r\n", "\ufeff", "é", "NaN", "1e999", "-", "=",
          "''", "9" * 400, "2020-13-45", "inf", " ", "a,b,c,y\n", "\x1a", "𝟘", "#"]  # fmt: skip


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    text = GOOD
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(text)))
        if draw(st.booleans()):
            text = text[:at] + draw(st.sampled_from(PIECES)) + text[at:]
        else:
            text = text[:at] + text[at + draw(st.integers(1, 12)) :]
    raw = text.encode(draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig", "utf-32"])), errors="replace")
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=4)) + raw[at:]
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw


def read_and_encode(raw: bytes) -> None:
    """Only a DataError may come out of here, and what is wrong with a file names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.csv"
        path.write_bytes(raw)
        said = [message_of(lambda: read(path))]
        if not said[0]:
            frame = read(path)
            said.append(message_of(lambda: encode(frame, SCHEMA)))
            message_of(lambda: draft(frame))
        assert all("broken.csv" in message for message in said if message)


def message_of(work: Callable[[], object]) -> str:
    try:
        work()
    except DataError as error:
        return str(error)
    return ""


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(broken())
def test_a_broken_file_gives_a_message_and_no_traceback(raw: bytes) -> None:
    read_and_encode(raw)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_and_no_traceback(raw: bytes) -> None:
    read_and_encode(raw)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=6),
                         min_size=3, max_size=3), min_size=1, max_size=8))  # fmt: skip
def test_no_record_is_lost_or_made_up(rows: list[list[str]]) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL)
    writer.writerow(["p", "q", "r"])
    writer.writerows(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text(buffer.getvalue(), encoding="utf-8", newline="")
        assert len(read(path)) == len(rows)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(broken())
def test_many_more_broken_files(raw: bytes) -> None:
    read_and_encode(raw)
