"""`confrere datasets`: what a person and what a machine sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from confrere.cli.datasets import app
from confrere.core.errors import DataError, StudyError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFRERE_CACHE", str(tmp_path / "cache" / "datasets"))


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0
    return done.stdout


def test_the_list_names_every_set_and_whether_it_is_here() -> None:
    text = run()
    for name in ("thyroid", "dialysis", "mnist", "movie-reviews"):
        assert name in text
    assert "fetch it" in text


def test_the_list_for_machines() -> None:
    sets = json.loads(run("--json"))
    assert len(sets) >= 12
    assert all(
        {"name", "summary", "source", "licence", "size", "sites", "task", "reach"} <= set(s) for s in sets
    )
    here = {s["name"]: s["here"] for s in sets}
    assert here["thyroid"] is True
    assert here["mnist"] is False


def test_show_draws_a_picture_and_tells_sizes_labels_and_gaps(tmp_path: Path) -> None:
    picture = tmp_path / "t.png"
    text = run("show", "thyroid", "--picture", picture)
    for word in ("other", "5,493", "SVHD", "abnormal", "TBG", "WEST"):
        assert word in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_show_as_one_page_without_links(tmp_path: Path) -> None:
    page = tmp_path / "t.html"
    run("show", "thyroid", "--picture", page)
    text = page.read_text(encoding="utf-8")
    assert "data:image/png;base64," in text
    assert "http" not in text


def test_show_for_machines(tmp_path: Path) -> None:
    document = json.loads(run("show", "thyroid", "--json"))
    sites = {s["name"]: s for s in document["profile"]}
    assert sites["STMW"]["records"] == 255
    assert sites["STMW"]["labels"]["abnormal"] == pytest.approx(0.52, abs=0.01)
    assert sites["other"]["missing"]["T3"] == pytest.approx(0.37, abs=0.01)
    assert Path(document["picture"]).is_file()


def test_bad_input_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="did you mean 'thyroid'"):
        run("show", "tyroid")
    with pytest.raises(StudyError, match="did you mean 'mnist'"):
        run("fetch", "mnits")
    with pytest.raises(DataError, match="confrere datasets fetch mnist"):
        run("show", "mnist")
    with pytest.raises(StudyError, match="has no option 'sites'; with partition"):
        run("show", "thyroid", "--set", "sites=5")
    with pytest.raises(StudyError, match="write NAME=VALUE"):
        run("show", "thyroid", "--set", "sites")
    with pytest.raises(StudyError, match=r"ends in \.png"):
        run("show", "thyroid", "--picture", tmp_path / "x.gif")


def test_a_set_of_an_installed_package_needs_no_fetching() -> None:
    assert "nothing to fetch" in run("fetch", "thyroid")
