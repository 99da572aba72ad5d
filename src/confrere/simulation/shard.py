"""A share of a simulation's sites, run in one loop: what each worker process and each Ray actor does.

A shard is a simulation of its own sites. Parcels for sites of other shards are put together and go out as one batch
whenever all own sites wait. A round has two steps, so that nothing depends on how fast batches travel: when all shards
have taken part, each knows how many batches it was sent, and settles the round once they are all here.

A shard can be taken back to the end of an earlier round, if another one was lost in the middle of this one. `attempt`
numbers these fresh starts; batches of an attempt that was given up are thrown away. Ledgers are not taken back: a charge
stays written down, and a seeded simulation that repeats the very same step is not charged for it twice.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from confrere.core import errors
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.events import Journal
from confrere.core.parcel import Parcel
from confrere.simulation.simulation import Simulation
from confrere.site import snapshot
from confrere.transport import batch

Assignment = Mapping[str, int]
"""Which shard each site belongs to."""
Answer = tuple[dict[str, Any], bytes]
"""The result of a task: facts for JSON, and a block of bytes."""
Send = Callable[[int, Mapping[str, Any], bytes], None]
"""Hands a batch to another shard: its number, what belongs to the batch, and the batch."""


def divide(work: Mapping[str, float], shards: int) -> dict[str, int]:
    """A plan that gives every shard about the same work.

    Neighbours in sorted order stay together where that is as even, since most graphs send to near neighbours.
    """
    if not 1 <= shards <= len(work):
        raise StudyError(
            f"{len(work)} sites cannot be divided over {shards} workers; ask for 1 to {len(work)}"
        )
    total, done, blocks = sum(work.values()), 0.0, {}
    for name in sorted(work):
        blocks[name] = min(int((done + work[name] / 2) * shards / total), shards - 1)
        done += work[name]
    spread: dict[str, int] = {}
    loads = [0.0] * shards
    for name in sorted(work, key=lambda n: (-work[n], n)):
        spread[name] = loads.index(min(loads))
        loads[spread[name]] += work[name]
    heaviest = max(sum(work[n] for n in work if blocks[n] == s) for s in range(shards))
    even = len(set(blocks.values())) == shards and heaviest <= 1.05 * max(loads)
    return blocks if even else spread


class Shard:
    """The sites of `plan` that have this number. `simulation` is cut down to them."""

    def __init__(self, simulation: Simulation, number: int, plan: Assignment, send: Send) -> None:
        self.simulation, self.number, self.plan, self._send = simulation, number, plan, send
        mine = [n for n in simulation.sites if plan[n] == number]
        simulation.sites = {n: simulation.sites[n] for n in mine}
        simulation.judges = {n: simulation.judges[n] for n in mine}
        simulation.peers = {n: simulation.peers[n] for n in mine}
        simulation.runs = {n: simulation.runs[n] for n in mine}
        simulation.network.queues = {n: simulation.network.queues[n] for n in mine}
        simulation.network.forward = self._put
        self.journal = Journal(None)
        simulation.use(self.journal)
        self.attempt = 0
        self._outgoing: dict[int, list[Parcel]] = defaultdict(list)
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._arrived = asyncio.Event()
        self._round: asyncio.Task[None] | None = None

    async def do(self, task: str, details: Mapping[str, Any], block: bytes = b"") -> Answer:
        """Carry out a task of the driver; an error becomes an answer, see `checked_answer`."""
        try:
            return await self._do(task, details, block)
        except ConfrereError as error:
            return {"error": type(error).__name__, "text": str(error)}, b""
        except Exception:
            return {"error": "a bug", "text": traceback.format_exc()}, b""

    async def _do(self, task: str, details: Mapping[str, Any], block: bytes) -> Answer:
        tasks: dict[str, Callable[..., Awaitable[Answer]]] = {
            "take part": self.take_part, "settle": self.settle, "finish": self.finish, "go back": self.go_back,
        }  # fmt: skip
        return await tasks[task](**details, **({"block": block} if block else {}))

    async def take_part(self, round: int) -> Answer:
        """The first step of a round; returns how many batches went to which shard since the last restart."""
        self._round = asyncio.create_task(self.simulation.round(round))
        try:
            await self._round
        finally:
            self._round = None
        self._flush()
        self.simulation.evaluate(round)
        return {"sent": {str(n): count for n, count in self._sent.items()}}, b""

    async def settle(
        self,
        round: int,
        expected: Mapping[str, int],
        keep: bool = False,
        check: bool = False,
        also: Sequence[str] | None = None,
    ) -> Answer:
        """The second step, when all batches have arrived; returns the events, and with `keep` the snapshots of the sites that
        have changed and of those in `also`; of all sites if that is None.

        With `check` it also returns the ledgers' counters, and the highest ones that peers have seen.
        """
        while any(self._received[int(n)] < count for n, count in expected.items()):
            self._arrived.clear()
            await self._arrived.wait()
        self.simulation.settle(round)
        own = Simulation.stop_reasons(self.simulation, round)  # of these sites; the driver asks all shards
        pages = self.journal.drain()
        facts: dict[str, Any] = {"events": [len(page) for page in pages], "rest": own}
        if check:
            facts["ledgers"] = {n: s.ledger.counter for n, s in self.simulation.sites.items()}
            facts["seen"] = _highest([o.counters for o in self.simulation.peers.values()])
        return facts, b"".join([*pages, self._kept(round, also) if keep else b""])

    def _kept(self, round: int, also: Sequence[str] | None) -> bytes:
        changed = self.simulation.changed(round)
        parts = self.simulation.parts(None if also is None else {*changed, *also})
        changed.clear()
        return snapshot.dumps(parts)

    async def finish(self, done: int | None = None) -> Answer:
        """What sites do when all rounds are over; gives their last states, and the processor time that all of it took."""
        await self.simulation.finish(done)
        pages = self.journal.drain()
        kept = snapshot.dumps(
            {"sites": {n: {"state": r.state, **r.volatile()} for n, r in self.simulation.runs.items()}}
        )
        facts = {"events": [len(page) for page in pages], "seconds": time.process_time()}
        return facts, b"".join([*pages, kept])

    async def go_back(self, attempt: int, block: bytes = b"") -> Answer:
        """Abandon the round and return to the snapshot of `settle`; without one, start from the beginning."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        self.attempt = attempt
        self._outgoing.clear()
        self._sent.clear()
        self._received.clear()
        self.journal.events.clear()
        simulation = self.simulation
        ledgers = {n: s.ledger for n, s in simulation.sites.items()}
        seen = {n: dict(o.counters) for n, o in simulation.peers.items()}
        simulation.reset()
        if block:
            simulation.restore(snapshot.loads(block, "what a shard has kept"))
        for name, site in simulation.sites.items():
            if ledgers[name].counter > site.ledger.counter:
                site.ledger = ledgers[name]
            simulation.peers[name].counters.update(_highest([simulation.peers[name].counters, seen[name]]))
        return {}, b""

    def deliver(self, source: int, attempt: int, block: bytes) -> None:
        """Take a batch that another shard has sent."""
        if attempt != self.attempt:
            return
        for parcel in batch.decode(block):
            self.simulation.peers[parcel.receiver].receive(parcel)
        self._received[source] += 1
        self._arrived.set()

    def _put(self, parcel: Parcel) -> None:
        if not any(self._outgoing.values()):  # sent when all sites that can go on have done so
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing[self.plan[parcel.receiver]].append(parcel)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, defaultdict(list)
        for number, parcels in outgoing.items():
            self._sent[number] += 1
            self._send(number, {"source": self.number, "attempt": self.attempt}, batch.encode(parcels))


def add_events(answer: Answer, journal: Journal) -> memoryview:
    """Add the events of an answer to the journal; the rest of its block is the snapshot."""
    facts, block = answer
    at = 0
    for length in facts["events"]:
        journal.add_page(block[at : at + length])
        at += length
    return memoryview(block)[at:]


def checked_answer(answer: Answer) -> Answer:
    """What a shard answered, or the error that it met with."""
    facts = answer[0]
    if "error" in facts:
        kind = getattr(errors, facts["error"], RuntimeError)
        raise kind(facts["text"])
    return answer


def described(number: int, sites: Sequence[str]) -> str:
    """A worker in words: its number, and some of its sites."""
    some = ", ".join(sorted(sites)[:3]) + (" …" if len(sites) > 3 else "")
    return f"worker {number} ({len(sites)} sites: {some})"


def _highest(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for table in tables:
        for name, count in table.items():
            out[name] = max(count, out.get(name, 0))
    return out
