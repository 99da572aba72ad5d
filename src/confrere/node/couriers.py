"""Bringing parcels to peers until they have them, and taking in what peers bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from confrere.core.custody import Custody
from confrere.core.errors import BadParcel, CheckpointError, PeerMissing
from confrere.core.events import Event
from confrere.core.params import Shapes
from confrere.core.parcel import Parcel
from confrere.exchange.packing import Packing
from confrere.node.diary import Mailroom
from confrere.node.heap import give_back
from confrere.node.store import LEAVING, Store
from confrere.runtime.office import ANSWER, EXCHANGE, NEWS
from confrere.transport import wire
from confrere.transport.body import Body
from confrere.transport.receipt import ACCEPTED, DUPLICATE, Outcome, Receipt

LEAVING_SEQUENCE = 2**50
"""Such a parcel has a number that no exchange reaches."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Sends(Protocol):
    """The part of `transport.grpc.Connections` that couriers use."""

    async def send(self, to: str, parcel_id: str, body: Body) -> Receipt: ...

    async def wait_connected(self, peer: str, timeout: float) -> None: ...


class Courier:
    """Delivers to one peer, oldest first, the same bytes until they are acknowledged."""

    def __init__(self, me: str, peer: str, store: Store, tell: Callable[[Event], None]) -> None:
        self.me, self.peer, self._store, self._tell = me, peer, store, tell
        self._work = asyncio.Event()

    def wake(self) -> None:
        self._work.set()

    async def run(self, connections: Sends) -> None:
        pause = FIRST_PAUSE
        while True:
            self._work.clear()
            batch = await asyncio.to_thread(self._store.undelivered, self.peer, 1)
            if not batch:
                await self._work.wait()
                continue
            for sequence, body in batch:
                if await self._hand_over(connections, sequence, body):
                    pause = FIRST_PAUSE
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                break

    async def _hand_over(self, connections: Sends, sequence: int, body: Body) -> bool:
        """Whether the peer has said its last word about this parcel."""
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
            return True  # a new membership cancelled it meanwhile
        if receipt.outcome == Outcome.DEFERRED:
            return False
        if receipt.outcome == Outcome.REFUSED:
            text = f'"{self.peer}" refused parcel {sequence}: {receipt.reason}'
            self._tell(Event("notice", self.me, data={"text": text}))
        await asyncio.to_thread(self._store.delivered, self.peer, sequence, receipt.credited)
        return True


class Reception:
    """Looks at what a peer brings, takes it in for good, and only then says so. What is bad changes nothing."""

    def __init__(
        self,
        me: str,
        run: str,
        rounds: int,
        keys: Mapping[str, Ed25519PublicKey],
        shapes: Mapping[str, Shapes],
        store: Store,
        tell: Callable[[Event], None],
        *,
        epoch: Callable[[], int],
        accept_unproven: bool = False,
        limits: wire.Limits = wire.STANDARD,
        packing: Packing | None = None,
    ) -> None:
        self.me, self.run, self.rounds, self.keys, self.shapes = me, run, rounds, dict(keys), dict(shapes)
        self._store, self._tell = store, tell
        self._epoch, self._accept_unproven, self.limits = epoch, accept_unproven, limits
        self.packing = packing or Packing(None, lambda _: None)
        """In which form models travel."""
        self.mailroom: Mailroom | None = None
        """Where parcels go from here, once a node has restored its state."""
        self._begun: set[asyncio.Task[Receipt]] = set()

    async def deliver(self, sender: str, body: Body | bytes) -> Receipt:
        """What `Connections` calls with each whole parcel of an authenticated peer.

        What has begun is finished, even if whoever waits for the answer is gone: a parcel that is credited and
        not in the mailroom would lie in the store, unseen, until the next start.
        """
        work = asyncio.create_task(self._take_in(sender, Body.of(body)))
        self._begun.add(work)
        work.add_done_callback(self._begun.discard)
        return await asyncio.shield(work)

    async def _take_in(self, sender: str, body: Body) -> Receipt:
        try:
            parcel = await asyncio.to_thread(self._inspect, sender, body)
            if parcel.phase <= ANSWER and parcel.epoch < self._epoch():
                return Receipt(Outcome.REFUSED, "it was cancelled when the membership changed")
            if parcel.phase == LEAVING:
                first = int(parcel.scalar("leaves"))
                await asyncio.to_thread(self._store.leaves, sender, first, body.read())
            new = await asyncio.to_thread(self._store.credit, parcel, body)
        except BadParcel as error:
            text = f'a parcel of "{sender}" was refused and changed nothing: {error}'
            self._tell(Event("notice", self.me, data={"text": text, "sender": sender}))
            return Receipt(Outcome.REFUSED, str(error))
        if new and parcel.phase < LEAVING and self.mailroom is not None:
            self.mailroom.deliver(parcel)
        return ACCEPTED if new else DUPLICATE

    def _inspect(self, sender: str, body: Body) -> Parcel:
        if sender not in self.keys:
            raise BadParcel("its sender is not in the roster")
        if body.file is not None:
            give_back()  # what the parcel before this one took
        parcel = wire.decode(body, limits=self.limits, key=self.keys[sender])
        if parcel.sender != sender or parcel.receiver != self.me:
            raise BadParcel(f'it is from "{parcel.sender[:80]}" to "{parcel.receiver[:80]}"')
        if parcel.run != self.run:
            raise BadParcel("it belongs to another run")
        if parcel.phase not in (EXCHANGE, ANSWER, NEWS, LEAVING) or parcel.round >= self.rounds:
            raise BadParcel(
                f"it is for round {parcel.round + 1}, phase {parcel.phase}, which this run has not"
            )
        if parcel.phase == LEAVING and not 1 <= parcel.scalar("leaves", 0.0) <= self.rounds:
            raise BadParcel("it says that its sender leaves, and not when")
        model = parcel.model
        if model is not None:
            known, news = self.shapes.get(model.architecture), parcel.phase == NEWS
            if known is None or self.packing.form(known, news) != model.params.shapes:
                raise BadParcel(f'its model is no "{model.architecture[:80]}" of this study')
            self.packing.check(parcel, news)
            if model.custody > Custody.PROTECTED and not self._accept_unproven:
                raise BadParcel("its model has no proven guarantee, and this site accepts none of those")
        return parcel
