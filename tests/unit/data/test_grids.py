"""Series, bags and volumes: from files, from an .npz and from a DataFrame to one row of numbers for each record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Column, Translation
from confrere.data.encode.encoder import encode, encode_table
from confrere.data.encode.labels import task_of
from confrere.data.read.sources import read
from confrere.data.schema import Schema
from confrere.data.schema_draft import draft
from confrere.data.tasks import Label

LABEL = Label(column="y")
PULSE = Column("pulse", kind="series", shape=(4, 2), range=(0, 200))
SCAN = Column("scan", kind="volume", shape=(2, 3, 3), range=(-1000, 1000))
AGE = Column("age", range=(0, 100))


def cells(*arrays: object) -> pd.Series[Any]:
    return pd.Series(list(arrays), dtype=object)


def test_a_series_is_scaled_padded_and_marked(tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.array([[0, 200], [100, 100], [200, 0], [50, np.nan]]))
    (tmp_path / "short.csv").write_text("100,150\n0,0\n")
    frame = pd.DataFrame({"pulse": ["long.npy", "short.csv"], "y": [1, 0]})
    schema = Schema(label=LABEL, columns=(PULSE,))
    found = encode_table(frame, schema, "", Translation(folder=str(tmp_path)))
    assert schema.inputs == (4, 3)
    long, short = found.records.inputs
    assert long.tolist() == [[-1, 1, 1], [0, 0, 1], [1, -1, 1], [-0.5, 0, 1]]
    assert short.tolist() == [[0, 0.5, 1], [-1, -1, 1], [0, 0, 0], [0, 0, 0]]
    assert found.notes == ("pulse: 1 missing value put in the middle of the scale",)
    (branch,) = task_of(schema).branches
    assert branch.mask
    assert branch.kind == "series"


def test_branches_lie_behind_the_table_whatever_the_order_of_the_columns(tmp_path: Path) -> None:
    schema = Schema(label=LABEL, columns=(SCAN, AGE, PULSE, Column("sex", kind="flag")))
    assert [c.name for c in schema.columns] == ["age", "sex", "scan", "pulse"]
    branches = task_of(schema).branches
    assert [(b.name, b.start, b.shape) for b in branches] == [
        ("table", 0, (4,)),
        ("scan", 4, (1, 2, 3, 3)),
        ("pulse", 22, (4, 3)),
    ]
    assert task_of(schema).features == ("age", "age missing", "sex", "sex missing")
    assert Schema.from_dict(schema.to_dict()) == schema
    frame = pd.DataFrame({"age": [50, 100], "sex": ["no", "yes"], "y": [0, 1]})
    frame["scan"] = cells(*(np.full((2, 3, 3), v) for v in (-1000.0, 500.0)))
    frame["pulse"] = cells(np.zeros((1, 2)), np.full((4, 2), 200.0))
    x = encode(frame, schema).inputs
    assert x.shape == (2, 34)
    assert x[:, 0].tolist() == [0, 1]
    assert x[0, 4:22].tolist() == [-1] * 18
    assert x[1, 4:22].tolist() == [0.5] * 18
    assert x[0, 22:].reshape(4, 3)[:, 2].tolist() == [1, 0, 0, 0]


def test_an_npz_holds_several_arrays_of_each_record(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, pulse=np.full((3, 4, 2), 100.0), scan=np.zeros((3, 2, 3, 3)), age=[10, 20, 30], y=[0, 1, 0],
             single=np.arange(12.0).reshape(3, 4))  # fmt: skip
    single = Column("single", kind="series", shape=(4, 1), range=(0, 12))
    schema = Schema(label=LABEL, columns=(AGE, PULSE, SCAN, single))
    records = encode(read(path), schema)
    assert records.inputs.shape == (3, 2 + 12 + 18 + 8)
    assert records.inputs[0, -8:].reshape(4, 2)[:, 1].tolist() == [1, 1, 1, 1]


def test_a_volume_may_be_a_folder_of_slices(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for n, grey in enumerate((0, 255)):
        Image.fromarray(np.full((3, 3), grey, dtype=np.uint8)).save(tmp_path / "one" / f"{n}.png")
    schema = Schema(label=LABEL, columns=(SCAN,))
    x = encode(
        pd.DataFrame({"scan": ["one"], "y": [1]}), schema, "", Translation(folder=str(tmp_path))
    ).inputs
    assert x.shape == (1, 1, 2, 3, 3)
    assert x[0, 0].mean((1, 2)).tolist() == [0, 1]


def test_the_same_patient_twice_is_noticed_beside_arrays() -> None:
    schema = Schema(label=LABEL, columns=(PULSE,), patient="who")
    frame = pd.DataFrame({"who": [1, 1], "y": [0, 0], "pulse": [np.zeros((2, 2)), np.zeros((2, 2))]})
    with pytest.raises(DataError, match="for the second time"):
        encode(frame, schema)
    frame["pulse"] = cells(np.zeros((2, 2)), np.ones((2, 2)))
    assert len(encode(frame, schema)) == 2


def test_a_draft_proposes_series_and_volumes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"y": [0, 1], "scan": [np.zeros((2, 3, 3)), np.full((2, 3, 3), 7.0)]})
    frame["pulse"] = cells(np.full((3, 2), 60.0), np.full((5, 2), 91.0))
    found = {c.name: c for c in draft(frame, label="y").schema.columns}
    assert (found["scan"].kind, found["scan"].shape) == ("volume", (2, 3, 3))
    assert (found["pulse"].kind, found["pulse"].shape, found["pulse"].range) == ("series", (5, 2), (0, 100))
    assert "range" in found["pulse"].private


@pytest.mark.parametrize(
    ("column", "cell", "says"),
    [
        (PULSE, np.zeros((5, 2)), "has 5 steps, and the schema has room for 4"),
        (PULSE, np.zeros((3, 3)), "is 3 × 3, and the schema says (at most) 4 × 2"),
        (PULSE, np.full((3, 2), 900.0), "900 is not within 0 … 200 (6 such values in this record)"),
        (PULSE, None, "no series is there"),
        (PULSE, "nowhere.npy", "there is no file or folder 'nowhere.npy'"),
        (PULSE, "../away.npy", "lies outside of the image folder"),
        (PULSE, "odd.txt", "is neither .npy nor .csv"),
        (PULSE, "broken.npy", "cannot be read as numbers"),
        (SCAN, np.zeros((2, 3, 4)), "is a volume of 2 × 3 × 4, and the schema says 2 × 3 × 3; bring all volumes to one size"),
        (SCAN, "empty", "holds 0 slices, and the schema says 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_place(
    tmp_path: Path, column: Column, cell: object, says: str
) -> None:
    (tmp_path / "odd.txt").write_text("x")
    (tmp_path / "broken.npy").write_bytes(b"no")
    (tmp_path / "empty").mkdir()
    frame = pd.DataFrame({"y": [1], column.name: pd.Series([cell], dtype=object)})
    with pytest.raises(DataError) as caught:
        encode(frame, Schema(label=LABEL, columns=(column,)), "", Translation(folder=str(tmp_path)))
    assert says in str(caught.value)
    assert f"column {column.name}" in str(caught.value)


def test_values_outside_of_the_range_can_be_clipped_or_missing() -> None:
    frame = pd.DataFrame({"y": [1], "pulse": pd.Series([np.array([[300.0, 100.0]])], dtype=object)})
    for column, value in ((replace(PULSE, outside="clip"), 1.0), (replace(PULSE, outside="missing"), 0.0)):
        schema = Schema(label=LABEL, columns=(column,))
        found = encode_table(frame, schema)
        assert found.records.inputs[0, 0].tolist() == [value, 0.0, 1.0]
        assert "1 value outside of the range" in found.notes[0]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"kind": "series", "range": [0, 1]}, "a series needs its shape = [steps, values]"),
        ({"kind": "volume", "shape": [3, 3], "range": [0, 1]}, "[depth, height, width]"),
        ({"kind": "bag", "shape": [3, 3]}, "needs the plausible range of its values"),
        ({"shape": [3], "range": [0, 1]}, 'a column of kind = "number" has none'),
    ],
)
def test_a_schema_says_what_a_branch_needs(column: dict[str, object], says: str) -> None:
    with pytest.raises(StudyError) as caught:
        Schema.from_dict({"label": "y", "columns": {"x": column}})
    assert says in str(caught.value)


def test_encoding_a_record_looks_at_no_other_record() -> None:
    schema = Schema(label=LABEL, columns=(PULSE,))
    cells = [np.full((2, 2), 50.0), np.full((4, 2), 200.0)]
    both = encode(pd.DataFrame({"y": [1, 0], "pulse": cells}), schema).inputs
    one = encode(pd.DataFrame({"y": [1], "pulse": cells[:1]}), schema).inputs
    assert torch.equal(both[:1], one)
