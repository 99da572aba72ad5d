"""Repeating an experiment: runs are kept and not done again, rates are chosen on validation records, and the page is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import StudyError
from confrere.runtime import repeat as repeating
from confrere.runtime.repeat import Unfinished, repeat, result_file
from confrere.runtime.studies_page import write_page
from confrere.study import Study, parse

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
    "reported": {
        "source": "Nobody et al.",
        "shows": "Fig. 1",
        "figures": ["curves", "settings", "bars", "pyramid", "reached"],
        "remarks": ["It is the same."],
        "values": {"fedavg@fast": {"accuracy": [0.9, 0.02]}},
        "claims": [{"better": "fedavg@fast", "than": "fedavg@slow"}],
    },
}


@pytest.fixture(scope="module")
def study() -> Study:
    pytest.importorskip("sklearn")
    return parse(TABLE)


def test_a_kept_run_is_not_done_again(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = repeat(study, "smallest", kept=tmp_path)
    monkeypatch.setattr(repeating, "simulate", None)  # a second training would fail
    assert repeat(study, "smallest", kept=tmp_path) == first


def test_it_stops_in_time_and_says_what_is_next(study: Study, tmp_path: Path) -> None:
    with pytest.raises(Unfinished, match="seed 0 is next"):
        repeat(study, "smallest", kept=tmp_path, seconds=-1.0)


def test_the_setting_is_chosen_on_validation_records(study: Study) -> None:
    found = repeat(study, "smallest")
    assert found["chosen"] == dict.fromkeys(["local-sgd", "global-sgd", "fedavg", "fedprox"], "fast")


def test_the_page_shows_both_sides_the_scale_and_where_they_differ(study: Study, tmp_path: Path) -> None:
    found = repeat(study, "smallest") | {"command": "confrere compare again.toml --scale smallest"}
    place = result_file(tmp_path, study.name)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(found), encoding="utf-8")
    page = write_page([study, study.with_(name="never-run")], tmp_path).read_text(encoding="utf-8")
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
    changed = write_page([study.with_(rounds=3, strategy="cwt")], tmp_path).read_text(encoding="utf-8")
    assert "run it again" in changed


def test_the_majority_class_is_a_level_of_the_figure(study: Study, tmp_path: Path) -> None:
    assert study.reported is not None
    drawn = study.with_(reported=replace(study.reported, figures=["weights"]))
    found = repeat(drawn, "smallest") | {"command": "x"}
    assert 0.5 < found["levels"]["majority class"] < 0.8
    place = result_file(tmp_path, study.name)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(found), encoding="utf-8")
    write_page([drawn], tmp_path)
    assert (tmp_path / "figures" / "again-weights.svg").exists()


def test_an_epsilon_needs_the_number_of_records() -> None:
    table = TABLE | {"reported": {"source": "x", "by": "epsilon", "values": {"a": {"epsilon": 2.0}}}}
    with pytest.raises(StudyError, match="noise_multiplier"):
        repeat(parse(table), "full")
    noisy = table | {"privacy": {"noise_multiplier": 1.4, "batch_size": 32}}
    with pytest.raises(StudyError, match="number of records"):
        repeat(parse(noisy), "full")


def test_the_epsilons_of_kalra_et_al_table_2_come_out() -> None:
    sizes = {"C1": (2338.0, 2.36), "C4": (2841.0, 2.12)}
    values = {arm: {"records": n, "epsilon": e} for arm, (n, e) in sizes.items()}
    privacy = {"noise_multiplier": 1.4, "delta": 1e-5, "batch_size": 32, "sampling": "poisson"}
    table = TABLE | {
        "rounds": 30,
        "privacy": privacy,
        "reported": {"source": "x", "by": "epsilon", "values": values},
    }
    found = repeat(parse(table), "full")["epsilon"]
    for arm, (_, stated) in sizes.items():
        assert found[arm]["rdp"] == pytest.approx(stated, abs=0.006)
        assert found[arm]["pld"] < found[arm]["rdp"]


def test_without_a_source_there_is_nothing_to_repeat(study: Study) -> None:
    with pytest.raises(StudyError, match=r"\[reported\]"):
        repeat(study.with_(reported=None), "full")
