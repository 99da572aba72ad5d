"""`--scale`: a smaller version of a study, and the scale that was run is said wherever results are."""

from __future__ import annotations

import pytest

from confrere.core.errors import StudyError
from confrere.evaluate.compare import default_arms, variant
from confrere.study import load, scaled
from tests.unit.cli.command import Desk

BODY = """rounds = 3
strategy = "fedavg"
[training]
tune = false
[comparison]
arms = ["fedavg", "ring"]
seeds = 2
pooled = false
[comparison.settings.slow]
training.learning_rate = 0.001
[comparison.settings.asis]
[variants.ring]
strategy = "cwt"
[scales.smallest]
rounds = 1
comparison = { seeds = 1 }
"""


def test_the_smaller_version_is_run_and_said_in_table_json_and_report(desk: Desk) -> None:
    study = desk.study(BODY)
    answer = desk.confrere("compare", study, "--scale", "smallest", "--json", "--out", "c").json
    assert answer["scale"] == "smallest"
    assert answer["seeds"] == [0]
    assert set(answer["strategies"]) == {"local", "fedavg@slow", "ring@slow", "fedavg@asis", "ring@asis"}
    assert "rounds = 1" in (desk.folder / "c" / "study.toml").read_text(encoding="utf-8")
    page = (desk.folder / "c" / "report.html").read_text(encoding="utf-8")
    assert "smallest" in page
    words = desk.confrere("compare", study, "--scale", "smallest", "--out", "d").out
    assert "Scale «smallest»" in " ".join(words.split())


def test_a_single_run_says_its_scale(desk: Desk) -> None:
    study = desk.study(BODY)
    assert desk.confrere("simulate", study, "--scale", "smallest", "--json").json["scale"] == "smallest"
    assert desk.confrere("simulate", study, "--json").json["scale"] == "full"
    assert "Scale «smallest»" in " ".join(desk.confrere("simulate", study, "--scale", "smallest").out.split())


def test_an_unknown_scale_is_refused_and_the_known_ones_are_named(desk: Desk) -> None:
    said = desk.refused("compare", desk.study(BODY), "--scale", "smalest")
    assert "smallest" in said
    assert "known: full, smallest" in said


def test_scales_are_no_part_of_the_hash_but_a_scaled_study_has_its_own(desk: Desk) -> None:
    study = load(desk.study(BODY))
    bare = study.with_(scales={}, comparison=type(study.comparison)())
    assert study.hash() == bare.hash()
    assert scaled(study, "full").hash() == study.hash()
    assert scaled(study, "smallest").hash() != study.hash()


def test_a_setting_that_changes_nothing_survives_the_scaling(desk: Desk) -> None:
    small = scaled(load(desk.study(BODY)), "smallest")
    assert default_arms(small) == ["fedavg@slow", "ring@slow", "fedavg@asis", "ring@asis"]
    assert variant(small, "ring@slow").training.learning_rate == 0.001
    assert variant(small, "ring@slow").strategy_name == "cwt"
    assert variant(small, "ring@asis").training.learning_rate == small.training.learning_rate


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("[scales.full]\nrounds = 1\n", "as it is written"),
        ("[comparison]\nseeds = 0\n", "comparison.seeds must be a number from 1"),
        ("[comparison.settings.a]\nrounds = 1\n", "there are none"),
    ],
)
def test_what_makes_no_sense_is_refused(desk: Desk, body: str, complaint: str) -> None:
    with pytest.raises(StudyError, match=complaint):
        load(desk.study(body))


def test_a_mistake_inside_a_scale_names_its_place(desk: Desk) -> None:
    said = desk.refused("compare", desk.study("[scales.tiny]\nruonds = 1\n"), "--scale", "tiny")
    assert "scales.tiny" in said
    assert "rounds" in said


def test_what_a_source_reports_is_no_longer_part_of_a_study(desk: Desk) -> None:
    said = desk.confrere("simulate", desk.study(BODY + '[reported]\nsource = "x"\n'), "--scale", "smallest")
    assert "[reported] is no longer read" in " ".join(said.err.split())
