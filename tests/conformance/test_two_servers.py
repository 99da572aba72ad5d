"""Distances by way of two servers give the same in every runtime, and after losses and restarts."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from confrere.core.events import Event
from confrere.simulation.backends import resume, simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.rehearsal import resume_rehearsal
from confrere.site.faults import Fault
from confrere.site.shared_distances import DIFFERENCES, MEAN, PARTS
from confrere.study import Models, Study, load
from confrere.study.churn import Churn
from tests.conformance.table import BY_SERVERS
from tests.conformance.test_strategies import PRIVACY, SIGNATURE, TRAINING, same_models, sent
from tests.conftest import arrays, write_study
from tests.nodes import Tasks, nodes_in_process

CHURN = Churn(absent={"site1": [1]}, join={"site4": 2})


def study(**changes: Any) -> Study:
    base = Study(
        name="two servers",
        rounds=4,
        strategy=BY_SERVERS.strategy,
        training=TRAINING,
        privacy=PRIVACY,
        models=Models("linear", "linear"),
        churn=CHURN,
    )
    return base.with_(**changes)


def of_files(folder: Path, **changes: Any) -> Study:
    loaded = load(write_study(folder, records=60, sites=5))
    return study(sites=loaded.sites, schema=loaded.schema, **changes)


@cache
def in_memory() -> Run:
    return simulate(study(), arrays(5, 60))


def weighed(run: Run) -> list[Event]:
    return [e for e in run.events if e.kind == "weighed"]


def same_weights(one: Run, two: Run) -> None:
    rows = [[(e.round, e.data["note"]) for e in weighed(run)] for run in (one, two)]
    assert rows[0] == rows[1]
    for first, second in zip(weighed(one), weighed(two), strict=True):
        assert first.data["weights"] == pytest.approx(second.data["weights"], abs=1e-6)


def test_it_learns_and_keeps_to_the_budget() -> None:
    run = in_memory()
    assert run.sites["site0"].metrics.accuracy > 0.6
    assert all(0 < site.privacy.epsilon <= 8.0 and site.privacy.proven for site in run.sites.values())
    assert [e.data["note"] for e in weighed(run)].count("no servers") == 1  # site1 was absent


def test_the_masks_do_not_change_the_result() -> None:
    """They are drawn anew in every run, and cancel to the bit."""
    again = simulate(study(), arrays(5, 60))
    same_models(in_memory(), again)
    assert again.result == in_memory().result


def test_workers_give_the_same() -> None:
    run = simulate(study(), arrays(5, 60), workers=2)
    same_models(in_memory(), run, 1e-6)
    same_weights(run, in_memory())


@pytest.mark.slow
def test_ray_gives_the_same() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'confrere[ray]'")
    run = simulate(study(), arrays(5, 60), workers=2, engine="ray")
    same_models(in_memory(), run, 1e-6)
    same_weights(run, in_memory())


def test_nodes_give_the_same_models_weights_and_bytes(tmp_path: Path) -> None:
    found = of_files(tmp_path, rounds=3, patience=600.0, churn=Churn(absent={"site4": [1]}))
    memory, nodes = simulate(found), nodes_in_process(found, tmp_path / "run")
    same_models(memory, nodes, 1e-6)
    same_weights(nodes, memory)
    exchanged, expected = sent(nodes, SIGNATURE), sent(memory)
    assert [row[:4] for row in exchanged] == [
        row[:4] for row in expected
    ]  # weights differ in their last digits
    assert [row[4] for row in exchanged] == pytest.approx([row[4] for row in expected], abs=40)


@pytest.mark.parametrize(
    ("site", "phase"), [("site3", PARTS), ("site1", DIFFERENCES), ("site2", DIFFERENCES), ("site1", MEAN)]
)
def test_an_interrupted_round_of_nodes_ends_as_if_nothing_had_happened(
    site: str, phase: int, tmp_path: Path
) -> None:
    """Masks that were not sent are drawn anew, and those that were sent are not: the result is the same."""
    found = of_files(tmp_path, rounds=3, patience=600.0, churn=Churn())

    def stop(event: Event) -> bool:
        return (event.kind, event.site, event.round) == ("sent", site, 1) and event.data["phase"] == phase

    with pytest.raises(asyncio.CancelledError):
        nodes_in_process(found, tmp_path / "run", interrupted=stop)
    run = resume_rehearsal(tmp_path / "run", start_nodes=Tasks)
    memory = simulate(found)
    same_models(memory, run, 1e-6)
    assert {e.data["note"] for e in weighed(run)} <= {"", "hidden by noise"}


@pytest.mark.parametrize("site", ["site0", "site1", "site2", "site3", "site4"])
@pytest.mark.parametrize("point", ["before-exchange", "mid-exchange", "before-answer"])
def test_losing_any_site_in_the_middle_of_a_round_stops_nobody(site: str, point: Any) -> None:
    for forever in (False, True):
        run = simulate(study(churn=Churn()), arrays(5, 60), faults=(Fault(site, 1, point, forever),))
        assert any(e.kind == "lost" for e in run.events)
        done = {e.site for e in run.events if e.kind == "trained" and e.round == 3}
        assert done == set(run.sites) - ({site} if forever else set()) or (site == "site0" and forever)


def test_an_interrupted_simulation_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "sent" and event.round == 2 and event.data["phase"] == DIFFERENCES:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        simulate(study(), arrays(5, 60), out=tmp_path / "part", listeners=(stop,))
    same_models(in_memory(), resume(tmp_path / "part", arrays(5, 60)))
