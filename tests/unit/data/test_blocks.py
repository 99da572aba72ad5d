"""The quick way and the careful way give the same numbers and the same notes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import confrere.data.encode.encoder as encoding
from confrere.data.column_kinds import Column
from confrere.data.schema import Schema
from confrere.data.tasks import Label


@pytest.mark.parametrize("strange", [False, True])
def test_the_quick_way_gives_what_the_careful_way_gives(
    monkeypatch: pytest.MonkeyPatch, strange: bool
) -> None:
    rng = np.random.default_rng(0)
    n = 10_000
    frame = pd.DataFrame(
        {"a": rng.normal(0, 10, n), "b": rng.integers(1, 90, n), "c": rng.uniform(0.1, 50, n)}
    )
    frame.loc[rng.uniform(size=n) < 0.1, "a"] = np.nan
    frame.loc[7000, "c"] = 1e9 if strange else 1.0
    frame["y"] = rng.integers(0, 2, n)
    schema = Schema(
        label=Label(column="y"),
        columns=(
            Column("a", range=(-100, 100), usual=(-5, 5), marks=True, typical=2.0),
            Column("b", range=(0, 100), gaps="refuse"),
            Column("c", range=(0.05, 60), usual=(1, 10), scale="log", outside="missing", marks=True),
        ),
    )
    quick = encoding.encode_table(frame, schema)
    monkeypatch.setattr(encoding, "plain", lambda *_: None)
    careful = encoding.encode_table(frame, schema)
    assert torch.equal(quick.records.inputs, careful.records.inputs)
    assert quick.notes == careful.notes
