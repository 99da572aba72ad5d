"""What every strategy promises, in every runtime."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody
from confrere.core.events import Event
from confrere.core.params import Params
from confrere.privacy.gate import Gate
from confrere.simulation.backends import resume, simulate
from confrere.simulation.finished_run import Run
from confrere.site.faults import Fault
from confrere.strategies import discover, strategies
from confrere.study import Models, Privacy, Study, Training, load
from confrere.study.churn import Churn
from tests.conformance.table import ROWS, Row
from tests.conftest import arrays, write_study
from tests.nodes import nodes_in_process

TRAINING = Training(
    tune=False,
    tune_priors=(1.0, 10.0),
    learning_rate=0.1,
    batch_size=32,
    protected={"optimiser": "sgd", "learning_rate": 0.5, "momentum": 0.5},
)
PRIVACY = Privacy(epsilon=8.0, delta=1e-4, steps=2)
EACH = pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
SENDING = pytest.mark.parametrize("row", [r for r in ROWS if r.sends], ids=lambda r: r.id)


def study(row: Row, **changes: Any) -> Study:
    base = Study(
        name="conformance",
        rounds=6,
        strategy=row.strategy,
        topology=row.topology,
        training=TRAINING,
        privacy=PRIVACY,
        models=Models("linear", row.proxy),
    )
    return base.with_(**changes)


@cache
def in_memory(row: str) -> Run:
    """The run of a row with nothing changed, which several tests look at."""
    return simulate(study(next(r for r in ROWS if r.id == row)), arrays())


def numbers(run: Run) -> dict[str, Any]:
    return {n: s.metrics for n, s in run.sites.items()}


def same_models(one: Run, two: Run, tolerance: float = 0.0) -> None:
    assert one.models.keys() == two.models.keys()
    for site in one.models:
        for role, model in one.models[site].items():
            other = two.models[site][role].params
            for name, tensor in model.params.items():
                torch.testing.assert_close(tensor, other[name], rtol=tolerance, atol=tolerance)


def test_every_strategy_has_a_row() -> None:
    ours = {n for n in discover() if strategies[n].__module__.startswith("confrere.")}
    assert ours == {r.name for r in ROWS}


@EACH
@pytest.mark.parametrize("privacy", [PRIVACY, None], ids=["private", "plain"])
def test_it_learns(row: Row, privacy: Privacy | None) -> None:
    run = simulate(study(row, privacy=privacy, rounds=12), arrays(records=400))
    assert run.mean["accuracy"] > 0.75
    assert run.mean["log_loss"] < math.log(2)


@EACH
def test_the_same_seed_gives_the_same_result(row: Row) -> None:
    one, two = in_memory(row.id), simulate(study(row), arrays())
    assert one.result == two.result
    same_models(one, two)
    other = simulate(study(row, seed=1), arrays())
    assert numbers(other) != numbers(one)


@EACH
def test_nothing_private_leaves(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Params] = []
    through = Gate.admit

    def tapped(self: Gate, model: Any, scalars: Any = None, **more: Any) -> Any:
        found = through(self, model, scalars, **more)
        if found[0] is not None:
            assert found[0].custody <= Custody.PROTECTED
            left.append(found[0].params)
        return found

    monkeypatch.setattr(Gate, "admit", tapped)
    run = simulate(study(row), arrays())
    assert bool(left) == row.sends
    for models in run.models.values():
        for role, model in models.items():
            if role == "private" or (row.name == "local" and not row.options):
                assert model.custody == Custody.PRIVATE
                assert not any(model.params.equals(p) for p in left)


@EACH
def test_the_budget_holds_and_is_shown_with_everything_that_belongs_to_it(row: Row) -> None:
    run = in_memory(row.id)
    for site in run.sites.values():
        if row.id in ("local", "pooled"):
            assert site.privacy is None
        else:
            assert 0 < site.privacy.epsilon <= 8.0
            assert site.privacy.proven is True
            assert (site.privacy.delta, site.privacy.unit) == (1e-4, "record")


@SENDING
@pytest.mark.parametrize("point", ["before-exchange", "mid-exchange", "before-answer"])
def test_losing_a_peer_in_the_middle_of_a_round_stops_nobody(row: Row, point: Any) -> None:
    for forever in (False, True):
        fault = Fault("site1", 2, point, forever)
        run = simulate(study(row), arrays(), faults=(fault,))
        answers = any(e.kind == "sent" and e.data["phase"] == 1 for e in run.events)
        if point != "before-answer" or answers:
            assert any(e.kind == "lost" for e in run.events)
        finished = {e.site for e in run.events if e.kind == "trained" and e.round == 5}
        gone = {"site1"} if forever and any(e.kind == "lost" for e in run.events) else set()
        assert finished == {"site0", "site1", "site2"} - gone
        assert run.mean["accuracy"] > 0.6


@SENDING
def test_absence_leaving_and_joining_late_are_survived(row: Row) -> None:
    churn = Churn(absent={"site0": [1, 2]}, leave={"site1": 4}, join={"site2": 2})
    run = simulate(study(row, churn=churn), arrays())
    trained = {(e.site, e.round) for e in run.events if e.kind == "trained"}
    assert trained == {
        *(("site0", r) for r in (0, 3, 4, 5)),
        *(("site1", r) for r in range(4)),
        *(("site2", r) for r in range(2, 6)),
    }
    assert {"joined", "left", "absent"} <= {e.kind for e in run.events}


@EACH
def test_an_interrupted_run_ends_as_if_nothing_had_happened(row: Row, tmp_path: Path) -> None:
    churn = Churn(absent={"site0": [2]})
    whole = simulate(study(row, churn=churn), arrays(), out=tmp_path / "whole")

    def stop(event: Any) -> None:
        if event.kind in ("sent", "trained") and event.round == 3:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        simulate(study(row, churn=churn), arrays(), out=tmp_path / "part", listeners=(stop,))
    again = resume(tmp_path / "part", arrays())
    same_models(whole, again)
    assert replace(whole.result, run=None) == replace(again.result, run=None)


MARK = {"mark": {"counter": 1, "head": "0" * 64, "ledger": "0" * 64, "signature": "0" * 128}}
SIGNATURE = 128 + len(json.dumps(MARK, separators=(",", ":"))) - len("{}") + len(",")
"""Bytes that a node adds to a parcel: its signature, and the signed mark of its ledger with a counter below ten."""


def sent(run: Run, signature: int = 0) -> list[tuple[Any, ...]]:
    """Who sent how many bytes to whom, without the order between sites."""
    found = [e for e in run.events if e.kind == "sent"]
    return sorted(
        (e.site, e.round, e.data["to"], e.data["phase"], e.data["bytes"] - signature) for e in found
    )


@pytest.mark.parametrize("row", [r for r in ROWS if not r.memory_only], ids=lambda r: r.id)
def test_nodes_give_the_same_models_and_bytes(row: Row, tmp_path: Path) -> None:
    loaded = load(write_study(tmp_path, records=60, sites=2))
    found = study(row, rounds=3, sites=loaded.sites, schema=loaded.schema, churn=Churn(absent={"site0": [1]}))
    memory, nodes = simulate(found), nodes_in_process(found, tmp_path / "run")
    same_models(memory, nodes, 1e-6)
    assert nodes.mean == pytest.approx(memory.mean, abs=1e-6)
    assert sent(nodes, SIGNATURE) == sent(memory)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.id in ("fedavg-star", "cwt", "proxyfl", "swarm")], ids=lambda r: r.id
)
def test_a_node_that_is_killed_in_the_middle_of_an_exchange_stops_nobody(row: Row, tmp_path: Path) -> None:
    loaded = load(write_study(tmp_path, records=60))
    found = study(row, rounds=4, sites=loaded.sites, schema=loaded.schema, patience=0.5)

    def killed(event: Event) -> bool:
        return (event.kind, event.site, event.round) == ("sent", "site1", 1)

    run = nodes_in_process(found, tmp_path / "run", killed=killed)
    assert any(e.kind == "lost" and e.site == "site1" for e in run.events)
    done = {e.site for e in run.events if e.kind == "trained" and e.round == 3}
    assert done == {"site0", "site2"}
