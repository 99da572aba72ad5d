"""A schema drafted from a file, and files checked against it, in plain words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Column, Derivation, Translation
from confrere.data.encode.encoder import encode, encode_table
from confrere.data.encode.units import likely_slip
from confrere.data.federation import Source
from confrere.data.identifiers import looks_identifying
from confrere.data.reference_values import lookup, measurements
from confrere.data.schema import Schema
from confrere.data.schema_check import Report, check
from confrere.data.schema_draft import draft
from confrere.data.tasks import Label


@pytest.fixture
def ward() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 200
    return pd.DataFrame(
        {
            "patient_id": np.arange(n) + 900_000,
            "surname": [f"Name{i}" for i in range(n)],
            "date_of_birth": ["1970-05-05"] * n,
            "Temp": rng.normal(37, 0.7, n).round(1),
            "weight": rng.normal(75, 12, n).round(),
            "ward": rng.choice(["north", "south"], n),
            "score": rng.integers(0, 400, n),
            "smoker": rng.choice(["yes", "no"], n),
            "admitted": rng.choice(["2021-03-01", "2022-04-02"], n),
            "empty": [None] * n,
            "outcome": rng.choice(["well", "ill"], n),
        }
    )


def test_a_draft_takes_ranges_from_reference_values_and_marks_the_rest_private(ward: pd.DataFrame) -> None:
    schema = draft(ward).schema
    assert schema.label.column == "outcome"
    assert schema.column("Temp").range == measurements()["temperature"].range
    assert schema.column("Temp").private == ()
    assert schema.column("smoker").kind == "flag"
    assert set(schema.unconfirmed) == {"label.classes", "ward.categories", "score.range", "admitted.range"}
    assert set(schema.identifying) == {"patient_id", "surname", "date_of_birth"}
    assert schema.unused == ("empty",)


def test_an_unconfirmed_schema_cannot_be_used(ward: pd.DataFrame) -> None:
    schema = draft(ward).schema
    with pytest.raises(DataError, match="drawn from records and are PRIVATE"):
        encode(ward, schema)
    assert len(encode(ward, schema.confirmed())) == 200


def test_a_drafted_range_does_not_show_the_largest_record(ward: pd.DataFrame) -> None:
    ward.loc[3, "score"] = 372
    assert draft(ward).schema.column("score").range == (0.0, 400.0)


@pytest.mark.parametrize(
    "name",
    [
        "PatientID",
        "patient id",
        "dob",
        "Date of Birth",
        "surname",
        "LastName",
        "MRN",
        "zip_code",
        "E-mail",
        "address",
        "phone",
        "latitude",
    ],
)
def test_columns_that_tell_who_somebody_is_are_refused_until_the_schema_says_otherwise(name: str) -> None:
    assert looks_identifying(name)
    with pytest.raises(StudyError, match="looks like"):
        Schema.from_dict({"label": "y", "columns": {name: {"range": [0, 1]}}})
    Schema.from_dict({"label": "y", "columns": {name: {"range": [0, 1], "identifying": False}}})


@pytest.mark.parametrize(
    "name", ["nodes", "age", "hip", "united", "solid", "platelets", "nhs_trust_visits", "dosage"]
)
def test_ordinary_columns_are_not_taken_for_identifiers(name: str) -> None:
    assert looks_identifying(name) is None


def test_dates_and_places_can_be_coarsened() -> None:
    schema = Schema(
        label=Label(column="y"),
        columns=(
            Column("dob", kind="date", coarsen="decade", range=(1900, 2030)),
            Column("postcode", kind="category", prefix=2, categories=("80", "81")),
        ),
    )
    frame = pd.DataFrame(
        {
            "dob": ["1971-02-03", "1979-12-31", "1980-01-01"],
            "postcode": ["8001", "8055", "8112"],
            "y": [0, 1, 0],
        }
    )
    x = encode(frame, schema).inputs
    assert x[0, 0] == x[1, 0] != x[2, 0]
    assert x[:, 2].tolist() == [1, 1, 0]
    with pytest.raises(StudyError, match="a date identifies people"):
        Schema.from_dict({"label": "y", "columns": {"seen": {"kind": "date", "range": [2000, 2030]}}})


def test_days_are_derived_from_two_dates_where_a_site_does_not_have_them() -> None:
    days = Column("days", range=(0, 365), derive=Derivation("days", ("onset", "admitted")), gaps="refuse")
    schema = Schema(label=Label(column="y"), columns=(days,))
    frame = pd.DataFrame(
        {"onset": ["2021-01-01", "2021-02-01"], "admitted": ["2021-01-11", "2021-02-03"], "y": [0, 1]}
    )
    done = encode_table(frame, schema)
    assert done.records.inputs[:, 0].tolist() == pytest.approx([(10 - 182.5) / 182.5, (2 - 182.5) / 182.5])
    assert "days was derived: days of onset and admitted" in done.notes


def found(report: Report, column: str) -> tuple[str, str]:
    finding = next(f for f in report.findings if f.column == column)
    return finding.state, finding.sentence


def checked(frame: pd.DataFrame, schema: Schema, folder: Path, **source: object) -> Report:
    path = folder / "site.csv"
    frame.to_csv(path, index=False)
    return check(Source(path, **source), schema)  # type: ignore[arg-type]


@pytest.fixture
def schema() -> Schema:
    known = measurements()
    return Schema(
        label=Label(column="outcome", classes=("well", "ill")),
        columns=(
            known["temperature"].column("temperature"),
            known["weight"].column("weight"),
            known["haemoglobin"].column("haemoglobin"),
            Column("stay", range=(0, 400), derive=Derivation("days", ("admitted", "left"))),
            Column("ward", kind="category", categories=("north", "south")),
        ),
    )


@pytest.fixture
def site(ward: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return ward[["weight", "ward", "admitted", "outcome"]].assign(
        temperature=ward["Temp"], haemoglobin=rng.normal(14, 1.2, 200), left="2022-12-31"
    )


def test_a_file_that_fits_can_take_part(site: pd.DataFrame, schema: Schema, tmp_path: Path) -> None:
    report = checked(site.drop(columns="admitted").assign(admitted="2022-11-01"), schema, tmp_path)
    assert report.usable
    assert found(report, "stay") == ("derived", "is not there, but follows from admitted and left (days)")
    assert "6 of 6 columns can be used; the file can take part" in report.summary


def test_a_derived_value_out_of_range_is_said(site: pd.DataFrame, schema: Schema, tmp_path: Path) -> None:
    state, words = found(checked(site, schema, tmp_path), "stay")
    assert state == "cannot"
    assert "values are not within 0 … 400" in words


@pytest.mark.parametrize(
    ("column", "slip", "words"),
    [
        ("temperature", lambda v: v * 9 / 5 + 32, "in °F (the schema has °C)"),
        ("weight", lambda v: v / 0.45359237, "in lb (the schema has kg)"),
        ("haemoglobin", lambda v: v * 10, "in g/L (the schema has g/dL)"),
        ("haemoglobin", lambda v: v * 1000, "1000 times too large"),
        ("weight", lambda v: v / 10, "10 times too small"),
        ("weight", lambda v: v * 1000, "in g (the schema has kg)"),
    ],
)
def test_a_slip_of_unit_is_noticed_and_named(
    site: pd.DataFrame, schema: Schema, tmp_path: Path, column: str, slip: object, words: str
) -> None:
    site[column] = slip(site[column])  # type: ignore[operator]
    state, sentence = found(checked(site, schema, tmp_path), column)
    assert state == "slip"
    assert words in sentence


def test_a_slip_in_a_few_records_is_noticed_too() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(37, 0.5, 500)
    values[:25] = values[:25] * 9 / 5 + 32
    slip = likely_slip(values, measurements()["temperature"].column("temperature"))
    assert slip is not None
    assert slip.conversion.source == "°F"
    assert slip.affected == pytest.approx(0.05)


def test_honest_values_are_not_taken_for_a_slip() -> None:
    rng = np.random.default_rng(0)
    for name, centre, spread in (("temperature", 38.5, 1.0), ("weight", 110, 30), ("haemoglobin", 8, 1.5)):
        assert likely_slip(rng.normal(centre, spread, 500), measurements()[name].column(name)) is None


def test_the_unit_of_a_site_can_be_stated(site: pd.DataFrame, schema: Schema, tmp_path: Path) -> None:
    site["temperature"] = site["temperature"] * 9 / 5 + 32
    report = checked(site, schema, tmp_path, units={"temperature": "°F"})
    assert found(report, "temperature")[0] == "fits"


def test_another_name_for_the_same_thing_is_suggested(
    site: pd.DataFrame, schema: Schema, tmp_path: Path
) -> None:
    state, words = found(
        checked(site.rename(columns={"haemoglobin": "Hgb"}), schema, tmp_path), "haemoglobin"
    )
    assert state == "missing"
    assert "is it 'Hgb'?" in words


def test_what_cannot_be_used_is_said(site: pd.DataFrame, schema: Schema, tmp_path: Path) -> None:
    report = checked(
        site.assign(ward="east").drop(columns="weight"), replace(schema, missing_columns="refuse"), tmp_path
    )
    assert not report.usable
    assert "'east' is not a category" in found(report, "ward")[1]
    assert found(report, "weight")[0] == "cannot"
    assert "cannot take part yet" in report.summary


def test_reference_values_make_sense() -> None:
    for m in measurements().values():
        assert m.usual is None or m.range[0] <= m.usual[0] < m.usual[1] <= m.range[1], m.name
        assert lookup(m.name) is m


def test_a_source_in_another_unit_is_converted_before_something_is_derived_from_it() -> None:
    bmi = Column("bmi", range=(10, 90), derive=Derivation("bmi", ("weight", "height")))
    schema = Schema(label=Label(column="sick"), columns=(bmi,))
    metric = pd.DataFrame({"weight": [70.0, 90.0], "height": [175.0, 180.0], "sick": [0, 1]})
    pounds = metric.assign(weight=metric["weight"] / 0.45359237)
    expected = encode_table(metric, schema).records.inputs
    assert torch.allclose(
        encode_table(pounds, schema, "", Translation(units={"weight": "lb"})).records.inputs, expected
    )
    assert not torch.allclose(encode_table(pounds, schema).records.inputs, expected)


def test_several_labels_are_named_with_commas() -> None:
    frame = pd.DataFrame({"left": [0, 1, 0], "right": [1, 1, 0], "age": [30, 50, 70]})
    found = draft(frame, label="left, right").schema
    assert (found.label.kind, found.label.columns) == ("multilabel", ("left", "right"))
    assert [c.name for c in found.columns] == ["age"]
    with pytest.raises(DataError, match="there is no column 'rigth' for the label"):
        draft(frame, label="left,rigth")


def test_the_rarer_of_two_classes_is_the_one_to_find() -> None:
    frame = pd.DataFrame({"age": [30, 40, 50, 60], "outcome": ["well", "well", "ill", "well"]})
    assert draft(frame, label="outcome").schema.label.classes == ("well", "ill")
