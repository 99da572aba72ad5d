"""Wide tables: the work grows with the number of columns, not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from confrere.data.encode.encoder import encode_table
from confrere.data.read.delimited import dialect
from confrere.data.schema import Column, Label, Schema
from confrere.data.schema_draft import draft

FEW, MANY = 2_000, 16_000


def schema(count: int) -> Schema:
    columns = tuple(Column(f"c{i}", kind="number", range=(-9.0, 9.0)) for i in range(count))
    return Schema(label=Label(column="y", classes=("0", "1")), columns=columns)


def frame(count: int) -> pd.DataFrame:
    values = np.random.default_rng(0).normal(size=(4, count)).round(3)
    return pd.DataFrame(values, columns=[f"c{i}" for i in range(count)]).assign(y=["0", "1", "0", "1"])


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


def drawn(count: int) -> Callable[[], object]:
    table = frame(count // 16)  # slower for each column
    return lambda: draft(table, label="y")


@pytest.mark.parametrize("work", [build, encode, drawn])
def test_eight_times_the_columns_take_about_eight_times_as_long(
    work: Callable[[int], Callable[[], object]],
) -> None:
    few, many = seconds(work(FEW)), seconds(work(MANY))
    assert many < 16 * few + 0.05  # quadratic work would take 64 times as long


def test_the_stated_number_columns_are_gone_through_once_however_wide_the_file_is(tmp_path: Path) -> None:
    class Counted(list[str]):
        times = 0

        def __iter__(self) -> Iterator[str]:
            self.times += 1
            return super().__iter__()

    names = Counted(f"c{i}" for i in range(300))
    (tmp_path / "wide.csv").write_text(",".join(list.__iter__(names)) + "\n" + ",".join("1" * 300) + "\n")
    assert dialect(tmp_path / "wide.csv", numbers=names).numbers == tuple(list.__iter__(names))
    assert names.times == 1
