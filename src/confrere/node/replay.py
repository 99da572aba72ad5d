"""A round that survives a crash: the result of every call is stored, and read back instead of repeated.

A strategy sees the same `Site` and `Peers` as in a simulation. Behind them, each call that cannot be repeated has
a number within its round. If the store has a result under that number, it is handed out; otherwise the call
is made and its result is on the disk before the strategy goes on. Everything else that a round does is a pure
function of these results, so that the round ends as it would have ended without the crash.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confrere.core.custody import Custody, Scalar, Share, may_leave
from confrere.core.errors import PrivacyError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.parcel import Inbox, LedgerMark, Parcel
from confrere.core.protocols import Fitted, Loss, Metrics, Objective
from confrere.learning.local_training.one_site import Job, Trained, train_site
from confrere.node import open_files
from confrere.node.failpoints import reach
from confrere.node.lateness import Lateness
from confrere.node.shortage import Shortage, TooManyOpenFiles, WaitForSpace
from confrere.node.store import Store
from confrere.site import snapshot
from confrere.site.mailbox import Mailbox, TakeRequest, in_order
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.transport import wire

T = TypeVar("T")


class CapReached(PrivacyError):
    """A cap of the site's own; what would go beyond it was not done."""


@dataclass
class CallCounter:
    """The calls of one round, numbered."""

    round: int
    calls: int = -1

    def call(self) -> int:
        self.calls += 1
        return self.calls


class FailpointTrainer:
    """Trains one job, with a failpoint before and one after the computation."""

    async def run(self, job: Job) -> Trained:
        reach("charged")
        done = train_site(job)
        reach("trained")
        return done


async def in_thread(work: Callable[..., T], *what: Any) -> T:
    """Run a computation of this site in another thread, so that the node goes on answering its peers.

    A caller that is cancelled still waits for the thread: two of them must never work on the same networks, and the ledger
    must not be closed while one of them reads it.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *what))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread, in an event loop that takes file descriptors; it does not begin without them."""
    if not open_files.enough():
        work.close()
        raise TooManyOpenFiles
    return await in_thread(asyncio.run, work)


async def durably(wait_for_space: WaitForSpace, write: Callable[..., object], *what: Any) -> None:
    """Write to the store; after a shortage, wait for its end and write again, so that nothing is lost."""
    while True:
        try:
            await in_thread(write, *what)
            return
        except Shortage as error:
            shortage = error
        await wait_for_space(shortage)


class DurableSiteRound(SiteRound):
    """`Site` for one round: the result of a training is in the store before anything of it can leave."""

    def __init__(
        self, participant: Participant, store: Store, call_counter: CallCounter, wait_for_space: WaitForSpace
    ) -> None:
        super().__init__(participant, call_counter.round)
        self._store, self._call_counter, self._wait_for_space = store, call_counter, wait_for_space

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        return await in_own_loop(super().evaluate(models))

    async def fit(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        return await in_own_loop(super().fit(losses, role, models))

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        return await self._once(lambda site: site.train(objective, models, protect=protect))

    async def gradient_sum(
        self,
        loss: Loss,
        *,
        at: Model,
        role: str = "model",
        reads: Mapping[str, Model] | None = None,
        weights: Mapping[str, Scalar] | None = None,
    ) -> Model | Share | None:
        if self._site.mechanism is not None and self._site.mechanism.terms is not None:
            # Nothing is charged or drawn so far: after a crash it is computed again, unless the sum is in the store.
            inner = SiteRound(self._site, self._call_counter.round)
            return await in_own_loop(inner.gradient_sum(loss, at=at, role=role, reads=reads, weights=weights))

        async def by_role(site: SiteRound) -> Mapping[str, Model]:
            found = await site.gradient_sum(loss, at=at, role=role, reads=reads, weights=weights)
            assert not isinstance(found, Share)
            return {} if found is None else {role: found}

        return (await self._once(by_role)).get(role)

    async def _once(
        self, train: Callable[[SiteRound], Coroutine[Any, Any, Mapping[str, Model]]]
    ) -> Mapping[str, Model]:
        """Train, or read back the result of the same call from before a crash."""
        round, call = self._call_counter.round, self._call_counter.call()
        site, journal = self._site, self._site.journal
        found = await in_thread(self._before, round, call)
        if found is not None:
            self.trained_before()
            site.memory, site.spent = found["memory"], found["spent"]
            for row in found["events"]:
                journal.add(
                    Event(row["kind"], row["site"], row["round"], Custody[row["custody"]], row["data"])
                )
            await in_thread(self._leaves, found.get("paid"), self._charged_for(found), found["models"])
            return dict(found["models"])
        first, inner = len(journal.events), SiteRound(site, round)  # what was paid belongs to this call
        try:
            trained: Mapping[str, Model] = await in_own_loop(train(inner))
        except Exception:  # only the death of the process gives a charge back: else results could be selected
            await in_thread(self._keep_charge, inner.paid)
            raise
        mine = ("charged", "trained", "budget-spent")
        events = [e.as_json() for e in journal.events[first:] if e.site == site.name and e.kind in mine]
        content = {
            "models": dict(trained), "memory": site.memory, "spent": site.spent, "events": events,
            "paid": inner.paid, "records": site.fingerprint,
        }  # fmt: skip
        body = await in_thread(snapshot.dumps, content)
        await durably(self._wait_for_space, self._store.keep, round, call, body)
        await in_thread(self._leaves, inner.paid, site.fingerprint, trained)
        return trained

    def _before(self, round: int, call: int) -> dict[str, Any] | None:
        """The result of this call from before a crash, unless the ledger records that another one has left."""
        body = self._store.kept(round, call, "training")
        if body is None:
            return None
        found: dict[str, Any] = snapshot.loads(body, f"the training of round {round + 1}")
        paid = found.get("paid")
        if paid is not None and not self.rehearsal:
            self._site.ledger.refuse_without(paid, self._charged_for(found))
            left = self._site.ledger.released(paid, self._charged_for(found))
            if left not in (None, release_digest(found["models"])):
                self._store.forget(round, call)
                return None
        return found

    def _charged_for(self, found: Mapping[str, Any]) -> str:
        """The fingerprint of the records that a kept result was trained on; they may have changed since."""
        return str(found.get("records", self._site.fingerprint))

    def _leaves(self, paid: str | None, records: str, models: Mapping[str, Model]) -> None:
        """Record in the ledger what may leave from here on. A rehearsal draws the same noise again and needs no mark."""
        if paid is not None and not self.rehearsal:
            self._site.ledger.leaves(paid, records, release_digest(models))
        reach("release-marked")

    def _keep_charge(self, paid: str | None) -> None:
        if paid is not None and not self.rehearsal:
            self._site.ledger.keep_charge(paid, self._site.fingerprint)


def release_digest(models: Mapping[str, Model]) -> str:
    """A hash of those models of a training that may leave the site."""
    found = hashlib.sha256()
    for role, model in sorted(models.items()):
        if may_leave(model.custody, consent=True):
            found.update(f"{role!r} {model.architecture!r} {model.params.shapes!r}\n".encode())
            for tensor in model.params.values():
                found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class OutboxTransport:
    """Signs the parcels of an exchange and puts all of them into the outbox at once."""

    def __init__(
        self,
        store: Store,
        key: Ed25519PrivateKey,
        allow: Callable[[int], None],
        wait_for_space: WaitForSpace,
        mark: Callable[[], LedgerMark] | None = None,
    ) -> None:
        """`mark` is where the site's ledger stands, signed; it goes along with every parcel."""
        self._store, self._key, self._allow, self._wait_for_space, self._mark = (
            store,
            key,
            allow,
            wait_for_space,
            mark,
        )
        self._staged: list[wire.Sealed] = []
        self.posted: Callable[[], None] = lambda: None
        """Called when there is something to deliver."""

    async def send(self, to: str, parcel: Parcel) -> int:
        known = await in_thread(self._store.sent_size, to, parcel.sequence)
        if known is not None:  # before a crash; the bytes of then are those that count
            return known
        sealed = await in_thread(self.sealed, parcel)
        self._staged.append(sealed)
        return sealed.size

    def sealed(self, parcel: Parcel) -> wire.Sealed:
        """A parcel that is signed, with the mark of this site's ledger."""
        mark = None if self._mark is None else self._mark()
        return wire.seal(replace(parcel, mark=mark), self._key)

    async def post(self) -> None:
        """Make what was handed in durable; from here on it is owed to its receivers."""
        staged, self._staged = self._staged, []
        if staged:
            self._allow(sum(sealed.size for sealed in staged))
            await durably(self._wait_for_space, self._store.debit, staged)
        self.posted()

    def clear(self) -> None:
        """Forget what was not posted: the round begins anew."""
        self._staged = []

    async def receive(self) -> Parcel:
        raise NotImplementedError("on a node parcels arrive through `DurableMailbox.deliver`")


class DurableMailbox(Mailbox):
    """A mailbox whose parcels, and which call took which of them, are in the store.

    A sender that was missing is not waited for again until something arrives from it.
    """

    def __init__(
        self,
        store: Store,
        outbox: OutboxTransport,
        wait_for_space: WaitForSpace,
        lateness: Lateness | None = None,
    ) -> None:
        super().__init__()
        self._lateness = lateness or Lateness()
        self._store, self._outbox, self._wait_for_space = store, outbox, wait_for_space
        self.call_counter = CallCounter(0)
        for body in store.waiting():
            self.deliver(wire.decode(body))

    def deliver(self, parcel: Parcel) -> bool:
        self.back(parcel.sender)
        return super().deliver(parcel)

    def given_up(self) -> set[str]:
        """The senders that are not waited for at present."""
        return set(self._gone)

    async def take(self, request: TakeRequest) -> Inbox:
        await self._outbox.post()
        number, call = self.call_counter.round, self.call_counter.call()
        before = await in_thread(self._store.taken, number, call)
        if before is not None:
            parcels = sorted(
                (p for p in map(wire.decode, before[0]) if p.epoch == request.epoch), key=in_order
            )
            return Inbox(tuple(parcels), tuple(before[1]["missing"]), request.round, request.phase)
        clock = asyncio.get_running_loop().time
        self._lateness.begin({sender for _, _, sender in request.expected}, request.patience or 0.0, clock())
        inbox = await super().take(request)
        self._lateness.end(inbox.missing, clock())
        ids = [(parcel.sender, parcel.sequence) for parcel in self.last_taken]
        facts = {"missing": list(inbox.missing)}
        await durably(self._wait_for_space, self._store.take, number, call, ids, facts)
        for sender in inbox.missing:
            self.gone(sender, request.round)
        return inbox

    def _seconds_left(self, deadline: float | None, request: TakeRequest) -> float | None:
        """A peer that is often late is waited for less than the patience."""
        awaited = {sender for _, _, sender in self._awaited(request)}
        return self._lateness.left(awaited, asyncio.get_running_loop().time())
