"""Messages of masked sums between nodes: signed and delivered like parcels, but kept in memory only.

Nothing of them is worth keeping over a restart: the secrets that they belong to are in memory too, so a process that stops is
a dropout of its attempt, and an opened share of a key should not lie on a disk. So they pass by the outbox and the store.
A message is sent again until its receiver has acknowledged it, or the round is over. Of each peer a bounded number of bytes
is kept, one message for each step of a turn that there can be.

A peer is *lost* to an attempt when another process answers for it, or when it was disconnected for longer than a short
while: then the attempt no longer waits for it. Only the numbers that begin a sum are waited for with the study's whole patience.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from confrere.core.custody import Custody, Scalar
from confrere.core.errors import PeerMissing
from confrere.core.events import Event
from confrere.core.parcel import Parcel
from confrere.exchange.secure.messages import MOST_ATTEMPTS
from confrere.node.delivery import Links
from confrere.node.failpoints import reach
from confrere.node.handshake_state import HandshakeCallbacks
from confrere.node.replay import in_thread
from confrere.site.masked_call import FURTHER_STEPS, STEPS
from confrere.site.masked_messages import MESSAGE, Place, TurnStart, as_message
from confrere.site.masked_sums import Answers
from confrere.transport.body import Body
from confrere.transport.receipt import ACCEPTED, DUPLICATE, Outcome, Receipt
from confrere.transport.token_bucket import TokenBucket
from confrere.transport.wire import Sealed

LONGEST_GRACE = 10.0
"""Seconds that a peer may be disconnected before an attempt goes on without it; at most a sixth of the patience."""
SUCCESSORS = 2
"""How many further summing sites an attempt has."""
MOST_TURNS, MOST_STEPS = MOST_ATTEMPTS * (1 + SUCCESSORS), STEPS + FURTHER_STEPS
MOST_HELD, MOST_BYTES = 24, 256 * 2**20
"""Messages of one peer that are kept until they are taken."""
AHEAD = 2
"""For how many rounds beyond this site's, besides as many as there are members, messages are kept."""
REPLIES_BURST, REPLIES_SECONDS = 30, 1.0
"""How often a peer that asks too late is answered."""
MOST_RESULTS = 4
"""How often a peer is sent the opened sum of a round that is over: once to each process of it."""
POLL_SECONDS, FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.05, 1.0


@dataclass(frozen=True)
class MessageContext:
    """What a node gives its messages: how they are signed, counted and recorded."""

    me: str
    seal: Callable[[Parcel], Sealed]
    count: Callable[[int], Awaitable[None]]
    """Called with the bytes of each message before it leaves; refuses beyond the site's own cap."""
    record: Callable[[Event], None]
    marks: HandshakeCallbacks


class SumMessages:
    """The messages of one node's masked sums."""

    def __init__(
        self,
        out: MessageContext,
        patience: float,
        members: int,
        answers: Answers,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._out, self._patience, self._members, self.answers = out, patience, members, answers
        self._most_bytes = most_bytes
        self.links: Links | None = None
        """Set before anything is sent."""
        self.waiting: tuple[str, ...] = ()
        """The peers that a sum waits for at present."""
        self.latest: dict[str, int] = {}
        """The latest round that each peer has sent a message of."""
        self._round = 0
        self._held: dict[str, dict[tuple[int, int], Parcel]] = {}
        self._with: dict[tuple[int, int, str], str] = {}
        """Which process of a peer this site deals with in a turn of a round."""
        self._numbers: dict[str, tuple[Parcel, Sealed]] = {}
        """The numbers that were sent to each summing site last: sent again to another process of it."""
        self._gone: dict[str, float] = {}
        self._missed: set[str] = set()
        self._replies: dict[str, TokenBucket] = {}
        self._replying: set[tuple[str, int, int]] = set()
        self._given: dict[tuple[int, str], list[str]] = {}
        """The processes of a peer that were sent the opened sum of a round that is over."""
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        answers.changed = self._answer_held

    @property
    def grace(self) -> float:
        return min(LONGEST_GRACE, self._patience / 6)

    # -- sending ------------------------------------------------------------------------------------------

    async def send(self, to: str, parcel: Parcel) -> int:
        """Sign a message and hand it to the connection; its size."""
        sealed = await in_thread(self._out.seal, parcel)
        await self._out.count(sealed.size)
        place = Place.of(parcel.phase)
        if place.step == 0 and not place.answers:
            self._numbers[to] = (parcel, sealed)
        self._spawn(self._deliver(to, parcel, sealed))
        return sealed.size

    async def _deliver(self, to: str, parcel: Parcel, sealed: Sealed) -> None:
        assert self.links is not None
        clock, pause = asyncio.get_running_loop().time, FIRST_PAUSE
        body, until = Body.of(b"".join(sealed.pieces())), clock() + 2 * self._patience
        place = Place.of(parcel.phase)
        while clock() < until and parcel.round >= self._round:
            process = self._processes().get(to)
            try:
                receipt = await self.links.send(to, f"{parcel.round}/{parcel.phase}", body)
            except (PeerMissing, OSError):
                receipt = None
            if receipt is not None and receipt.outcome is not Outcome.DEFERRED:
                reach("sum-message-acknowledged")
                if not place.answers and process is not None:
                    self._with[parcel.round, place.turn, to] = process
                    self._news.set()
                await in_thread(self._out.marks.compare, receipt.seen)
                if receipt.outcome is Outcome.REFUSED:
                    text = f'"{to}" refused a message of a masked sum: {receipt.reason}'
                    self._out.record(Event("notice", self._out.me, parcel.round, data={"text": text}))
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _reply(
        self, asked: Parcel, start: TurnStart, numbers: Mapping[str, Scalar], custody: Custody
    ) -> None:
        """Answer a member that asks for a sum that goes on, or is over, without it. That this fails ends no sum."""
        which = (asked.sender, asked.round, asked.phase)
        if which in self._replying:
            return
        if start.result and not self._gives(asked):
            start, numbers, custody = TurnStart(moved=True, at=start.at), {}, Custody.PUBLIC
        phase = Place(Place.of(asked.phase).turn, 0, answers=True).phase
        message = as_message(start.written(), custody)
        parcel = Parcel(
            asked.run, asked.epoch, asked.round, phase, asked.receiver, asked.sender, phase, message, numbers
        )

        async def answer() -> None:
            try:
                sealed = await in_thread(self._out.seal, parcel)
                await self._out.count(sealed.size)
                facts = {"to": asked.sender, "bytes": sealed.size, "phase": phase, "custody": custody.name}
                self._out.record(Event("sent", self._out.me, asked.round, data={**facts, "model": True}))
                await self._deliver_late(asked.sender, sealed)
            except Exception as error:
                text = f'"{asked.sender}" asked for a masked sum that is over and was not answered: {error}'
                self._out.record(Event("notice", self._out.me, asked.round, data={"text": text}))
            finally:
                self._replying.discard(which)

        self._replying.add(which)
        self._spawn(answer())

    def _gives(self, asked: Parcel) -> bool:
        """Whether this process of a peer is sent the opened sum: once, and not to any number of processes."""
        given = self._given.setdefault((asked.round, asked.sender), [])
        process = self._processes().get(asked.sender, "")
        if process in given or len(given) >= MOST_RESULTS:
            return False
        given.append(process)
        return True

    async def _deliver_late(self, to: str, sealed: Sealed) -> None:
        assert self.links is not None
        body = Body.of(b"".join(sealed.pieces()))
        for _ in range(5):
            try:
                receipt = await self.links.send(to, "late", body)
                if receipt.outcome is not Outcome.DEFERRED:
                    return
            except (PeerMissing, OSError):
                pass
            await asyncio.sleep(LONGEST_PAUSE)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error
            self._news.set()

    failure: BaseException | None = None
    """What a delivery has failed with; raised where a sum waits."""

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- receiving ----------------------------------------------------------------------------------------

    def receive(self, parcel: Parcel) -> Receipt:
        """Keep a message that is as it should be until it is taken; the numbers of a late member are answered at once."""
        sender, place = parcel.sender, Place.of(parcel.phase)
        numbers = place.step == 0 and not place.answers
        if reason := self._misplaced(parcel, place):
            return Receipt(Outcome.REFUSED, reason)
        self.heard(sender, parcel.round)
        if numbers and (reply := self.answers.to(parcel.round, place)) is not None:
            bucket = self._replies.setdefault(sender, TokenBucket(REPLIES_BURST, REPLIES_SECONDS))
            if not bucket.take():
                return Receipt(Outcome.DEFERRED, "it asks too often; later")
            self._reply(parcel, *reply)
            return ACCEPTED
        if parcel.round < self._round:
            return DUPLICATE  # of a sum that is over
        held = self._held.setdefault(sender, {})
        name = (parcel.round, parcel.phase)
        if name in held and not numbers:
            return DUPLICATE
        if len(held) >= MOST_HELD or parcel.round > self._round + self._members + AHEAD:
            return Receipt(Outcome.DEFERRED, f"{len(held)} messages of it wait already")
        kept = sum(_bytes(other) for at, other in held.items() if at != name)
        if kept + _bytes(parcel) > self._most_bytes:
            return Receipt(Outcome.DEFERRED, f"{kept:,} bytes of it wait already")
        held[name] = parcel
        process = self._processes().get(sender)
        if numbers and process is not None:
            self._with[parcel.round, place.turn, sender] = process
        self._news.set()
        return ACCEPTED

    def _misplaced(self, parcel: Parcel, place: Place) -> str:
        """Why no sum has a message in this place; empty if one may have."""
        if place.turn >= MOST_TURNS or place.step > MOST_STEPS:
            return "no masked sum has such a step"
        leader = self.answers.leader(parcel.round, parcel.epoch, place.turn)
        if leader not in (None, parcel.sender if place.answers else self._out.me):
            return "it is for another summing site than that of its turn"
        return ""

    def _answer_held(self) -> None:
        """Answer members that have asked before this site knew what to say."""
        for held in self._held.values():
            for name, parcel in list(held.items()):
                place = Place.of(parcel.phase)
                if place.step or place.answers:
                    continue
                if (reply := self.answers.to(parcel.round, place)) is not None:
                    del held[name]
                    self._reply(parcel, *reply)

    def heard(self, sender: str, round: int) -> None:
        self.latest[sender] = max(round, self.latest.get(sender, -1))

    async def take(self, round: int, epoch: int, place: Place, senders: Sequence[str]) -> list[Parcel]:
        """The messages of these senders for this step, once all are here or those that are not are lost."""
        self._enter(round)
        clock = asyncio.get_running_loop().time
        until = clock() + self._patience * (2 if place.answers else 1) + self.grace * place.answers
        try:
            while True:
                self._news.clear()
                if self.failure is not None:
                    failure, self.failure = self.failure, None
                    raise failure
                self._look(senders, clock())
                here = {name for name in senders if self._found(name, round, epoch, place) is not None}
                self.waiting = tuple(
                    name
                    for name in senders
                    if name not in here and not self._lost(name, round, place, clock())
                )
                if not self.waiting or clock() >= until:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._news.wait()
        finally:
            self.waiting = ()
        if place.step == 0 and not place.answers:
            self._missed = (self._missed | set(senders)) - here
        return [self._held[name].pop((round, place.phase)) for name in sorted(here)]

    def _found(self, sender: str, round: int, epoch: int, place: Place) -> Parcel | None:
        found = self._held.get(sender, {}).get((round, place.phase))
        return found if found is not None and found.epoch == epoch else None

    def _enter(self, round: int) -> None:
        """Forget the messages of earlier rounds."""
        if round <= self._round:
            return
        self._round = round
        for held in self._held.values():
            for name in [name for name in held if name[0] < round]:
                del held[name]
        self._with = {name: process for name, process in self._with.items() if name[0] >= round}
        self._given = {name: to for name, to in self._given.items() if name[0] >= round - Answers.KEPT}

    # -- who is there -------------------------------------------------------------------------------------

    def _processes(self) -> Mapping[str, str]:
        return {} if self.links is None else self.links.processes

    def _look(self, senders: Sequence[str], now: float) -> None:
        """Note since when each of them is disconnected."""
        there = self._processes()
        for name in senders:
            if name in there:
                self._gone.pop(name, None)
            else:
                self._gone.setdefault(name, now)

    def _lost(self, sender: str, round: int, place: Place, now: float) -> bool:
        """Whether a sum waits no longer for a message of this peer."""
        gone = now - self._gone.get(sender, now) > self.grace
        if not place.answers and self._asks_later(sender, round, place.turn):
            return True
        if place.step == 0 and not place.answers and self.latest.get(sender, -1) > round:
            return True  # this round is over for it
        if place.step == 0 and not place.answers and place.turn == 0:
            return gone and sender in self._missed
        before, process = self._with.get((round, place.turn, sender)), self._processes().get(sender)
        restarted = before is not None and process is not None and process != before
        if restarted and place.step == 0 and place.answers:
            self._ask_again(sender, round, place)
            return False
        return restarted or gone

    def _asks_later(self, sender: str, round: int, turn: int) -> bool:
        """Whether this peer has asked for a later turn of the round, and so has ended this one."""
        places = [Place.of(phase) for at, phase in self._held.get(sender, {}) if at == round]
        return any(p.turn > turn and not p.step and not p.answers for p in places)

    def _ask_again(self, sender: str, round: int, place: Place) -> None:
        """A summing site was started again before it answered: it needs this site's numbers once more."""
        known = self._numbers.get(sender)
        del self._with[round, place.turn, sender]
        if known is not None and known[0].phase == Place(place.turn, 0).phase:
            self._spawn(self._deliver(sender, *known))


def _bytes(parcel: Parcel) -> int:
    return 0 if parcel.model is None else parcel.model.params[MESSAGE].numel()
