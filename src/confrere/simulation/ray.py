"""Workers on a Ray cluster: each shard is an actor that holds its own sites' records and sends batches to the others.

The process that was started drives the rounds and keeps, after each, what every shard would need to go on. So when a
node is lost, its shards are started on another one from the end of the last round, and that round is done again by all:
with the same seeds, so with the same result. Ray is an extra: `pip install 'confrere[ray]'`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from confrere.core.errors import ConfrereError, StudyError, WorkerLost
from confrere.core.registry import custom_definitions, import_definitions
from confrere.data.records import Federation, Records
from confrere.learning.local_training.cohort import TRAINERS
from confrere.simulation.collaboration import AllSites
from confrere.simulation.shard import Answer, Assignment, Shard, checked_answer, described
from confrere.simulation.simulation import Simulation
from confrere.site import snapshot
from confrere.site.assemble import has_own_networks
from confrere.study import parse

PATIENCE = 120.0
"""Seconds to wait until the cluster has room for a shard."""


def library() -> Any:
    """Ray itself, or what to install."""
    try:
        import ray
    except ImportError:
        raise StudyError(
            "--engine ray needs Ray, which is not installed: pip install 'confrere[ray]'"
        ) from None
    return ray


class Cluster:
    """A pool of Ray actors. One that is lost is replaced."""

    replaces, inherits = True, False

    def __init__(self, ray: Any, ours: bool = False) -> None:
        self.ray, self._ours = ray, ours
        self.workers: list[Actor] = []
        self._contents: list[Any] = []
        self._plan: Assignment = {}

    @classmethod
    def connect(cls) -> Cluster:
        """The cluster that this program is connected to, or that RAY_ADDRESS names, or a new one on this machine."""
        ray = library()
        if ours := not ray.is_initialized():
            try:
                # «local»: a cluster that was killed leaves its address behind, and Ray would try it for many minutes
                address = None if os.environ.get("RAY_ADDRESS") else "local"
                ray.init(address, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise StudyError(f"the Ray cluster cannot be reached: {reason}; see RAY_ADDRESS") from None
        return cls(ray, ours)

    def processors(self) -> int:
        """How many processors the cluster has."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    @contextmanager
    def running(self, simulation: Simulation, plan: Assignment) -> Iterator[None]:
        if simulation.device != "cpu":
            raise StudyError(f"--engine ray computes on processors; leave --device {simulation.device} out")
        self._plan = plan
        numbers = range(max(plan.values()) + 1)
        self._contents = [self.ray.put(shard_content(simulation, plan, n)) for n in numbers]
        self.workers = [self._start(n) for n in numbers]
        try:
            yield
        finally:
            for worker in self.workers:
                self.ray.kill(worker.actor)
            self.workers, self._contents = [], []
            if self._ours:
                self.ray.shutdown()

    async def gather(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(worker.ready() for worker in self.workers))
        except TimeoutError:
            raise StudyError(
                f"the Ray cluster has no room for {len(self.workers)} workers after {PATIENCE:g} s; ask for fewer (--workers)"
            ) from None
        await self._share_handles()

    async def replace(self, number: int, attempt: int, block: bytes) -> None:
        self.ray.kill(self.workers[number].actor)  # it may live on, cut off from here
        worker = self.workers[number] = self._start(number)
        try:
            async with asyncio.timeout(PATIENCE):
                await worker.ready()
        except TimeoutError:
            raise WorkerLost(
                f"{described(number, worker.sites)} is lost, and no other node has a free processor"
            ) from None
        await worker.ask("go back", {"attempt": attempt}, block)
        await self._share_handles()

    def _start(self, number: int) -> Actor:
        kind = self.ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(ShardActor)
        sites = [s for s, n in self._plan.items() if n == number]
        return Actor(self.ray, number, kind.remote(self._contents[number], number, dict(self._plan)), sites)

    async def _share_handles(self) -> None:
        """Let every shard know how to reach the others."""
        actors = [w.actor for w in self.workers]
        await asyncio.gather(*(w.call("meet", actors) for w in self.workers), return_exceptions=True)


class Actor:
    """One shard on the cluster, as seen from here."""

    def __init__(self, ray: Any, number: int, actor: Any, sites: Sequence[str]) -> None:
        self.ray, self.number, self.actor, self.sites = ray, number, actor, sites

    async def ready(self) -> None:
        """Wait until the actor has its sites; failing to create it is an error, not a lost worker."""
        try:
            checked_answer(await self.actor.open.remote())
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError as error:
            reason = ([line.strip() for line in str(error).splitlines() if line.strip()] or [""])[-1]
            raise WorkerLost(
                f"{described(self.number, self.sites)} could not be started: {reason[:200]};"
                " every node needs the same version of Confrère"
            ) from None

    async def ask(self, task: str, details: Mapping[str, Any], block: bytes = b"") -> Answer:
        return checked_answer(await self.call("do", task, dict(details), block))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor; that it cannot be reached is a WorkerLost."""
        try:
            return await getattr(self.actor, method).remote(*arguments)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError as error:
            reason = type(error).__name__.removesuffix("Error")
            raise WorkerLost(f"{described(self.number, self.sites)} was lost ({reason})") from None


class ShardActor:
    """What runs on a node of the cluster."""

    def __init__(self, shard_content: bytes, number: int, plan: dict[str, int]) -> None:
        torch.set_num_threads(1)
        self._content, self._number, self._plan = shard_content, number, plan
        self._peers: Sequence[Any] = ()

    async def open(self) -> Answer:
        try:
            simulation = shard_simulation(self._content)
        except ConfrereError as error:
            return {"error": type(error).__name__, "text": str(error)}, b""
        self._content = b""
        self._shard = Shard(simulation, self._number, self._plan, self._send)
        self._delivering = simulation.delivering()
        await self._delivering.__aenter__()
        return {}, b""

    async def meet(self, peers: Sequence[Any]) -> None:
        self._peers = peers

    async def do(self, task: str, details: dict[str, Any], block: bytes) -> Answer:
        return await self._shard.do(task, details, block)

    async def deliver(self, source: int, attempt: int, block: bytes) -> None:
        self._shard.deliver(source, attempt, block)

    def _send(self, to: int, facts: Mapping[str, Any], block: bytes) -> None:
        self._peers[to].deliver.remote(facts["source"], facts["attempt"], block)


def shard_content(simulation: Simulation, plan: Assignment, number: int) -> bytes:
    """What a shard needs: the study, its own sites' records, and what is known of all sites.

    Nothing is pickled: strategies, metrics, networks and the like go by name. The first line lists the modules that
    register them, to be imported before the rest is read.
    """
    federation = simulation.federation
    if has_own_networks(simulation.study):
        raise StudyError(
            "--engine ray needs networks by name; run your own modules in memory, with --workers"
        )
    if type(simulation.trainer) not in TRAINERS.values():
        raise StudyError('--engine ray knows the trainers "cohort" and "one"; run your own in memory')
    mine = {n: s for n, s in federation.sites.items() if plan[n] == number}
    shared: list[Records] = []  # a test set that all sites have in common travels once
    places = {}
    for name, site in mine.items():
        if site.common_test is not None:
            if not any(site.common_test is s for s in shared):
                shared.append(site.common_test)
            places[name] = next(i for i, s in enumerate(shared) if s is site.common_test)
    study = simulation.study.to_toml()
    definitions = needed_definitions(study, federation.task.kind)
    return (
        json.dumps(definitions).encode()
        + b"\n"
        + snapshot.dumps(
            {
                "study": study,
                "task": federation.task,
                "notes": list(federation.notes),
                "names": simulation.names,
                "trainer": next(n for n, kind in TRAINERS.items() if kind is type(simulation.trainer)),
                "churn": simulation.churn,
                "sizes": {n: site.size for n, site in simulation.federation.sites.items()},
                "sites": {n: replace(s, common_test=None) for n, s in mine.items()},
                "shared": shared,
                "places": places,
            }
        )
    )


def needed_definitions(study: str, task_kind: str) -> list[tuple[str, str, str, str]]:
    """The metrics, and what the study names, that modules outside this package define: (kind, name, module, file)."""
    needed = [
        d
        for d in custom_definitions()
        if d.kind == "metric" or f'"{d.name}"' in study or (d.kind, d.name) == ("task kind", task_kind)
    ]
    for d in needed:
        if d.module == "__main__" or d.file is None:
            raise StudyError(
                f'--engine ray cannot import {d.kind} "{d.name}", which is defined in the script or prompt that was'
                " started; move it to a module and import that"
            )
    return [(d.kind, d.name, d.module, os.path.abspath(d.file or "")) for d in needed]


def shard_simulation(data: bytes) -> Simulation:
    """The simulation of a shard, ready for its first task."""
    definitions, _, content = data.partition(b"\n")
    import_definitions(json.loads(definitions))
    found = snapshot.loads(content, "what a shard was sent")
    study = parse(tomllib.loads(found["study"]), "study")
    sites = {
        n: replace(s, common_test=found["shared"][found["places"][n]]) if n in found["places"] else s
        for n, s in found["sites"].items()
    }
    federation = Federation(study.name, found["task"], sites, notes=tuple(found["notes"]))
    simulation = Simulation(
        study,
        federation,
        among=AllSites(found["names"], found["churn"], found["sizes"]),
        trainer=found["trainer"],
    )
    simulation.prepare()
    return simulation
