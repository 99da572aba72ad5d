"""One malformed record: a node leaves it out, and nothing else changes; a rehearsal names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column, texts
from confrere.data.federation import Opening, Source, of_files
from confrere.data.read.sources import ReadOptions
from confrere.data.records import SiteData
from confrere.data.schema import Schema
from confrere.data.split.holdout import SplitRule
from confrere.data.tasks import Label

LABEL = Label(column="y", classes=("no", "yes"))
NUMBER = Column("a", range=(-3.0, 3.0))
DATE = Column("a", kind="date", coarsen="month", range=(1900, 2030))
STEPS = Column("w", kind="series", shape=(3, 1), range=(0, 10))
PICTURE = Column("a", kind="image", size=(4, 4), channels=1)

NUMBERS = "a,y\n" + "1.5,yes\n-0.5,no\n" * 4
DATES = "a,y\n" + "2020-03-11,yes\n2021-04-12,no\n" * 4
WIDE = "w0,w1,w2,y\n" + "1,2,3,yes\n4,5,6,no\n" * 4
FILES = "w,y\n" + "good.npy,yes\ngood.npy,no\n" * 4
PICTURES = "a,y\n" + "good.png,yes\ngood.png,no\n" * 4
SITES = "centre,a,y\n" + "s,1.5,yes\ns,-0.5,no\n" * 4


@dataclass(frozen=True)
class Case:
    """A file, the line that is added to it, and what a rehearsal says of that line."""

    column: Column
    text: str
    line: bytes
    message: str = ""
    """Empty where nothing is wrong with the record, or where a rehearsal has another site for it."""
    kept: bool = False
    site: str = ""


CASES = {
    "a date with a time zone": Case(DATE, DATES, b"2020-03-11T10:00:00+01:00,no", kept=True),
    "no date": Case(DATE, DATES, b"soon,no", "column a: 'soon' is not a date.* write dates as"),
    "a word in a numbered series": Case(STEPS, WIDE, b"1,abc,3,no", "column w1: 'abc' is not a number.* list it"),
    "a picture's name of 300 characters": Case(
        PICTURE, PICTURES, b"x" * 300 + b".png,no", r"column a: cannot be read .*too long.*correct the record"
    ),
    "a picture's name with NUL": Case(PICTURE, PICTURES, b"a\0b.png,no", "column a: cannot be read .*null"),
    "an array that claims 7 TiB": Case(STEPS, FILES, b"huge.npy,no", "column w: huge.npy cannot be read as num"),
    "a series of objects": Case(STEPS, FILES, b"objects.npy,no", "column w: objects.npy cannot be read as num"),
    "a number with NUL": Case(NUMBER, NUMBERS, b"1\0,no", r"column a: '1\\x00' is not a number"),
    "a huge number": Case(NUMBER, NUMBERS, b"9" * 400 + b",no", "column a: inf is not a finite number"),
    "a field of 200,000 characters": Case(NUMBER, NUMBERS, b"x" * 200_000 + b",no", "column a: 'x+.*is not a number"),
    "another site": Case(NUMBER, SITES, b"t,1,yes", site="centre"),
    "no site": Case(NUMBER, SITES, b",1,yes", "column centre: the record names no site", site="centre"),
    "a field too many": Case(NUMBER, NUMBERS, b"1,no,7", "3 fields where 2 were expected; is a field .* not quoted"),
    "a field too few": Case(NUMBER, NUMBERS, b"1", "1 fields where 2 were expected"),
    "a line in Latin-1": Case(NUMBER, NUMBERS, b"1,j\xe9", "is not utf-8-sig; state how"),
}  # fmt: skip


def opened(folder: Path, case: Case, *, added: bool, tolerant: bool, stream: bool = False) -> SiteData:
    """The records of the case's file as a node (or a rehearsal) reads them, with or without the line in question."""
    Image.fromarray(np.full((4, 4), 7, dtype=np.uint8)).save(folder / "good.png")
    np.save(folder / "good.npy", np.ones((3, 1)))
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    (folder / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n")
    lines = case.text.encode().splitlines()
    lines[5:5] = [case.line] * added
    path = folder / "a.csv"
    path.write_bytes(b"\n".join(lines) + b"\n")
    source = Source(
        path, ReadOptions(delimiter=",", encoding="utf-8-sig", decimal="."), stream=stream, declared=50
    )
    schema = Schema(label=LABEL, columns=(case.column,), site=case.site)
    opening = Opening(split=SplitRule(key=b"k" * 16), one_class=True, tolerant=tolerant)
    return of_files({"s": source}, schema, opening).sites["s"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CASES)
def test_a_node_leaves_the_record_out_and_keeps_all_others(tmp_path: Path, name: str, stream: bool) -> None:
    case = CASES[name]
    without = opened(tmp_path, case, added=False, tolerant=True, stream=stream)
    found = opened(tmp_path, case, added=True, tolerant=True, stream=stream)
    assert len(found.all) == 8 + case.kept
    if not case.kept:
        for part in ("train", "validation", "test"):
            assert torch.equal(getattr(found, part).inputs, getattr(without, part).inputs)
        noted = [n for n in found.notes if "left out" in n]
        assert len(noted) == 1
        assert "line 6" in noted[0]


@pytest.mark.parametrize("name", CASES)
def test_a_rehearsal_names_the_record(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    if not case.message:
        assert len(opened(tmp_path, case, added=True, tolerant=False).all) == 8 + case.kept
        return
    with pytest.raises(DataError, match=f"^a.csv, (line 6.*)?{case.message}") as found:
        opened(tmp_path, case, added=True, tolerant=False)
    assert found.value.exit_code == 2


BROKEN_LINES = Case(
    Column("a", kind="text", buckets=8),
    'a,y\n"two\nlines",yes\n\nfever,no\n',
    b"a,field,too many\n1\n\xff,no",
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_records_of_several_lines_are_kept_beside_lines_that_are_no_records(
    tmp_path: Path, stream: bool
) -> None:
    without = opened(tmp_path, BROKEN_LINES, added=False, tolerant=True, stream=stream)
    found = opened(tmp_path, BROKEN_LINES, added=True, tolerant=True, stream=stream)
    assert len(found.all) == len(without.all) == 2
    assert torch.equal(found.all.inputs, without.all.inputs)
    note = "3 records left out, not a whole line of text; the first: a.csv, line 6: 3 fields where 2 were expected"
    assert note in found.notes


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_file_of_broken_lines_only_is_a_site_without_records(tmp_path: Path, stream: bool) -> None:
    case = Case(NUMBER, "a,y\n", b"1\n1,2,3")
    found = opened(tmp_path, case, added=True, tolerant=True, stream=stream)
    assert len(found.all) == 0
    assert any("2 records left out" in note for note in found.notes)


def test_an_error_further_on_names_the_line_of_the_file(tmp_path: Path) -> None:
    case = Case(NUMBER, NUMBERS, b"1,no,7\noops,no")
    notes = opened(tmp_path, case, added=True, tolerant=True).notes
    assert any("a.csv, line 7, column a: 'oops' is not a number" in note for note in notes)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tolerant", [False, True], ids=["rehearsal", "node"])
def test_an_open_quotation_mark_is_refused_since_all_that_follows_may_be_its_field(
    tmp_path: Path, tolerant: bool, stream: bool
) -> None:
    case = Case(NUMBER, NUMBERS, b'"1,no')
    with pytest.raises(DataError, match=r"a.csv, line 6: a quotation mark is opened and never closed"):
        opened(tmp_path, case, added=True, tolerant=tolerant, stream=stream)


def breaking(bad: Callable[[pd.Series[Any]], bool]) -> Callable[..., Any]:
    """A reader of texts with a bug."""

    def read(texts: pd.Series[Any], column: Column) -> Any:
        if bad(texts):
            raise ZeroDivisionError("a bug")
        return np.zeros((len(texts), column.buckets), dtype=np.float32)

    return read


NOTES = Case(Column("a", kind="text", buckets=8), "a,y\n" + "well,yes\nfever,no\n" * 4, b"odd,no")


def test_an_unforeseen_error_belongs_to_the_record_that_causes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "encode_texts", breaking(lambda texts: "odd" in set(texts)))
    assert len(opened(tmp_path, NOTES, added=True, tolerant=True).all) == 8
    message = r"a.csv, line 6, column a: cannot be read \(ZeroDivisionError: a bug\); correct the record"
    with pytest.raises(DataError, match=message):
        opened(tmp_path, NOTES, added=True, tolerant=False)


@pytest.mark.parametrize(
    "bad", [lambda texts: True, lambda texts: len(texts) > 1], ids=["always", "together"]
)
def test_an_error_of_no_single_record_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Callable[[pd.Series[Any]], bool]
) -> None:
    monkeypatch.setattr(texts, "encode_texts", breaking(bad))
    with pytest.raises(ZeroDivisionError):
        opened(tmp_path, NOTES, added=True, tolerant=True)
