"""The table of column kinds: what each one asks of a schema, and the numbers that it becomes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from confrere.core.errors import StudyError
from confrere.data.column_kinds import Column, Encoding, Fields, column_kind, column_kinds
from confrere.data.column_kinds.numbers import NumberColumn
from confrere.data.encode.encoder import encode
from confrere.data.schema import Schema
from confrere.data.tasks import Label

LABEL = {"column": "y"}
MINIMAL: dict[str, dict[str, object]] = {
    "number": {"range": [0, 10]},
    "date": {"range": [1990, 2030], "coarsen": "year"},
    "category": {"categories": ["a", "b"]},
    "flag": {},
    "text": {"buckets": 8},
    "image": {"size": [4, 4]},
    "series": {"shape": [3, 2], "range": [0, 1]},
    "bag": {"shape": [3, 2], "range": [0, 1]},
    "volume": {"shape": [2, 2, 2], "range": [0, 1]},
}
WIDTHS = {
    "number": 2,
    "date": 2,
    "category": 3,
    "flag": 2,
    "text": 8,
    "image": 16,
    "series": 9,
    "bag": 9,
    "volume": 8,
}


def schema(kind: str, **options: object) -> Schema:
    return Schema.from_dict({"label": LABEL, "columns": {"x": {"kind": kind, **options}}})


@pytest.fixture
def share() -> Iterator[str]:
    """A kind from outside the package."""

    @column_kind("share")
    class ShareColumn(NumberColumn):
        def problems(self, column: Column) -> list[str]:
            return [] if column.range == (0, 100) else ["a share has range = [0, 100]"]

        def encode(self, fields: Fields) -> Encoding:
            values, gaps = super().encode(fields)
            return np.round(values), gaps

    yield "share"
    column_kinds.remove("share")


def test_every_kind_has_a_row_here() -> None:
    assert set(MINIMAL) == set(WIDTHS) == set(column_kinds.names())


@pytest.mark.parametrize("kind", MINIMAL)
def test_a_kind_states_how_many_numbers_it_becomes(kind: str) -> None:
    (column,) = schema(kind, **MINIMAL[kind]).columns
    assert len(column.features) == WIDTHS[kind]
    assert (len(column.array) > 1) == column.traits.branch


@pytest.mark.parametrize("option", [{"marks": True}, {"shape": [2, 2]}, {"coarsen": "year"}])
def test_an_option_of_another_kind_is_refused(option: dict[str, object]) -> None:
    with pytest.raises(StudyError, match=next(iter(option))):
        schema("flag", **option)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(StudyError, match=r'x: unknown column kind "flg" \(did you mean "flag"\?\)'):
        schema("flg")


def test_a_kind_from_outside_is_read_checked_and_encoded(share: str) -> None:
    with pytest.raises(StudyError, match="a share has range"):
        schema(share, range=[0, 1])
    frame = pd.DataFrame({"x": [0.0, 60.0, 100.0], "y": [0, 1, 0]})
    own = Schema(label=Label(column="y"), columns=(Column("x", kind=share, range=(0, 100)),))
    assert encode(frame, own).inputs.tolist() == [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
