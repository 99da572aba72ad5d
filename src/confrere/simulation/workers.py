"""Worker processes of this machine, each with a share of the sites.

They are forked from the process that has opened the records: what is read by all is there once, and own arrays and
modules work as they do in one process. Each pair of workers has a line of its own; no parcel passes through the parent.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from confrere.core.errors import StudyError, WorkerLost
from confrere.simulation.gc_pause import rare_collections
from confrere.simulation.shard import Answer, Assignment, Shard, checked_answer, described
from confrere.simulation.simulation import Simulation
from confrere.transport.pipe import PipeEnd, pair


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """A pool of forked processes. One that dies is not replaced: what killed it would kill the next."""

    replaces, inherits = False, True

    def __init__(self) -> None:
        self.workers: list[Process] = []

    @contextmanager
    def running(self, simulation: Simulation, plan: Assignment) -> Iterator[None]:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise StudyError("this system cannot divide a process; leave --workers out")
        if simulation.device != "cpu":
            raise StudyError(
                f"--workers are for the processor; leave it out for --device {simulation.device}"
            )
        numbers = range(max(plan.values()) + 1)
        above = {n: pair() for n in numbers}
        among = {(a, b): pair() for a in numbers for b in numbers if a < b}
        fork = multiprocessing.get_context("fork")
        for n in numbers:
            own = {b if a == n else a: ends[a != n] for (a, b), ends in among.items() if n in (a, b)}
            kept = {id(line) for line in (*own.values(), above[n][1])}
            ends = [line for lines in (*above.values(), *among.values()) for line in lines]
            child = fork.Process(
                target=_work,
                args=(simulation, n, plan, above[n][1], own, [e for e in ends if id(e) not in kept]),
                daemon=True,
                name=f"confrere-worker-{n}",
            )
            child.start()
            self.workers.append(Process(n, child, above[n][0], [s for s, w in plan.items() if w == n]))
        for lines in [(ours,) for _, ours in above.values()] + list(among.values()):
            for line in lines:  # these ends live in the workers alone, so that it shows when one of them dies
                line.close()
        try:
            yield
        finally:
            for worker in self.workers:
                worker.stop()
            for worker in self.workers:  # they give their memory back side by side
                worker.process.join()
            self.workers = []

    async def gather(self) -> None:
        for worker in self.workers:
            await worker.line.open()

    async def replace(self, number: int, attempt: int, block: bytes) -> None:
        raise NotImplementedError("worker processes are not replaced")


class Process:
    """One worker process, as seen from its parent."""

    def __init__(self, number: int, process: BaseProcess, line: PipeEnd, sites: Sequence[str]) -> None:
        self.number, self.process, self.line, self.sites = number, process, line, sites

    async def ask(self, task: str, details: Mapping[str, Any], block: bytes = b"") -> Answer:
        self.line.send({"task": task, "details": dict(details)}, block)
        answer = await self.line.receive()
        if answer is None:
            raise WorkerLost(self._why())
        return checked_answer(answer)

    def _why(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        how = f"with code {code}"
        if code is not None and code < 0:
            how = f"by {signal.Signals(-code).name}"
        memory = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
        return f"{described(self.number, self.sites)} was ended {how}{memory}"

    def stop(self) -> None:
        self.line.close()
        if self.process.is_alive():
            self.process.kill()


def _work(
    simulation: Simulation,
    number: int,
    plan: Assignment,
    parent: PipeEnd,
    peers: Mapping[int, PipeEnd],
    others: Sequence[PipeEnd],
) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when it is over
    for line in others:
        line.close()
    torch.set_num_threads(1)
    with rare_collections():  # looking through what was there before would also copy its pages
        asyncio.run(_serve(simulation, number, plan, parent, peers))


async def _serve(
    simulation: Simulation, number: int, plan: Assignment, parent: PipeEnd, peers: Mapping[int, PipeEnd]
) -> None:
    for line in (parent, *peers.values()):
        await line.open()
    shard = Shard(simulation, number, plan, lambda to, facts, block: peers[to].send(facts, block))

    async def take_in(line: PipeEnd) -> None:
        while (found := await line.receive()) is not None:
            facts, block = found
            shard.deliver(facts["source"], facts["attempt"], block)

    listening = [asyncio.create_task(take_in(line)) for line in peers.values()]
    async with simulation.delivering():
        while (found := await parent.receive()) is not None:
            facts, block = found
            parent.send(*await shard.do(facts["task"], facts["details"], block))
    for task in listening:
        task.cancel()
