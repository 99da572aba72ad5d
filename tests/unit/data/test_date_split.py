"""A split by date: earlier patients train, later ones test, and one record moves no other."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Column
from confrere.data.federation import Opening, Source, of_files
from confrere.data.records import Records
from confrere.data.schema import Schema
from confrere.data.split.date_cut import DateCut
from confrere.data.split.holdout import SplitRule, split_indices
from confrere.data.tasks import Label
from confrere.simulation.backends import simulate
from confrere.site.open_sites import open_sites
from confrere.study import Data, Split, Study, load
from tests.conftest import arrays, write_study
from tests.unit.cli.command import Desk

CUT = DateCut("seen", date(2025, 1, 1))
RULE = SplitRule((0.6, 0.2, 0.2), cut=CUT)
SCHEMA = Schema(
    label=Label(column="sick"), columns=(Column("age", range=(0, 1000)),), patient="who", unused=("seen",)
)


def table(rows: list[tuple[str, str]]) -> pd.DataFrame:
    """Rows (patient, date); the age names the row."""
    frame = pd.DataFrame(rows, columns=["who", "seen"])
    return frame.assign(age=range(len(rows)), sick=[n % 2 for n in range(len(rows))])


def parts_of(frame: pd.DataFrame, rule: SplitRule = RULE, **options: Any) -> dict[int, str]:
    """The part of each record, by its age."""
    opening = Opening(split=rule, one_class=True, **options)
    site = of_files({"a": frame}, SCHEMA, opening).sites["a"]
    return {
        round(float(row[0]) * 500 + 500): part
        for part in ("train", "validation", "test")
        for row in getattr(site, part).inputs
    }


def test_earlier_patients_train_and_later_ones_test() -> None:
    rows = [(f"p{n}", f"2024-{1 + n % 12:02}-15") for n in range(60)] + [
        (f"q{n}", "2025-01-01") for n in range(20)
    ]
    parts = parts_of(table(rows))
    assert {parts[n] for n in range(60)} == {"train", "validation"}
    assert {parts[n] for n in range(60, 80)} == {"test"}
    share = sum(parts[n] == "train" for n in range(60)) / 60
    assert 0.55 < share < 0.95  # three quarters of the earlier ones on the average


def test_later_records_of_an_earlier_patient_are_in_no_part() -> None:
    rows = [
        ("both", "2024-06-01"),
        ("both", "2025-06-01"),
        ("new", "2025-01-01"),
        ("old", "2024-12-31T23:59"),
    ]
    parts = parts_of(table(rows))
    assert parts.keys() == {0, 2, 3}
    assert parts[2] == "test"
    assert "test" not in (parts[0], parts[3])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40), st.data())
def test_one_record_changes_the_training_and_validation_parts_by_itself_only(
    rows: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Neighbouring files: with and without one record, whatever patients and dates."""
    inputs = torch.arange(len(rows)).float()[:, None]
    units, later = (torch.tensor(column) for column in zip(*rows, strict=True))
    records = Records(inputs, torch.zeros(len(rows), dtype=torch.int64), units, later)
    gone = data.draw(st.integers(0, len(rows) - 1))
    rest = [n for n in range(len(rows)) if n != gone]
    whole = split_indices(records, 0, RULE)
    without = split_indices(records.select(rest), 0, RULE)
    for part in (0, 1):
        assert {rest[n] for n in without[part]} == set(whole[part]) - {gone}
    sides = [set(units[part].tolist()) for part in whole]
    assert sum(map(len, sides)) == len(set.union(*sides)), "no patient is in two parts"
    assert not later[[*whole[0], *whole[1]]].any()


def test_a_whole_patient_moves_no_other() -> None:
    rng = np.random.default_rng(0)
    rows = [(f"p{rng.integers(30)}", f"{rng.integers(2023, 2027)}-03-01") for _ in range(80)]
    parts, ages = parts_of(table(rows), tolerant=True), table(rows)
    for who in {who for who, _ in rows}:
        kept = parts_of(ages[ages["who"] != who].reset_index(drop=True), tolerant=True)
        assert kept == {age: part for age, part in parts.items() if rows[age][0] != who}


def test_dates_are_read_as_stated_and_are_no_feature() -> None:
    rows = [("a", "31/12/2024"), ("b", "01/02/2025"), ("c", "05/06/2024")]
    form = SplitRule((0.6, 0.2, 0.2), cut=DateCut("seen", date(2025, 1, 1), "%d/%m/%Y"))
    assert parts_of(table(rows), form)[1] == "test"
    described = Schema(
        label=Label(column="sick"),
        columns=(
            Column("age", range=(0, 1000)),
            Column("seen", kind="date", range=(1990, 2030), coarsen="year", date_format="%d/%m/%Y"),
        ),
        patient="who",
    )
    site = of_files({"a": table(rows)}, described, Opening(split=RULE, one_class=True)).sites["a"]
    assert len(site.test) == 1, "the format of the schema"
    with pytest.raises(DataError, match=r"'31/12/2024' is not a date.*in data.split"):
        parts_of(table(rows))


def test_a_stream_is_split_as_a_table_is(tmp_path: Path) -> None:
    rows = [(f"p{n % 30}", f"{2024 + (n % 30) // 15}-05-05") for n in range(90)]
    table(rows).to_csv(tmp_path / "a.csv", index=False)
    opening = Opening(split=RULE, one_class=True)
    whole, streamed = (
        of_files({"a": Source(tmp_path / "a.csv", stream=s)}, SCHEMA, opening).sites["a"]
        for s in (False, True)
    )
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(whole, part).inputs, getattr(streamed, part).inputs)


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        (["2024-01-01", "soon", "2025-02-02"], "'soon' is not a date"),
        (["2024-01-01", None, "2025-02-02"], "the record has no date"),
        (["2024-01-01", "2024-01-02", "2024-02-02"], "all 3 patients were first seen before 2025-01-01"),
        (["2025-01-01", "2026-01-02", "2025-02-02"], "all 3 patients were first seen on or after 2025-01-01"),
    ],
)
def test_what_cannot_be_split_is_refused_with_its_reason(dates: list[str], message: str) -> None:
    frame = table([(f"p{n}", d) for n, d in enumerate(dates)])
    with pytest.raises(DataError, match=message):
        parts_of(frame)


def test_a_node_leaves_out_records_without_a_date_and_goes_on_with_one_side() -> None:
    frame = table([("a", "2024-01-01"), ("b", "soon"), ("c", "2024-02-02")])
    assert parts_of(frame, tolerant=True).keys() == {0, 2}


def test_a_missing_column_is_named_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"'seen' of data.split.date_column is not there.*seem"):
        parts_of(table([("a", "2024-01-01")]).rename(columns={"seen": "seem"}))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"by_date": date(2025, 1, 1)}, "needs the column"),
        ({"date_column": "seen"}, "go with by_date"),
        (
            {"by_date": date(2025, 1, 1), "date_column": "seen", "method": "stratified"},
            'method = "hash" only',
        ),
    ],
)
def test_a_study_states_day_and_column_together(split: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        Study(data=Data(split=Split(**split)))


def test_records_without_dates_are_refused() -> None:
    split = Split(by_date=date(2025, 1, 1), date_column="seen")
    with pytest.raises(StudyError, match=r"does not go with data.bundled"):
        Study(data=Data(bundled="thyroid", split=split))
    with pytest.raises(StudyError, match="arrays and encoded records have none"):
        open_sites(Study(data=Data(split=split)), arrays(2, 40))


# -- a whole study ------------------------------------------------------------------------------------

BODY = """
rounds = 2
strategy = "fedavg"
[training]
tune = false
[data.split]
by_date = 2025-01-01
date_column = "seen"
"""


def dated_study(folder: Path, body: str = BODY, seen: str = "2024-07-01") -> Path:
    """The usual study with a date in every record: two thirds `seen` then, the others in 2025."""
    path = write_study(folder, body, records=60)
    for file in folder.glob("site*.csv"):
        frame = pd.read_csv(file)
        frame["seen"] = ["2025-03-01" if n % 3 == 0 else seen for n in range(len(frame))]
        frame.to_csv(file, index=False)
    return path


def test_a_study_tests_on_later_patients(tmp_path: Path) -> None:
    study = load(dated_study(tmp_path))
    run = simulate(study)
    for name, site in run.sites.items():
        records = len(pd.read_csv(tmp_path / f"{name}.csv"))
        assert site.tested is not None
        assert site.tested.patients == -(-records // 3)
    assert run.result.split["by_date"] == "2025-01-01"
    assert "first seen before 2025-01-01" in str(run.result.split["words"])
    again = load(_written(tmp_path / "again.toml", study.to_toml()))
    assert again.data.split == study.data.split
    assert again.hash() == study.hash()


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_another_day_is_another_study(tmp_path: Path) -> None:
    study = load(dated_study(tmp_path))
    other = Split(by_date=date(2025, 1, 2), date_column="seen")
    assert study.with_(data=Data(split=other)).hash() != study.hash()


def test_the_commands_state_the_split_and_refuse_what_cannot_be_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, monkeypatch, capsys)
    dated_study(tmp_path)
    answer = desk.confrere("check", "study.toml", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["split"]["by_date"] == "2025-01-01"
    for change, message in (
        ("data.split.by_date=2027-01-01", "none is left to test on"),
        ("data.split.by_date=2020-01-01", "none is left to train on"),
        ('data.split.date_column="arrived"', "is not there"),
        ('data.split.date_column="a"', "is not a date"),
    ):
        for command in ("check", "simulate"):
            answer = desk.confrere(command, "study.toml", "--set", change)
            assert answer.code == 2
            assert message in " ".join(answer.err.split())
