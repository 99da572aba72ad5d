"""What a node deploys is never worse than its own model, whatever its peers send; and no peer learns which it deploys."""

from __future__ import annotations

import asyncio
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confrere.cli import status as cli_status
from confrere.core.events import verified
from confrere.exchange.attacks import SignFlip
from confrere.node.node import Node
from confrere.node.node_status import NodeStatus
from confrere.node.status import resting_status
from confrere.simulation.backends import simulate
from confrere.site import deployment
from confrere.site.attackers import AttackHook, AttackPlan
from confrere.study import Study
from confrere.transport import wire
from tests.conftest import arrays
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network
from tests.unit.quick import TRAINING, quick

HONEST = ("site0", "site1")
PLAN = AttackPlan("signflip", SignFlip(strength=6.0), ("site2",), HONEST)
STUDY = quick("fedavg", rounds=8, patience=30.0)


async def to_the_end(nodes: list[Node]) -> None:
    await asyncio.gather(*(node.run(until_done=True) for node in nodes))


def attacked(folder: Path, study: Study = STUDY) -> Network:
    """A run in which the last of three nodes sends its update with the sign turned round."""
    network, places = Network(), settings(folder, study)
    nodes = [Node(place, connect=network.connect) for place in places.values()]
    nodes[-1].site_run.peers.outgoing = AttackHook(PLAN, nodes[-1].site)
    asyncio.run(to_the_end(nodes))
    return network


def test_an_honest_node_deploys_its_own_model_when_a_peer_flips_signs(tmp_path: Path) -> None:
    attacked(tmp_path)
    tuned = quick("local", privacy=None, training=replace(TRAINING, tune=True))
    alone = simulate(tuned, arrays(3, 60))
    for site in HONEST:
        home = tmp_path / site
        card = tomllib.loads((home / "model" / "card.toml").read_text(encoding="utf-8"))
        assert card["deployed"]["model"] == "own"
        assert card["metrics_private"]["auc"] == alone.sites[site].metrics.auc
        found = resting_status(home)
        assert found["deployed_private"]["model"] == "own"
        assert found["quality_private"]["auc"] == alone.sites[site].metrics.auc
        said = "\n".join(cli_status.lines(NodeStatus.from_json(found)))
        assert "deploys its own model" in said
        assert found["verdict_private"]["word"] == card["verdict_private"]["word"]
        assert f"Verdict (private, never sent): {card['verdict_private']['text']}" in said
        patients = found["verdict_private"]["tested"]["patients"]
        counted = f"On this site's own test records, {patients} patients, "
        assert counted in said
        del found["verdict_private"]  # as before the last round
        assert counted in "\n".join(cli_status.lines(NodeStatus.from_json(found)))
        collaborative = [e for e, _ in verified(home / "journal.jsonl") if e.kind == "evaluated"][-1]
        assert collaborative.data["test"]["model"]["auc"] < alone.sites[site].metrics.auc - 0.2


def sent(network: Network) -> dict[tuple[str, str, int, int], Any]:
    """Every number that has left a site."""
    found = {}
    for sender, receiver, body in network.left:
        parcel = wire.decode(body)
        weights = parcel.model.params.flatten().tolist() if parcel.model is not None else None
        numbers = {name: number.value for name, number in parcel.scalars.items()}
        found[sender, receiver, parcel.round, parcel.phase] = (parcel.sequence, weights, numbers)
    return found


def logged(folder: Path) -> list[str]:
    """The kinds of lines in the log that may be shipped, but for the time of connections."""
    rows = [json.loads(line) for line in (folder / "site0" / "log.jsonl").read_text("utf-8").splitlines()]
    return [row["event"] for row in rows if row["event"] not in ("connected", "disconnected", "notice")]


def test_no_peer_and_no_log_learns_which_model_a_node_deploys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = attacked(tmp_path / "compared")
    monkeypatch.setattr(deployment, "_needs_comparison", lambda run: False)
    not_compared = attacked(tmp_path / "not compared")
    assert sent(compared) == sent(not_compared)
    assert logged(tmp_path / "compared") == logged(tmp_path / "not compared")
    log = (tmp_path / "compared" / "site0" / "log.jsonl").read_text("utf-8")
    assert "own model" not in log
    assert "deployed" not in log
    assert "judged" not in log
    assert "training alone" not in log
