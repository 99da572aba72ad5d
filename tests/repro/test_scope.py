"""Collaborative scope: every set of sites is run once for each arm, and a user's figure is of the sets it belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from confrere.core.errors import StudyError
from confrere.core.results import Metrics, RunResult, SiteResult
from confrere.data.records import Federation
from confrere.simulation.finished_run import Run
from confrere.site.open_sites import open_sites
from confrere.study import Study
from confrere.study.reading import parse
from repro import experiment as repeating
from repro.experiment import repeat, result_file
from repro.page import write_page
from repro.scope import reached, scopes
from tests.conftest import arrays
from tests.repro.test_experiment import STATED, TABLE, made


def pretended(study: Study, federation: Federation) -> Run:
    """A run whose accuracy tells who took part: a tenth for each site, and a hundredth for «site2»."""
    names = sorted(federation.sites)
    value = 0.1 * (1 if study.strategy_name == "local" else len(names)) + 0.01 * ("site2" in names)
    return Run(
        study, RunResult(sites={n: SiteResult(n, metrics=Metrics({"accuracy": value})) for n in names})
    )


def test_a_users_scope_is_the_mean_over_the_sets_it_belongs_to() -> None:
    study = Study(name="scope", rounds=1, strategy="fedavg")
    sites = arrays(3, records=60)
    found = reached(
        study, study.with_(strategy="local"), "accuracy", pretended, lambda s: open_sites(s, sites)
    )
    assert found["site0"] == pytest.approx({1: 0.11, 2: 0.205, 3: 0.31})
    assert found["site2"] == pytest.approx({1: 0.11, 2: 0.21, 3: 0.31})


def test_a_run_with_fewer_sites_has_a_name_of_its_own() -> None:
    asked: list[tuple[str, int]] = []

    def noted(study: Study, federation: Federation) -> Run:
        asked.append((study.hash(), len(federation.sites)))
        return pretended(study, federation)

    study, sites = Study(name="scope", rounds=1, strategy="fedavg"), arrays(3, records=60)
    reached(study, study.with_(strategy="local"), "accuracy", noted, lambda s: open_sites(s, sites))
    assert [size for _, size in asked] == [3, 2, 2, 2, 3]
    assert len({name for name, _ in asked}) == 5


def test_too_many_sites_are_refused_with_the_number_of_sets() -> None:
    study, sites = Study(name="scope", rounds=1, strategy="fedavg"), arrays(7, records=60)
    with pytest.raises(StudyError, match="127 of them"):
        reached(study, study, "accuracy", pretended, lambda s: open_sites(s, sites))


def test_a_study_that_asks_for_it_is_run_once_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    table = {**TABLE, "data": {"bundled": "breast-diagnostic", "options": {"sites": 3}}}
    experiment = made(table, **(STATED | {"figures": ["scope"]}))
    found = repeat(experiment, "smallest", kept=tmp_path / "kept") | {"command": "x"}
    assert found["scope"].keys() == {"global-sgd", "fedavg", "fedprox"}
    assert all([p["sites"] for p in points] == [1, 2, 3] for points in found["scope"]["fedavg"].values())
    monkeypatch.setattr(repeating, "simulate", None)  # nothing is run a second time
    assert repeat(experiment, "smallest", kept=tmp_path / "kept")["scope"] == found["scope"]
    place = result_file(tmp_path, experiment.study.name)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(found), encoding="utf-8")
    write_page([experiment], tmp_path)
    assert (tmp_path / "figures" / "again-scope.svg").stat().st_size > 3000


def test_alone_is_the_comparisons_own_way_of_learning_alone() -> None:
    study = parse({**TABLE, "comparison": {"arms": ["fedavg"], "seeds": 2, "pooled": False}})
    sites = arrays(2, records=60)
    found = scopes(study, [0, 1], {}, "accuracy", pretended, lambda s: open_sites(s, sites))
    assert [p["mean"] for p in found["fedavg"]["site0"]] == pytest.approx([0.1, 0.2])
    assert [p["std"] for p in found["fedavg"]["site0"]] == [0.0, 0.0]
