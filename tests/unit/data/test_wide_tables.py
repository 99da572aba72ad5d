"""Wide tables: the work grows with the number of columns, not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from confrere.data import schema_draft
from confrere.data.column_kinds import Column
from confrere.data.encode.encoder import encode_table
from confrere.data.read.delimited import dialect
from confrere.data.schema import Schema
from confrere.data.schema_draft import draft
from confrere.data.tasks import Label
from confrere.study import Study

FEW, MANY = 2_000, 16_000


def schema(count: int) -> Schema:
    columns = tuple(Column(f"c{i}", kind="number", range=(-9.0, 9.0)) for i in range(count))
    return Schema(label=Label(column="y", classes=("0", "1")), columns=columns)


def frame(count: int) -> pd.DataFrame:
    values = np.random.default_rng(0).normal(size=(4, count)).round(3)
    return pd.DataFrame(values, columns=[f"c{i}" for i in range(count)]).assign(y=["0", "1", "0", "1"])


class Counted:
    """Calls a function and counts the calls."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: object, **options: object) -> object:
        self.calls += 1
        return self.function(*args, **options)


class Probe:
    """Something in a frame's attrs that counts its copies."""

    copies = 0

    def __deepcopy__(self, memo: object) -> Probe:
        Probe.copies += 1
        return self


def seconds(work: Callable[[], object]) -> float:
    found = []
    for _ in range(3):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def build(count: int) -> Callable[[], object]:
    return lambda: schema(count)


def encode(count: int) -> Callable[[], object]:
    table, known = frame(count), schema(count)
    return lambda: encode_table(table, known)


@pytest.mark.parametrize("work", [build, encode])
def test_eight_times_the_columns_take_about_eight_times_as_long(
    work: Callable[[int], Callable[[], object]],
) -> None:
    few, many = seconds(work(FEW)), seconds(work(MANY))
    assert many < 16 * few + 0.05  # quadratic work would take 64 times as long


def test_the_stated_number_columns_are_gone_through_once_however_wide_the_file_is(tmp_path: Path) -> None:
    class Names(list[str]):
        times = 0

        def __iter__(self) -> Iterator[str]:
            self.times += 1
            return super().__iter__()

    names = Names(f"c{i}" for i in range(300))
    (tmp_path / "wide.csv").write_text(",".join(list.__iter__(names)) + "\n" + ",".join("1" * 300) + "\n")
    assert dialect(tmp_path / "wide.csv", numbers=names).numbers == tuple(list.__iter__(names))
    assert names.times == 1


@pytest.mark.parametrize("count", [30, 300])
def test_a_draft_converts_no_number_column_by_itself(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, blocks = Counted(schema_draft.as_text), Counted(schema_draft._block_facts)
    monkeypatch.setattr(schema_draft, "as_text", texts)
    monkeypatch.setattr(schema_draft, "_block_facts", blocks)
    assert len(draft(frame(count), label="y").schema.columns) == count
    assert (texts.calls, blocks.calls) == (1, 1)  # the label, and all numbers together


def test_a_draft_converts_a_text_column_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Counted(schema_draft.as_text)
    monkeypatch.setattr(schema_draft, "as_text", texts)
    table = pd.DataFrame({f"c{i}": ["a", "b", "a", "c"] for i in range(20)}).assign(y=["0", "1", "0", "1"])
    assert len(draft(table, label="y").schema.columns) == 20
    assert texts.calls == 21


def test_encoding_copies_what_is_attached_to_a_table_a_fixed_number_of_times() -> None:
    def copies(count: int) -> int:
        table = frame(count)
        table.attrs["probe"], Probe.copies = Probe(), 0
        encode_table(table, schema(count))
        return Probe.copies

    assert copies(300) == copies(30)


def test_a_study_reads_its_schema_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Counted(Schema.from_dict)
    monkeypatch.setattr(Schema, "from_dict", reads)
    study = Study(schema=schema(30).to_dict(), strategy="fedavg")
    assert study.hash() == study.hash()
    assert study.parsed_schema is study.parsed_schema
    assert reads.calls == 1
