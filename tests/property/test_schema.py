"""A schema survives TOML, and encoding depends on the schema and the record alone."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.errors import StudyError
from confrere.data.column_kinds import Column, Derivation
from confrere.data.encode.encoder import encode
from confrere.data.identifiers import looks_identifying
from confrere.data.schema import Schema
from confrere.data.schema_toml import schema_toml
from confrere.data.tasks import Label

plain = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
names = plain.filter(lambda n: looks_identifying(n) is None)
numbers = st.floats(-1e9, 1e9, allow_nan=False)


@st.composite
def intervals(draw: Any, positive: bool = False) -> tuple[float, float]:
    low = draw(st.floats(1e-3, 1e3) if positive else numbers)
    return (low, low + draw(st.floats(1e-2, 1e6)))


@st.composite
def columns(draw: Any, name: str) -> Column:
    kind = draw(st.sampled_from(["number", "category", "flag", "date", "text"]))
    common: dict[str, Any] = {
        "meaning": draw(plain),
        "unit": draw(plain),
        "missing": tuple(draw(st.lists(plain, max_size=3))),
        "also": tuple(draw(st.lists(plain, max_size=2))),
        "gaps": draw(st.sampled_from(["indicator", "impute", "refuse"])),
    }
    if kind == "number":
        scale = draw(st.sampled_from(["linear", "log"]))
        derive = draw(st.none() | st.builds(Derivation, how=st.just("days"), of=st.tuples(plain, plain)))
        return Column(
            name, range=draw(intervals(positive=scale == "log")), scale=scale, derive=derive, **common
        )
    if kind == "category":
        kinds = draw(st.lists(plain, min_size=1, max_size=5, unique=True))
        spellings = tuple((draw(plain), k) for k in kinds[:2])
        spellings = tuple(dict(spellings).items())
        return Column(name, kind="category", categories=tuple(kinds), spellings=spellings, **common)
    if kind == "date":
        return Column(name, kind="date", coarsen="year", range=(1990.0, 2030.0), **common)
    return Column(name, kind=kind, **common)


@st.composite
def schemas(draw: Any) -> Schema:
    chosen = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    label = draw(
        st.builds(Label, column=st.just("\x7flabel")) | st.just(Label(
            column="\x7flabel", classes=("a", "b"), groups=(("a", ("-", "–")), ("b", ("*",))))))  # fmt: skip
    return Schema(label=label, columns=tuple(draw(columns(name)) for name in chosen))


@settings(deadline=None)
@given(schemas())
def test_a_schema_survives_the_way_through_toml(schema: Schema) -> None:
    text = schema_toml(schema, {schema.columns[0].name: "a comment\nof two lines"})
    back = Schema.from_dict(tomllib.loads(text)["schema"])
    assert back == schema
    assert back.fingerprint == schema.fingerprint
    assert hash(back) == hash(schema)


@settings(deadline=None)
@given(schemas(), st.data())
def test_any_change_of_a_column_changes_the_fingerprint(schema: Schema, data: st.DataObject) -> None:
    table = schema.to_dict()
    name = data.draw(st.sampled_from(list(table["columns"])))
    table["columns"][name]["meaning"] = table["columns"][name].get("meaning", "") + "!"
    assert Schema.from_dict(table).fingerprint != schema.fingerprint


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["label", "columns", "patient", "site", "unused", "x"]), junk))
def test_whatever_a_study_says_a_bad_schema_is_one_sentence(table: dict[str, Any]) -> None:
    said = "schema"
    try:
        Schema.from_dict(table)
    except StudyError as error:
        said = str(error)
    assert said.startswith(("schema", 'unknown key "schema'))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.floats(0, 120), st.sampled_from(["F", "M", None])), min_size=2, max_size=30
    ),
    st.data(),
)
def test_a_record_is_encoded_the_same_whoever_else_is_there(
    rows: list[tuple[float | None, str | None]], data: st.DataObject
) -> None:
    schema = Schema(
        label=Label(column="y"),
        columns=(
            Column("age", range=(0, 120), usual=(20, 80), marks=True),
            Column("sex", kind="category", categories=("F", "M")),
        ),
    )
    frame = pd.DataFrame(rows, columns=["age", "sex"]).assign(y=np.arange(len(rows)) % 2)
    whole = encode(frame, schema).inputs
    few = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    assert torch.equal(encode(frame.iloc[few], schema).inputs, whole[few])
    assert whole.shape[1] == len(schema.features)
    assert bool(torch.isfinite(whole).all())
    assert float(whole.abs().max()) <= 5
