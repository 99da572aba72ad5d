"""A node that dies at any step that makes something durable, inside one process: quick, for every change.

`test_node_failpoints.py` does the same with processes and SIGKILL, `test_node_machine.py` at the receiving end.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from confrere.node import replay, setup, store
from confrere.node.config import NodeConfig
from confrere.node.failpoints import POINTS
from confrere.node.node import Node
from confrere.simulation.backends import simulate
from confrere.site.open_sites import open_sites
from confrere.study import Study
from tests.conftest import arrays
from tests.system.invariants import check_nodes
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network
from tests.unit.quick import quick

SENDING = [p for p in POINTS if not p.startswith("credit")]
STUDY = quick("proxyfl", rounds=3, patience=60.0)


class Killed(BaseException):
    """The plug was pulled."""


@pytest.fixture(scope="module")
def whole() -> Any:
    return simulate(STUDY, arrays(2, 60))


async def lives(place: NodeConfig, network: Network, nodes: dict[str, Node], deaths: list[str]) -> None:
    """Start a node again and again until it is told to stop."""
    while True:
        node = nodes[place.me] = Node(place, connect=network.connect)
        try:
            return await node.run()
        except Killed:
            deaths.append(place.me)


async def until_all_is_done(places: dict[str, NodeConfig], deaths: list[str]) -> dict[str, Node]:
    network, nodes = Network(), {}
    tasks = [asyncio.create_task(lives(p, network, nodes, deaths)) for p in places.values()]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(120):
            while not all(n.doing == "finished" and not n.store.owed() for n in nodes.values()):
                for task in tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.05)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return nodes


def agree(whole: Any, nodes: dict[str, Node], study: Study, places: dict[str, NodeConfig]) -> None:
    for name, node in nodes.items():
        for role, model in whole.models[name].items():
            assert getattr(node.site_run.state, role).params.distance(model.params) < 1e-5
    books = check_nodes(study, open_sites(study, arrays(2, 60)), {n: p.home for n, p in places.items()})
    assert books.problems == []
    assert books.charges == 2 * study.rounds


def die_at(point: str, time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes to this point as the so-manyeth dies there."""
    left = [time]

    def reach(here: str) -> None:
        if here == point:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    for module in (replay, setup, store):
        monkeypatch.setattr(module, "reach", reach)


@pytest.mark.parametrize("point", SENDING)
def test_a_node_that_dies_there_ends_as_if_nothing_had_happened(
    point: str, tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(point, 1 if point == "result-written" else 3, monkeypatch)  # in the second round of one of the two
    deaths: list[str] = []
    places = settings(tmp_path, STUDY, sites=2)
    nodes = asyncio.run(until_all_is_done(places, deaths))
    assert len(deaths) == 1
    agree(whole, nodes, STUDY, places)
