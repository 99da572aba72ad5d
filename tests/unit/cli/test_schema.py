"""`confrere schema`: what a person and what a machine sees."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from confrere.cli.schema import app
from confrere.core.errors import DataError, StudyError
from confrere.data.schema import Schema

DATA = "age,sex,Hb,outcome\n" + "\n".join(
    f"{40 + i % 30},{'FM'[i % 2]},{12 + i % 4},{'no' if i % 3 else 'yes'}" for i in range(60)
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "north.csv"
    path.write_text(DATA)
    return path


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_a_draft_is_toml_that_a_study_can_hold_once_it_is_confirmed(data: Path) -> None:
    code, text = run("draft", data)
    assert code == 0
    assert "# PRIVATE" in text
    schema = Schema.from_dict(tomllib.loads(text)["schema"])
    assert schema.unconfirmed == ["sex.categories"]
    assert schema.column("Hb").unit == "g/dL"


def test_a_draft_for_machines(data: Path) -> None:
    _, text = run("draft", data, "--json")
    document = json.loads(text)
    assert document["private"] == ["sex.categories"]
    assert document["schema"]["label"] == {"column": "outcome"}


def test_a_draft_does_not_overwrite(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "schema.toml"
    run("draft", data, "--out", out)
    with pytest.raises(StudyError, match="was not overwritten"):
        run("draft", data, "--out", out)


def confirmed(data: Path, folder: Path) -> Path:
    text = run("draft", data)[1].replace('private = ["categories"]\n', "")
    study = folder / "study.toml"
    study.write_text(text)
    return study


def test_a_file_that_fits_ends_with_0_and_one_that_does_not_with_1(data: Path, tmp_path: Path) -> None:
    study = confirmed(data, tmp_path)
    code, text = run("check", study, data)
    assert code == 0
    assert "4 of 4 columns can be used; the file can take part" in text
    other = tmp_path / "south.csv"
    other.write_text(DATA.replace(",F,", ",woman,"))
    code, text = run("check", study, data, other)
    assert code == 1
    assert "does not fit" in text
    assert "cannot take part yet" in text


def test_a_check_for_machines(data: Path, tmp_path: Path) -> None:
    code, text = run("check", confirmed(data, tmp_path), data, "--json")
    report = json.loads(text)[0]
    assert code == 0
    assert report["usable"] is True
    assert {f["column"]: f["state"] for f in report["findings"]}["Hb"] == "fits"


def test_bad_input_is_a_message(data: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("[data]\n")
    with pytest.raises(StudyError, match=r"has no \[schema\]"):
        run("check", empty, data)
    empty.write_text("no toml")
    with pytest.raises(StudyError, match="not valid TOML"):
        run("check", empty, data)
    with pytest.raises(StudyError, match="no such file"):
        run("check", tmp_path / "none.toml", data)
    with pytest.raises(DataError, match="no such file"):
        run("draft", tmp_path / "none.csv")
    with pytest.raises(DataError, match="there is no column 'xx' for the label"):
        run("draft", data, "--label", "xx")
    empty.write_text("[schema]\nlabel = 'outcome'\n[schema.columns.age]\nrnage = [0, 1]\n")
    with pytest.raises(
        StudyError, match=r'empty.toml: unknown key "schema.columns.age.rnage" \(did you mean "range"\?\)'
    ):
        run("check", empty, data)
    empty.write_text("[schema]\nlabel = 'outcome'\n[schema.columns.age]\nrange = [0, inf]\n")
    with pytest.raises(StudyError, match=r"empty.toml: schema.columns.age.range must be a finite number"):
        run("check", empty, data)
    empty.write_text("[schema]\nlabel = 'outcome'\n[schema.columns.age]\nrange = 'wide'\n")
    with pytest.raises(StudyError, match=r'empty.toml: schema.columns.age.range must be a list, not "wide"'):
        run("check", empty, data)
    empty.write_text("[schema.columns.age]\nrange = [0, 1]\n")
    with pytest.raises(StudyError, match=r"empty.toml: schema.label: is not given"):
        run("check", empty, data)
