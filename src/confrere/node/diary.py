"""A round that can be done again: what a strategy did and was given before a crash is read back, not repeated.

A strategy sees the same `Site` and `Peers` as in a simulation. Behind them, each call that cannot be repeated has
a number within its round. If the store has a result under that number, it is handed out; otherwise the call
is made and its result is on the disk before the strategy goes on. Everything else that a round does is a pure
function of these results, so that the round ends as it would have ended without the crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from confrere.core.custody import Custody, Scalar
from confrere.core.errors import PrivacyError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.parcel import Inbox, Parcel
from confrere.core.protocols import Effort, Fitted, Loss, Metrics, Objective
from confrere.learning.engine import Job, Trained, work
from confrere.node.database import DiskFull
from confrere.node.failpoints import reach
from confrere.node.store import Store
from confrere.runtime import checkpoint
from confrere.runtime.mailbox import NOBODY, Mailbox, Slip
from confrere.runtime.participant import Participant
from confrere.transport import wire

T = TypeVar("T")


class CapReached(PrivacyError):
    """A cap of the site's own; what would go beyond it was not done."""


@dataclass
class Diary:
    """The calls of one round, numbered."""

    round: int
    calls: int = -1

    def call(self) -> int:
        self.calls += 1
        return self.calls


class Worker:
    """A trainer that tells the moments before and after its work."""

    async def run(self, job: Job) -> Trained:
        reach("charged")
        done = work(job)
        reach("trained")
        return done


async def aside(work: Coroutine[Any, Any, T]) -> T:
    """Let a site's own work be done in another thread, so that the node goes on answering its peers.

    Whoever is cancelled here still waits for the thread: two of them must never work on the same networks.
    """
    task = asyncio.ensure_future(asyncio.to_thread(asyncio.run, work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


Room = Callable[[], Awaitable[None]]
"""Returns once there is room on the disk again."""


async def durably(room: Room, write: Callable[..., None], *what: Any) -> None:
    """Write to the store; where the disk is full, wait for room instead of losing what was done."""
    while True:
        try:
            return await asyncio.to_thread(write, *what)
        except DiskFull:
            await room()


class RememberedSite:
    """`Site` for one round: trainings are in the store before anything of them can leave."""

    def __init__(self, participant: Participant, store: Store, diary: Diary, room: Room) -> None:
        self._site, self._store, self._diary, self._room = participant, store, diary, room
        self._inner = participant.round(diary.round)
        self.name, self.size = participant.name, participant.size
        self.rehearsal = self._inner.rehearsal

    def build(self, role: str) -> Model:
        return self._inner.build(role)

    def module(self, role: str) -> nn.Module:
        return self._inner.module(role)

    def tell(self, text: str) -> None:
        self._inner.tell(text)

    def effort(self, role: str, model: Model) -> Effort:
        return self._inner.effort(role, model)

    def weigh(self, weights: Mapping[str, Scalar], note: str = "") -> None:
        self._inner.weigh(weights, note)

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        return await aside(self._inner.evaluate(models))

    async def fit(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        return await aside(self._inner.fit(losses, role, models))

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        round, call = self._diary.round, self._diary.call()
        site, journal = self._site, self._site.journal
        before = await asyncio.to_thread(self._store.kept, round, call, "training")
        if before is not None:
            found = checkpoint.loads(before, f"the training of round {round + 1}")
            self._inner.trained_before()
            site.memory, site.spent = found["memory"], found["spent"]
            for row in found["events"]:
                journal.add(
                    Event(row["kind"], row["site"], row["round"], Custody[row["custody"]], row["data"])
                )
            return dict(found["models"])
        first = len(journal.events)
        trained = await aside(self._inner.train(objective, models, protect=protect))
        mine = ("charged", "trained", "budget-spent")
        told = [e.as_json() for e in journal.events[first:] if e.site == site.name and e.kind in mine]
        content = {"models": dict(trained), "memory": site.memory, "spent": site.spent, "events": told}
        body = await asyncio.to_thread(checkpoint.dumps, content)
        await durably(self._room, self._store.keep, round, call, body)
        return trained


class Desk:
    """The way out: signs parcels, and puts all of an exchange into the outbox at once."""

    def __init__(
        self, store: Store, key: Ed25519PrivateKey, allow: Callable[[int], None], room: Room
    ) -> None:
        self._store, self._key, self._allow, self._room = store, key, allow, room
        self._staged: list[wire.Sealed] = []
        self.posted: Callable[[], None] = lambda: None
        """Told when there is something to deliver."""

    async def send(self, to: str, parcel: Parcel) -> int:
        known = await asyncio.to_thread(self._store.sent_size, to, parcel.sequence)
        if known is not None:  # before a crash; the bytes of then are those that count
            return known
        sealed = await asyncio.to_thread(wire.seal, parcel, self._key)
        self._staged.append(sealed)
        return sealed.size

    async def post(self) -> None:
        """Make what was handed in durable; from here on it is owed to its receivers."""
        staged, self._staged = self._staged, []
        if staged:
            self._allow(sum(sealed.size for sealed in staged))
            await durably(self._room, self._store.debit, staged)
        self.posted()

    def clear(self) -> None:
        """Forget what was not posted: the round begins anew."""
        self._staged = []

    async def receive(self) -> Parcel:
        raise NotImplementedError("on a node parcels arrive through `Mailroom.deliver`")


class Mailroom(Mailbox):
    """A mailbox whose parcels are in the store, and who was given which of them too.

    Nobody is waited for twice in vain: a sender that was missing is not waited for again before something is
    heard of it.
    """

    def __init__(self, store: Store, desk: Desk, room: Room) -> None:
        super().__init__()
        self._store, self._desk, self._room = store, desk, room
        self.diary = Diary(0)
        for body in store.waiting():
            self.deliver(wire.decode(body))

    def deliver(self, parcel: Parcel) -> bool:
        self.back(parcel.sender)
        return super().deliver(parcel)

    def given_up(self) -> set[str]:
        """Whom nobody waits for at present."""
        return set(self._gone)

    async def take(
        self,
        round: int,
        phase: int,
        epoch: int,
        expected: Sequence[Slip],
        patience: float | None,
        ended: Mapping[str, int] = NOBODY,
    ) -> Inbox:
        await self._desk.post()
        number, call = self.diary.round, self.diary.call()
        before = await asyncio.to_thread(self._store.taken, number, call)
        if before is not None:
            parcels = [p for p in map(wire.decode, before[0]) if p.epoch == epoch]
            parcels.sort(key=lambda p: (p.round, p.phase, p.sender, p.sequence))
            return Inbox(tuple(parcels), tuple(before[1]["missing"]), round, phase)
        inbox = await super().take(round, phase, epoch, expected, patience, ended)
        ids = [(parcel.sender, parcel.sequence) for parcel in self.lately]
        facts = {"missing": list(inbox.missing)}
        await durably(self._room, self._store.take, number, call, ids, facts)
        for sender in inbox.missing:
            self.gone(sender, round)
        return inbox
