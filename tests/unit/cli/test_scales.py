"""`--scale`: a smaller version of a study, and the scale that was run is said wherever results are."""

from __future__ import annotations

import json

import pytest

from confrere.core.errors import StudyError
from confrere.runtime.compare import default_arms, variant
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
[reported]
source = "Nobody et al."
shows = "Fig. 1"
differs = ["The records are made up."]
[reported.values."fedavg@asis"]
accuracy = [0.9, 0.01]
[[reported.claims]]
better = "fedavg@asis"
than = "ring@asis"
p = 1e-5
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
    assert "Nobody et al." in page
    words = desk.confrere("compare", study, "--scale", "smallest", "--out", "d").out
    assert "Scale «smallest»" in " ".join(words.split())
    assert "0.900 ± 0.010" in words


def test_a_single_run_says_its_scale(desk: Desk) -> None:
    study = desk.study(BODY)
    assert desk.confrere("simulate", study, "--scale", "smallest", "--json").json["scale"] == "smallest"
    assert desk.confrere("simulate", study, "--json").json["scale"] == "full"
    assert "Scale «smallest»" in " ".join(desk.confrere("simulate", study, "--scale", "smallest").out.split())


def test_an_unknown_scale_is_refused_and_the_known_ones_are_named(desk: Desk) -> None:
    said = desk.refused("compare", desk.study(BODY), "--scale", "smalest")
    assert "smallest" in said
    assert "known: full, smallest" in said


def test_scales_and_reports_are_no_part_of_the_hash_but_a_scaled_study_has_its_own(desk: Desk) -> None:
    study = load(desk.study(BODY))
    bare = study.with_(scales={}, reported=None, comparison=type(study.comparison)())
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
        ("[comparison]\nseeds = 0\n", "at least one"),
        ("[comparison.settings.a]\nrounds = 1\n", "there are none"),
        ('[reported]\nsource = "x"\n[reported.values.a]\naccuracy = [1.0]\n', "mean, spread"),
        ("[reported]\nshows = 'x'\n", "source is missing"),
        ('[reported]\nsource = "x"\n[[reported.claims]]\nbetter = "a"\n', "two arms"),
    ],
)
def test_what_makes_no_sense_is_refused(desk: Desk, body: str, complaint: str) -> None:
    with pytest.raises(StudyError, match=complaint):
        load(desk.study(body))


def test_a_mistake_inside_a_scale_names_its_place(desk: Desk) -> None:
    said = desk.refused("compare", desk.study("[scales.tiny]\nruonds = 1\n"), "--scale", "tiny")
    assert "scales.tiny" in said
    assert "rounds" in said


def test_the_comparison_file_holds_what_the_table_shows(desk: Desk) -> None:
    desk.confrere("compare", desk.study(BODY), "--scale", "smallest", "--seeds", 2, "--out", "c")
    kept = json.loads((desk.folder / "c" / "comparison.json").read_text(encoding="utf-8"))["reported"]
    (claim,) = kept["claims"]
    measured = kept["measured"]
    difference = measured["fedavg@asis"]["accuracy"]["mean"] - measured["ring@asis"]["accuracy"]["mean"]
    assert claim["difference"]["mean"] == pytest.approx(difference)
    assert claim["reported_p"] == 1e-5
