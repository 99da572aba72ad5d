"""A site computes one call of its strategy at a time: networks, memory and what was paid are never shared by two."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from confrere import Model, Peers, Site, Supervised, public, strategy
from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.learning.local_training.one_site import Job, Trained
from confrere.node import replay
from confrere.node.node import Node
from confrere.simulation.backends import simulate
from confrere.study import Privacy, Study
from tests.conftest import arrays
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network
from tests.unit.quick import quick

FOUND: dict[str, list[tuple[Model, Model]]] = {}
TOGETHER = {0: True}  # no option: the noise of a rehearsal follows from the study


@dataclass(frozen=True)
class State:
    model: Model


@strategy("both-at-once")
@dataclass(frozen=True)
class BothAtOnce:
    """Trains the same model with and without noise, awaiting both calls together (made for this test)."""

    deploys: ClassVar[tuple[str, ...]] = ("model",)
    topology: ClassVar[str] = "complete"

    def init(self, site: Site) -> State:
        return State(site.build("proxy"))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        calls = [
            site.train({"model": Supervised()}, {"model": state.model}, protect=["model"]),
            site.train({"model": Supervised()}, {"model": state.model}),
        ]
        if TOGETHER[0]:
            noisy, plain = await asyncio.gather(*calls)
        else:
            noisy, plain = await calls[0], await calls[1]
        FOUND.setdefault(site.name, []).append((noisy["model"], plain["model"]))
        await peers.exchange(noisy["model"], weight=public(site.size))
        return State(noisy["model"])


def study(name: str = "both-at-once") -> Study:
    plan = quick(name, patience=20.0, privacy=Privacy(epsilon=8.0, delta=1e-3, steps=4))
    return plan.with_(training=replace(plan.training, epochs=4))


def run_nodes(folder: Path) -> None:
    network = Network()
    nodes = [Node(s, connect=network.connect) for s in settings(folder, study(), sites=2).values()]

    async def run() -> None:
        await asyncio.wait_for(asyncio.gather(*(node.run(until_done=True) for node in nodes)), 60)

    asyncio.run(run())


class Watched:
    """Counts the trainings of a site that run at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._lock, self._work = threading.Lock(), replay.train_site
        monkeypatch.setattr(replay, "train_site", self)

    def __call__(self, job: Job) -> Trained:
        with self._lock:
            self.running[job.site] += 1
            self.most[job.site] = max(self.most[job.site], self.running[job.site])
        time.sleep(0.1)
        try:
            return self._work(job)
        finally:
            with self._lock:
                self.running[job.site] -= 1


def test_two_trainings_awaited_together_on_a_node_do_not_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    run_nodes(tmp_path)
    assert dict(watched.most) == {"site0": 1, "site1": 1}


@pytest.mark.parametrize("runtime", ["node", "simulation"])
def test_calls_awaited_together_come_to_what_they_do_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    found = []
    for together in (False, True):
        FOUND.clear()
        monkeypatch.setitem(TOGETHER, 0, together)
        if runtime == "node":
            run_nodes(tmp_path / str(together))
        else:
            simulate(study(), arrays(2, 60))
        found.append(dict(FOUND))
    for name, rounds in found[0].items():
        for (noisy, plain), (again, plain_again) in zip(rounds, found[1][name], strict=True):
            assert (noisy.custody, plain.custody) == (Custody.PROTECTED, Custody.PRIVATE)
            assert noisy.params.equals(again.params)
            assert plain.params.equals(plain_again.params)


def test_a_call_that_the_round_did_not_wait_for_is_refused() -> None:
    pending: list[Any] = []

    class Forgets(BothAtOnce):
        async def round(self, state: State, site: Site, peers: Peers) -> State:
            pending.append(site.evaluate({"model": state.model}))
            await peers.exchange(state.model, weight=public(site.size))
            return state

    strategy("forgets")(dataclass(frozen=True)(Forgets))
    simulate(study("forgets"), arrays(2, 60))
    with pytest.raises(StudyError, match="after its round"):
        asyncio.run(pending[0])
    for call in pending[1:]:
        call.close()
