"""Repeating an experiment: runs are kept and not done again, rates are chosen on validation records, and the page is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import StudyError
from confrere.study import build, parse
from repro import experiment as repeating
from repro.experiment import Unfinished, repeat, result_file
from repro.page import write_page
from repro.reported import Experiment, Reported, read_reported

TABLE: dict[str, Any] = {
    "name": "again",
    "title": "Once more",
    "rounds": 2,
    "strategy": "fedavg",
    "training": {"tune": False, "batch_size": 64},
    "data": {"bundled": "breast-diagnostic", "options": {"sites": 2}},
    "variants": {"local-sgd": {"strategy": "local"}, "global-sgd": {"strategy": "fedavg"}},
    "comparison": {
        "arms": ["local-sgd", "global-sgd", "fedavg", "fedprox"],
        "seeds": 2,
        "pooled": False,
        "settings": {
            "slow": {"training": {"learning_rate": 1e-6}},
            "fast": {"training": {"learning_rate": 0.05}},
        },
    },
    "scales": {"smallest": {"rounds": 1, "comparison": {"seeds": 1}}},
}

STATED: dict[str, Any] = {
    "source": "Nobody et al.",
    "shows": "Fig. 1",
    "figures": ["curves", "settings", "bars", "pyramid", "reached"],
    "remarks": ["It is the same."],
    "values": {"fedavg@fast": {"accuracy": [0.9, 0.02]}},
    "claims": [{"better": "fedavg@fast", "than": "fedavg@slow"}],
}


def made(table: dict[str, Any] = TABLE, **stated: Any) -> Experiment:
    """An experiment from a study's table and what its source is made to report."""
    return Experiment(parse(table), build(Reported, stated or STATED, "reported"))


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    pytest.importorskip("sklearn")
    return made()


def test_a_kept_run_is_not_done_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repeat(experiment, "smallest", kept=tmp_path)
    monkeypatch.setattr(repeating, "simulate", None)  # a second training would fail
    assert repeat(experiment, "smallest", kept=tmp_path) == first


def test_it_stops_in_time_and_says_what_is_next(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(Unfinished, match="seed 0 is next"):
        repeat(experiment, "smallest", kept=tmp_path, seconds=-1.0)


def test_the_setting_is_chosen_on_validation_records(experiment: Experiment) -> None:
    found = repeat(experiment, "smallest")
    assert found["chosen"] == dict.fromkeys(["local-sgd", "global-sgd", "fedavg", "fedprox"], "fast")


def test_the_page_shows_both_sides_the_scale_and_where_they_differ(
    experiment: Experiment, tmp_path: Path
) -> None:
    found = repeat(experiment, "smallest") | {"command": "confrere compare again.toml --scale smallest"}
    place = result_file(tmp_path, experiment.study.name)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(found), encoding="utf-8")
    page = write_page(
        [experiment, replace(experiment, study=experiment.study.with_(name="never-run"))], tmp_path
    ).read_text(encoding="utf-8")
    for words in (
        "0.900 ± 0.020",
        "scale **smallest**",
        "(the source: 2)",
        "Not run here",
        "It is the same.",
    ):
        assert words in page, words
    drawn = {p.name for p in (tmp_path / "figures").iterdir()}
    assert drawn == {"again.svg", "again-bars.svg", "again-pyramid.svg", "again-reached.svg"}
    assert "run it again" not in page
    other = replace(experiment, study=experiment.study.with_(rounds=3, strategy="cwt"))
    changed = write_page([other], tmp_path).read_text(encoding="utf-8")
    assert "run it again" in changed


def test_the_majority_class_is_a_level_of_the_figure(experiment: Experiment, tmp_path: Path) -> None:
    drawn = replace(experiment, reported=replace(experiment.reported, figures=["weights"]))
    found = repeat(drawn, "smallest") | {"command": "x"}
    assert 0.5 < found["levels"]["majority class"] < 0.8
    place = result_file(tmp_path, experiment.study.name)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(found), encoding="utf-8")
    write_page([drawn], tmp_path)
    assert (tmp_path / "figures" / "again-weights.svg").exists()


def test_an_epsilon_needs_the_number_of_records() -> None:
    stated = {"source": "x", "by": "epsilon", "values": {"a": {"epsilon": 2.0}}}
    with pytest.raises(StudyError, match="noise_multiplier"):
        repeat(made(TABLE, **stated), "full")
    noisy = TABLE | {"privacy": {"noise_multiplier": 1.4, "batch_size": 32}}
    with pytest.raises(StudyError, match="number of records"):
        repeat(made(noisy, **stated), "full")


def test_the_epsilons_of_kalra_et_al_table_2_come_out() -> None:
    sizes = {"C1": (2338.0, 2.36), "C4": (2841.0, 2.12)}
    values = {arm: {"records": n, "epsilon": e} for arm, (n, e) in sizes.items()}
    privacy = {"noise_multiplier": 1.4, "delta": 1e-5, "batch_size": 32, "sampling": "poisson"}
    found = repeat(
        made(TABLE | {"rounds": 30, "privacy": privacy}, source="x", by="epsilon", values=values), "full"
    )["epsilon"]
    for arm, (_, stated) in sizes.items():
        assert found[arm]["rdp"] == pytest.approx(stated, abs=0.006)
        assert found[arm]["pld"] < found[arm]["rdp"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('source = "x"\n[values.a]\naccuracy = [1.0]\n', "mean, spread"),
        ("shows = 'x'\n", "source is missing"),
        ('source = "x"\n[[claims]]\nbetter = "a"\n', "two arms"),
        ('source = "x"\nsay = []\n', "says"),
        ("source = ", "cannot be read"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "reported.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match=complaint):
        read_reported(path)
