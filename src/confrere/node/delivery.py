"""Delivery: send each parcel until it is acknowledged, and receive the parcels of peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from confrere.core.errors import BadParcel, CheckpointError, PeerMissing
from confrere.core.events import Event
from confrere.core.parcel import Parcel
from confrere.exchange.screening import Outlier
from confrere.node.conduct import Conduct
from confrere.node.equivocation import LEAVING, Equivocation
from confrere.node.handshake_state import HandshakeCallbacks
from confrere.node.inspection import ParcelRules
from confrere.node.replay import DurableMailbox
from confrere.node.shortage import shortage_of
from confrere.node.store import Store
from confrere.site.masked_messages import is_masked
from confrere.site.peers import ANSWER, is_common
from confrere.site.shared_distances import is_shared
from confrere.transport.body import Body
from confrere.transport.receipt import ACCEPTED, DUPLICATE, Outcome, Receipt

CANCELLED = "it was cancelled when the membership changed"
"""Why a parcel of a former membership is not taken."""
NO_RECORD = "the signed record of that change in membership has not arrived here"
"""Why a parcel of a later membership has to wait; its sender brings the record along."""
MOST_WAITING = 64
"""Parcels of one peer that a node keeps until it has used them, unless they are large (`most_waiting`)."""
LEAVING_SEQUENCE = 2**50
"""Such a parcel has a number that no exchange reaches."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Links(Protocol):
    """What a node needs of its connections: `transport.grpc.Connections`, or a double of it."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def send(self, to: str, parcel_id: str, body: Body) -> Receipt: ...
    async def wait_connected(self, peer: str, timeout: float) -> None: ...
    @property
    def connected(self) -> frozenset[str]: ...
    @property
    def processes(self) -> Mapping[str, str]: ...
    @property
    def last_contact(self) -> Mapping[str, float]: ...
    @property
    def bytes_sent(self) -> Mapping[str, int]: ...
    @property
    def bytes_received(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Epochs:
    """How often the membership has changed, by the signed records that this site has."""

    current: Callable[[], int] = lambda: 0
    """Up to the round that this site is in."""
    known: Callable[[int], int] = lambda round: 0
    """Up to any round."""


class PeerSender:
    """Delivers to one peer, oldest first, the same bytes until they are acknowledged."""

    def __init__(
        self, me: str, peer: str, store: Store, record: Callable[[Event], None], marks: HandshakeCallbacks
    ) -> None:
        self.me, self.peer, self._store, self._record, self._marks = me, peer, store, record, marks
        self._work = asyncio.Event()

    def wake(self) -> None:
        self._work.set()

    async def run(self, connections: Links) -> None:
        pause = FIRST_PAUSE
        while True:
            self._work.clear()
            batch = await asyncio.to_thread(self._store.undelivered, self.peer, 1)
            if not batch:
                await self._work.wait()
            elif await self._hand_over(connections, *batch[0]):
                pause = FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _hand_over(self, connections: Links, sequence: int, body: Body) -> bool:
        """Whether the peer has accepted or refused this parcel for good."""
        try:
            receipt = await connections.send(self.peer, f"{self.me}/{self.peer}/{sequence}", body)
        except PeerMissing:
            with suppress(PeerMissing):
                await connections.wait_connected(self.peer, 60.0)
            return False
        except FileNotFoundError:
            if await asyncio.to_thread(self._store.owes, self.peer, sequence):
                raise CheckpointError(
                    f'{body.file}: a parcel that is owed to "{self.peer}" is not there any more; restore the'
                    " folder from a backup (but never the ledger)"
                ) from None
            return True  # it was acknowledged meanwhile
        except OSError as error:
            if shortage_of(error, self._store.path) is None:
                raise
            return False
        await asyncio.to_thread(self._marks.compare, receipt.seen)
        if receipt.outcome == Outcome.DEFERRED:
            if receipt.reason == NO_RECORD:
                await self._bring_records(connections)
            return False
        if receipt.outcome == Outcome.REFUSED:
            text = f'"{self.peer}" refused parcel {sequence}: {receipt.reason}'
            planned = {"cancelled": True} if receipt.reason == CANCELLED else {}
            self._record(Event("notice", self.me, data={"text": text, **planned}))
        await asyncio.to_thread(self._store.delivered, self.peer, sequence, receipt.credited)
        return True

    async def _bring_records(self, connections: Links) -> None:
        """Bring the leave messages of other members: the peer may not have received them from their senders."""
        with suppress(PeerMissing):
            for site, body in await asyncio.to_thread(self._store.leave_messages):
                if site not in (self.me, self.peer):
                    await connections.send(self.peer, f"{site} leaves", Body.of(body))


class MessageReceiver(Protocol):
    """What takes messages of masked sums: `node.sum_messages.SumMessages`."""

    def receive(self, parcel: Parcel) -> Receipt: ...


class ParcelReceiver:
    """Checks each parcel, stores it durably, and only then acknowledges it. A bad parcel changes nothing."""

    def __init__(
        self,
        rules: ParcelRules,
        store: Store,
        conduct: Conduct,
        epochs: Epochs = Epochs(),
        most_waiting: int = MOST_WAITING,
        marks: HandshakeCallbacks | None = None,
    ) -> None:
        self.rules, self._store, self._conduct, self._epochs = rules, store, conduct, epochs
        self._most_waiting = most_waiting
        """Parcels of one peer that are kept and not yet used."""
        self._marks = marks
        self.mailbox: DurableMailbox | None = None
        """Where parcels go from here; None where no further round will take them."""
        self.sums: MessageReceiver | None = None
        """Where messages of masked sums go."""
        self._begun: set[asyncio.Task[Receipt]] = set()

    async def deliver(self, sender: str, body: Body | bytes) -> Receipt:
        """What `Connections` calls with each whole parcel of an authenticated peer.

        A delivery that has begun is finished even if its caller is cancelled: a parcel that is credited and not in
        the mailbox would be unseen in the store until the next start.
        """
        work = asyncio.create_task(self._take_in(sender, Body.of(body)))
        self._begun.add(work)
        work.add_done_callback(self._begun.discard)
        return await asyncio.shield(work)

    async def finish(self) -> None:
        """Wait until every delivery that has begun is over; the store may be closed after this."""
        await asyncio.gather(*self._begun, return_exceptions=True)

    async def _take_in(self, sender: str, body: Body) -> Receipt:
        """Every receipt carries what this site knows of the sender's ledgers."""
        receipt = await self._decide(sender, body)
        if self._marks is None or sender not in self.rules.keys:
            return receipt
        return replace(receipt, seen=await asyncio.to_thread(self._marks.seen, sender))

    async def _decide(self, sender: str, body: Body) -> Receipt:
        found = self._conduct[sender]
        if not found.futile.allows():
            found.put_off += 1
            return Receipt(Outcome.DEFERRED, "too many of its parcels came in vain; later")
        receipt = await self._decided(sender, body)
        if receipt.outcome is not Outcome.ACCEPTED:
            found.futile.take()
        if receipt.outcome is Outcome.DEFERRED:
            found.put_off += 1
        return receipt

    async def _decided(self, sender: str, body: Body) -> Receipt:
        parcel: Parcel | None = None
        try:
            parcel = await asyncio.to_thread(self.rules.inspect, sender, body)
            return await self._credited(parcel, body)
        except Equivocation as error:
            self._equivocated(sender, error)
            return Receipt(Outcome.REFUSED, str(error))
        except Outlier as error:
            self._conduct[sender].left_aside += 1
            if parcel is not None and self.mailbox is not None:
                self.mailbox.refused((parcel.round, parcel.phase, sender))
            return self._refused(sender, f'a parcel of "{sender}" was left aside: {error}', error)
        except BadParcel as error:
            self._conduct[sender].refused += 1
            return self._refused(
                sender, f'a parcel of "{sender}" was refused and changed nothing: {error}', error
            )

    async def _credited(self, parcel: Parcel, body: Body) -> Receipt:
        """Keep a parcel that is as it should be, if there is a place for it now."""
        store = self._store
        if parcel.phase == LEAVING:
            first = int(parcel.scalar("leaves").value)
            try:
                new = await asyncio.to_thread(store.leaves, parcel.sender, first, body.read())
            except Equivocation as error:  # of its signer; the peer that brings the record may be another one
                self._equivocated(parcel.sender, error)
                return ACCEPTED
            return ACCEPTED if new else DUPLICATE
        of_round = parcel.round + is_common(parcel.phase)  # a common model is for the round after
        if parcel.epoch > await asyncio.to_thread(self._epochs.known, of_round):
            return Receipt(Outcome.DEFERRED, NO_RECORD)
        former, phase = parcel.epoch < self._epochs.current(), parcel.phase
        if former and (phase <= ANSWER or is_shared(phase) or is_masked(phase)):
            return Receipt(Outcome.REFUSED, CANCELLED)
        if is_masked(parcel.phase):
            return await self._passed_on(parcel)
        if await asyncio.to_thread(store.kept_of, parcel.sender) >= self._most_waiting:
            return Receipt(Outcome.DEFERRED, f"{self._most_waiting} of its parcels wait already")
        await asyncio.to_thread(self.rules.check_bounds, parcel, store.mass_flow)
        new = await asyncio.to_thread(store.credit, parcel, body, self.mailbox is not None)
        if self._marks is not None and parcel.mark is not None:
            await asyncio.to_thread(self._marks.keep, parcel.sender, parcel.mark)
        if new and self.mailbox is not None:
            self.mailbox.deliver(parcel)
        return ACCEPTED if new else DUPLICATE

    async def _passed_on(self, parcel: Parcel) -> Receipt:
        """Hand on a message of a masked sum, which is not stored."""
        self.rules.check_message_bounds(parcel)
        if self._marks is not None and parcel.mark is not None:
            await asyncio.to_thread(self._marks.keep, parcel.sender, parcel.mark)
        if self.sums is None:
            return Receipt(Outcome.REFUSED, "this site takes part in no further sum")
        return self.sums.receive(parcel)

    def _equivocated(self, signer: str, error: Equivocation) -> None:
        if error.proof is None:
            return
        text = (
            f'"{signer}" has signed two different statements under one number: either its folder was restored from an'
            " old copy, or it sends different things to different sites; ask its owner"
        )
        facts = {"text": text, "sender": signer, "first": error.proof[0], "second": error.proof[1]}
        self._conduct.add(Event("equivocated", self.rules.me, data=facts))

    def _refused(self, sender: str, text: str, error: BadParcel) -> Receipt:
        self._conduct.add(Event("notice", self.rules.me, data={"text": text, "sender": sender}))
        return Receipt(Outcome.REFUSED, str(error))
