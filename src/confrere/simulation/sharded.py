"""A simulation whose sites are divided over workers: this process drives the rounds and keeps journal and checkpoints.

The pool provides the workers: processes of this machine, or actors of a Ray cluster. All randomness is derived
from names and rounds, so the same study gives the same results however its sites are spread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from confrere.core.errors import PrivacyError, WorkerLost
from confrere.core.events import Event, Journal
from confrere.data.records import Federation
from confrere.simulation.finished_run import Run, started
from confrere.simulation.gc_pause import rare_collections
from confrere.simulation.run_folder import RunFolder
from confrere.simulation.shard import Answer, Assignment, add_events, divide
from confrere.simulation.simulation import Simulation
from confrere.site import snapshot
from confrere.study import Study


class ShardWorker(Protocol):
    """A shard, as the driver of the rounds sees it."""

    async def ask(self, task: str, details: Mapping[str, Any], block: bytes = b"") -> Answer:
        """Let the shard do a task; WorkerLost if it is gone."""
        ...


class WorkerPool(Protocol):
    """Where workers come from."""

    replaces: bool
    """Whether a lost worker is replaced by another one, which goes on from the last round."""
    inherits: bool
    """Whether workers begin with the states that this process has read from a checkpoint."""

    @property
    def workers(self) -> Sequence[ShardWorker]: ...

    def running(self, simulation: Simulation, plan: Assignment) -> AbstractContextManager[None]:
        """Within this, every shard of the plan has a worker. Entered before any event loop runs."""
        ...

    async def gather(self) -> None:
        """Make sure, inside the event loop, that all workers can be asked."""
        ...

    async def replace(self, number: int, attempt: int, block: bytes) -> None:
        """Start another worker for a shard, from the snapshot of the last round."""
        ...


class ShardedSimulation(Simulation):
    """A simulation that a pool carries out."""

    def __init__(
        self, study: Study, federation: Federation, *, pool: WorkerPool, shards: int, **more: Any
    ) -> None:
        super().__init__(study, federation, **more)
        self.pool, self.shards = pool, shards
        self._kept: list[bytes] = [b""] * shards
        self._attempt = 0
        self._stop_reasons: list[str] | None = None
        """Why the sites of all shards have stopped, as of the last round; None while one trains."""
        self.processor_seconds: list[float] = []
        """What each worker has taken in all, once the run is over."""

    def run_rounds(self, journal: Journal, folder: RunFolder | None, again: bool) -> Run:
        first = self._restore(folder, journal) if again and folder is not None else 0
        plan = divide({n: work_of(self, n) for n in self.sites}, self.shards)
        if again:
            self._kept = [snapshot.dumps(_part(self.parts(), plan, s)) for s in range(self.shards)]
        timer = started(self, journal, again, first)
        try:
            with rare_collections(), self.pool.running(self, plan):
                asyncio.run(self._drive(first, journal, folder))
        except WorkerLost as loss:
            where = (
                f"--resume {folder.path} goes on from the last round" if folder and any(self._kept) else ""
            )
            raise WorkerLost(f"{loss}; {where or 'fewer --workers need less memory'}") from None
        return self.finish_run(timer, folder)

    async def _drive(self, first: int, journal: Journal, folder: RunFolder | None) -> None:
        await self.pool.gather()
        if any(self._kept) and not self.pool.inherits:
            for number, kept in enumerate(self._kept):
                await self._ask(number, "go back", {"attempt": self._attempt}, kept)
        keep = folder is not None or self.pool.replaces
        done = first
        for number in self.rounds(first, journal):
            also = folder.due(()) if folder is not None and not self.pool.replaces else None
            answers = await self._until_done(number, keep, also, journal)
            rest = [add_events(answer, journal) for answer in answers]
            reasons = [facts["rest"] for facts, _ in answers]
            self._stop_reasons = None if None in reasons else [why for part in reasons for why in part]
            if keep:
                self._kept = [bytes(block) for block in rest]
            if folder is not None:
                folder.checkpoint(number + 1, self._content(number + 1, journal), journal)
            done = number + 1
        for answer in await self._each("finish", [{"done": done}] * self.shards):
            found = snapshot.loads(bytes(add_events(answer, journal)))
            self.processor_seconds.append(answer[0]["seconds"])
            for name, kept in found["sites"].items():
                self.runs[name].state = kept["state"]
                self.runs[name].restore_volatile(kept)

    async def _until_done(
        self, number: int, keep: bool, also: Collection[str] | None, journal: Journal
    ) -> list[Answer]:
        """One round of all shards; if a worker is lost in it and can be replaced, all do it again."""
        wanted = {"keep": keep, "also": None if also is None else sorted(also)}
        losses = 0
        while True:
            try:
                answers = await self._each("take part", [{"round": number}] * self.shards)
                expected: list[dict[str, int]] = [{} for _ in range(self.shards)]
                for source, (facts, _) in enumerate(answers):
                    for receiver, batches in facts["sent"].items():
                        expected[int(receiver)][str(source)] = batches
                details = [{"round": number, "expected": e, "check": losses > 0, **wanted} for e in expected]
                answers = await self._each("settle", details)
                if losses:
                    refuse_undercounting([facts for facts, _ in answers])
                return answers
            except Lost as loss:
                losses += 1
                if not self.pool.replaces or losses > self.shards:
                    raise WorkerLost(str(loss)) from None
                data = {"text": f"{loss}; its sites go on from the end of round {number} on another worker"}
                journal.add(Event("notice", None, number, data=data))
                await self._roll_back(loss.number)

    async def _roll_back(self, lost: int) -> None:
        """Replace a lost worker, and take all shards back to the end of the last round."""
        self._attempt += 1
        gone = {lost}
        while gone:
            for number in sorted(gone):
                await self.pool.replace(number, self._attempt, self._kept[number])
            others = [n for n in range(self.shards) if n not in gone]
            answers = await asyncio.gather(
                *(self._ask(n, "go back", {"attempt": self._attempt}, self._kept[n]) for n in others),
                return_exceptions=True,
            )
            gone = {a.number for a in answers if isinstance(a, Lost)}
            for answer in answers:
                if isinstance(answer, BaseException) and not isinstance(answer, Lost):
                    raise answer

    async def _each(self, task: str, details: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Let all shards do something; the first that cannot ends the waiting for the others."""
        asked = [asyncio.ensure_future(self._ask(n, task, d)) for n, d in enumerate(details)]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, number: int, task: str, details: Mapping[str, Any], block: bytes = b"") -> Answer:
        try:
            return await self.pool.workers[number].ask(task, details, block)
        except WorkerLost as loss:
            raise Lost(str(loss), number) from None

    def stop_reasons(self, number: int) -> list[str] | None:
        return self._stop_reasons

    def parts(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """The snapshots of the shards after the last round; before any round, those of this process."""
        return dict(snapshot.joined(self._kept)) if all(self._kept) else super().parts(names)


class Lost(WorkerLost):
    """Which worker is gone, and why."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def work_of(simulation: Simulation, name: str) -> float:
    """How much a site has to do in a round, in records that go through a network."""
    site, training = simulation.sites[name], simulation.study.training
    drawn = site.mechanism.expected_batch * site.steps * site.releases if site.mechanism is not None else 0.0
    return 1.0 + max(drawn, len(site.data.train) * training.epochs)


def refuse_undercounting(answers: Sequence[Mapping[str, Any]]) -> None:
    """After a loss: a ledger that stands below what peers have seen of it must not go on."""
    seen: dict[str, int] = {}
    for facts in answers:
        for name, count in facts["seen"].items():
            seen[name] = max(count, seen.get(name, 0))
    for facts in answers:
        for name, counter in facts["ledgers"].items():
            if counter < seen.get(name, 0):
                raise PrivacyError(
                    f'site "{name}": its ledger ends at entry {counter} after a worker was lost, but peers saw'
                    f" entry {seen[name]}: it would count too little; start the run again"
                )


def _part(parts: Mapping[str, Mapping[str, Any]], plan: Assignment, number: int) -> dict[str, Any]:
    return {key: {n: v for n, v in table.items() if plan[n] == number} for key, table in parts.items()}
