"""Processes of masked nodes that are killed at random instants and started again.

Only what must hold whatever was killed when is asserted: how far a sum came is left to chance.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import StudyError
from confrere.core.events import Journal, verified
from confrere.node.store import Store
from confrere.simulation.rehearsal import RehearsalNodes
from confrere.site import snapshot
from confrere.site.open_sites import open_sites
from confrere.site.site_folder import STORE, site_folder_of
from confrere.site.site_run import run_id
from confrere.study import Study, load
from tests.conftest import write_study
from tests.masked_nodes import sum_books

BODY = """
rounds = 2
strategy = "fedavg"
combiner = "masked-sum"
patience = 4.0
[masked]
colluding = 1
dropouts = 1
[training]
tune = false
[privacy]
noise_multiplier = 8.0
delta = 1e-4
"""
SECONDS = 60.0
"""After this time the nodes are asked to stop, wherever they are."""


async def killed_at_random(nodes: RehearsalNodes, chance: random.Random) -> None:
    running = asyncio.create_task(nodes.run())
    try:
        for _ in range(chance.randint(1, 3)):
            while not running.done() and not nodes.rounds:
                await asyncio.sleep(0.02)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            nodes.kill(chance.choice(sorted(nodes.nodes)))
        async with asyncio.timeout(SECONDS):
            await running
    except (TimeoutError, StudyError):  # it waits for something, or no node came to its end
        pass
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def states_of(nodes: RehearsalNodes, study: Study) -> dict[str, Any]:
    """The last state of every node that has one."""
    found = {}
    for name in nodes.nodes:
        path = site_folder_of(nodes.folder, name) / STORE
        if path.exists():
            store = Store(path, run=run_id(study), site=name)
            body = next(iter(store.latest()), None)
            store.close()
            if body is not None:
                found[name] = snapshot.loads(body[1])["state"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_nodes_that_are_killed_at_random_instants_charge_and_open_nothing_twice(
    seed: int, tmp_path: Path
) -> None:
    study = load(write_study(tmp_path, BODY, sites=4, records=60))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "study.toml").write_text(study.to_toml())
    nodes = RehearsalNodes(folder, sorted(study.sites), Journal(None), revive=True)
    nodes.enroll(study, {n: d.declared for n, d in open_sites(study).sites.items()})
    asyncio.run(killed_at_random(nodes, random.Random(seed)))
    homes = {name: site_folder_of(folder, name) for name in nodes.nodes}
    assert not [node.lost for node in nodes.nodes.values() if node.lost], "a node ended with an error"
    books = sum_books({name: home / "ledger.sqlite" for name, home in homes.items()})
    assert books.problems == []
    assert books.vectors <= books.charges
    common: dict[int, list[Any]] = defaultdict(list)
    for state in states_of(nodes, study).values():
        if state.common is not None:
            common[state.common.version].append(state.common.model.params)
    for first, *others in common.values():
        assert all(first.equals(other) for other in others), "one version of the common state, two models"
    for home in homes.values():
        if (home / "journal.jsonl").exists():
            assert list(verified(home / "journal.jsonl"))
