"""Topologies in whole runs: who sends to whom is what the graph says, and everybody ends where promised."""

from __future__ import annotations

from typing import Any

import pytest

from confrere.core.custody import Custody
from confrere.exchange.topology import topologies
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from tests.conftest import arrays
from tests.unit.quick import quick

SITES = ("site0", "site1", "site2", "site3")
TURNS = [
    [[0.5, 0, 0, 0.5], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]],
    [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]],
]
GRAPHS: dict[str, dict[str, Any]] = {
    "exponential": {"name": "exponential"},
    "published": {"name": "exponential", "keep": 0.0, "rota": "published"},
    "ring": {"name": "ring", "keep": 0.5},
    "complete": {"name": "complete"},
    "star, fixed": {"name": "star", "leader": "site2"},
    "star, elected": {"name": "star", "leader": "elected"},
    "random-regular": {"name": "random-regular", "degree": 2},
    "matrix": {"name": "matrix", "matrix": TURNS},
}


def edges(run: Run, phase: int = 0) -> set[tuple[int, str, str]]:
    return {
        (e.round or 0, e.site or "", e.data["to"])
        for e in run.events
        if e.kind == "sent" and e.data["phase"] == phase
    }


@pytest.mark.parametrize("strategy", ["fedavg", "avgpush", "cwt"])
@pytest.mark.parametrize("name", GRAPHS)
def test_parcels_follow_the_edges_and_are_protected(name: str, strategy: str) -> None:
    options = dict(GRAPHS[name])
    graph = topologies[options.pop("name")](**options)
    run = simulate(quick(strategy, topology=GRAPHS[name], rounds=3), arrays(4, 60))
    expected = {
        (r, sender, to)
        for r in range(3)
        for sender in SITES
        for to, share in graph.column(r, SITES, sender).items()
        if to != sender and share > 0
    }
    assert edges(run) == expected
    sent = [e.data for e in run.events if e.kind == "sent" and e.data["model"]]
    assert {d["custody"] for d in sent} <= {Custody.PROTECTED.name, Custody.PUBLIC.name}


@pytest.mark.parametrize(("leader", "centres"), [("site2", ["site2"] * 3), ("elected", list(SITES[:3]))])
def test_the_centre_answers_everybody_who_asked(leader: str, centres: list[str]) -> None:
    run = simulate(quick("fedavg", topology={"name": "star", "leader": leader}, rounds=3), arrays(4, 60))
    expected = {(r, c, s) for r, c in enumerate(centres) for s in SITES if s != c}
    assert edges(run, phase=1) == expected


@pytest.mark.parametrize("name", ["complete", "star, fixed", "star, elected"])
def test_averaging_ends_with_one_model_for_all(name: str) -> None:
    run = simulate(quick("fedavg", topology=GRAPHS[name]), arrays(4, 60))
    first = run.models["site0"]["model"].params
    assert all(m["model"].params.distance(first) < 1e-6 for m in run.models.values())


def test_any_site_may_be_the_centre_and_nothing_changes() -> None:
    stars = [{"name": "star", "leader": site} for site in ("site0", "site3")]
    plain = quick("fedavg", privacy=None)  # different studies draw different noise
    runs = [simulate(plain.with_(topology=t), arrays(4, 60)) for t in [*stars, "complete"]]
    for other in runs[1:]:
        distance = runs[0].models["site1"]["model"].params.distance(other.models["site1"]["model"].params)
        assert distance < 1e-5


def test_a_leader_that_leaves_is_noticed_before_the_first_round() -> None:
    from confrere.core.errors import StudyError
    from confrere.study.churn import Churn

    study = quick(
        "fedavg", topology={"name": "star", "leader": "site2"}, rounds=4, churn=Churn(leave={"site2": 2})
    )
    with pytest.raises(StudyError, match='the centre of the star, "site2", is not a member'):
        simulate(study, arrays(4, 60))
