"""A worker that is lost in the middle of a round: another goes on in its place, and the run ends as it would have.

Here all shards live in this process and are lost at will; `test_ray.py` loses real nodes of a real cluster.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import PrivacyError, StudyError, WorkerLost
from confrere.core.events import Event
from confrere.simulation.backends import resume, simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.ray import library, shard_content, shard_simulation
from confrere.simulation.run_folder import RunFolder
from confrere.simulation.shard import Answer, Assignment, Shard, checked_answer
from confrere.simulation.sharded import ShardedSimulation, refuse_undercounting
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.study import Study
from confrere.study.churn import Churn
from tests.conformance.table import ROWS
from tests.conformance.test_strategies import same_models, study
from tests.conftest import arrays
from tests.unit.simulation.test_workers import heard

Fate = tuple[str, int, int, bool]
"""Task, round, shard; and whether it is lost after the task was done, before anybody heard of it."""
CHURN = Churn(absent={"site0": [1, 2]}, leave={"site1": 4})


class Room:
    """A pool whose workers are shards in this process."""

    replaces, inherits = True, False

    def __init__(self, *fates: Fate) -> None:
        self.fates = list(fates)
        self.workers: list[Somebody] = []
        self.replaced: list[int] = []

    @contextmanager
    def running(self, simulation: Simulation, plan: Assignment) -> Iterator[None]:
        self.contents = [shard_content(simulation, plan, n) for n in range(max(plan.values()) + 1)]
        self.plan = plan
        yield

    async def gather(self) -> None:
        self.workers = [await self.hired(n) for n in range(len(self.contents))]

    async def hired(self, number: int) -> Somebody:
        simulation = shard_simulation(self.contents[number])
        somebody = Somebody(self, number, Shard(simulation, number, self.plan, self.send))
        await somebody.at_work.__aenter__()
        return somebody

    async def replace(self, number: int, attempt: int, block: bytes) -> None:
        self.replaced.append(number)
        self.workers[number] = await self.hired(number)
        await self.workers[number].ask("go back", {"attempt": attempt}, block)

    def send(self, to: int, facts: Mapping[str, Any], block: bytes) -> None:
        def arrive() -> None:
            self.workers[to].shard.deliver(facts["source"], facts["attempt"], block)

        asyncio.get_running_loop().call_later(0.001, arrive)


class Somebody:
    def __init__(self, room: Room, number: int, shard: Shard) -> None:
        self.room, self.number, self.shard = room, number, shard
        self.at_work = shard.simulation.delivering()

    async def ask(self, task: str, details: Mapping[str, Any], block: bytes = b"") -> Answer:
        for fate in self.room.fates:
            if fate[:3] == (task, details.get("round"), self.number):
                self.room.fates.remove(fate)
                if fate[3]:
                    await self.shard.do(task, details, block)
                raise WorkerLost(f"worker {self.number} was lost")
        return checked_answer(await self.shard.do(task, details, block))


def spread(found: Study, room: Room, shards: int = 3, **more: Any) -> Run:
    federation = open_sites(found, arrays(5))
    simulation = ShardedSimulation(found, federation, pool=room, shards=shards, trainer="one")
    return simulation.run(**more)


FATES: list[tuple[Fate, ...]] = [
    (("take part", 0, 1, False),),
    (("take part", 0, 2, True),),
    (("take part", 3, 0, True),),
    (("settle", 3, 1, False),),
    (("settle", 4, 2, True),),
    (("take part", 2, 0, True), ("settle", 2, 1, True), ("take part", 3, 0, False)),
]


@pytest.mark.parametrize("name", ["proxyfl", "fedavg-star"])
@pytest.mark.parametrize(
    "fates", FATES, ids=lambda f: "+".join(f"{t[0]} {t[1]}" for t in f).replace(" ", "-")
)
def test_whenever_a_worker_is_lost_the_run_ends_as_it_would_have(name: str, fates: tuple[Fate, ...]) -> None:
    found = study(next(r for r in ROWS if r.id == name), churn=CHURN)
    whole = simulate(found, arrays(5), trainer="one")
    room = Room(*fates)
    run = spread(found, room)
    assert (room.fates, room.replaced) == ([], [f[2] for f in fates])
    same_models(whole, run)
    assert run.result == whole.result
    assert heard(run) == heard(whole)
    lost = [e for e in run.events if e.kind == "notice" and "was lost" in e.data["text"]]
    assert len(lost) == len(fates)


def test_no_charge_is_forgotten_and_none_is_made_twice() -> None:
    found = study(next(r for r in ROWS if r.id == "proxyfl"))
    whole = simulate(found, arrays(5), trainer="one")
    run = spread(found, Room(("settle", 3, 1, True), ("take part", 4, 0, True)))

    def charged(run: Run) -> dict[tuple[str | None, int | None], list[float]]:
        out: dict[tuple[str | None, int | None], list[float]] = {}
        for event in run.events:
            if event.kind == "charged":
                out.setdefault((event.site, event.round), []).append(event.data["epsilon"])
        return out

    assert charged(run) == charged(whole)


def test_a_ledger_that_would_count_too_little_is_refused() -> None:
    told = [{"ledgers": {"a": 3}, "seen": {"b": 4}}, {"ledgers": {"b": 3}, "seen": {"a": 3}}]
    with pytest.raises(PrivacyError, match=r'site "b".* entry 3 .* entry 4'):
        refuse_undercounting(told)
    told[1]["ledgers"]["b"] = 4
    refuse_undercounting(told)


def test_a_worker_that_is_lost_again_and_again_ends_the_run(tmp_path: Path) -> None:
    found = study(next(r for r in ROWS if r.id == "proxyfl"))
    room = Room(*[("take part", 2, 1, False)] * 9)
    folder = RunFolder(tmp_path / "run", found)
    with pytest.raises(WorkerLost, match="--resume"):
        spread(found, room, folder=folder)
    whole = simulate(found, arrays(5), trainer="one")
    same_models(whole, resume(tmp_path / "run", arrays(5), trainer="one"))


def test_a_run_of_one_process_goes_on_with_workers_elsewhere(tmp_path: Path) -> None:
    found = study(next(r for r in ROWS if r.id == "proxyfl"), churn=CHURN)
    whole = simulate(found, arrays(5), trainer="one")

    def stop(event: Event) -> None:
        if event.kind == "trained" and event.round == 3:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        simulate(found, arrays(5), out=tmp_path / "run", listeners=(stop,), trainer="one")
    room = Room(("take part", 3, 1, True))
    again = spread(found, room, folder=RunFolder(tmp_path / "run", found), again=True)
    same_models(whole, again)
    assert again.sites == whole.sites


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r"pip install 'confrere\[ray\]'"):
        library()
    with pytest.raises(StudyError, match=r"confrere\[ray\]"):
        simulate(study(ROWS[0]), arrays(3), engine="ray")


def test_a_trainer_or_network_of_one_s_own_cannot_travel() -> None:
    class Own:
        async def run(self, job: Any) -> Any: ...

    found = study(ROWS[0])
    simulation = Simulation(found, open_sites(found, arrays(3)), trainer=Own())
    simulation.prepare()
    with pytest.raises(StudyError, match="run your own in memory"):
        shard_content(simulation, dict.fromkeys(simulation.names, 0), 0)
