"""One stream between this site and one peer, after the handshake: parcels both ways, receipts, heartbeats.

A parcel goes out in chunks, one parcel at a time; its receipt may come while the next is on its way. What comes in
is written to a spool, in memory while it is small and in a file once it is not, so that many slow peers
cost no memory; only a whole parcel is ever handed on. Both sides send something at least four times per `silence`;
a peer from which nothing arrived for that long is lost.

The task that reads the stream never writes to it: two sites that send to each other at once would wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, TypeVar

from confrere.core.errors import CheckpointError, PeerError, PeerMissing
from confrere.transport.body import Body
from confrere.transport.grpc import frames
from confrere.transport.link_limits import LinkLimits
from confrere.transport.receipt import Outcome, Receipt
from confrere.transport.spool import Spool

MOST_WAITING = 8
"""Whole parcels of one peer that may wait for their delivery."""
MOST_UNSENT = 64
"""Small messages that may wait to be written; a peer that provokes more does not read."""

T = TypeVar("T")


class Broken(PeerError):
    """The stream cannot be read or written any more."""


@dataclass
class Meter:
    """What passed between this site and a peer, over all of its links."""

    sent: int = 0
    received: int = 0
    last_contact: float | None = None


@dataclass
class _Leaving:
    decided: asyncio.Future[Receipt]
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class ByteStream(Protocol):
    """Messages both ways. Both methods raise Broken, with the reason, if the stream breaks."""

    async def read(self) -> bytes | None:
        """The next message; None at the end."""

    async def write(self, message: bytes) -> None: ...


@dataclass(frozen=True)
class OtherEnd:
    """Which process of which peer is at the other end of a stream, and whether this site dialled it."""

    peer: str
    process: str
    dialled: bool


class Link:
    """A stream that both sides agreed to use."""

    def __init__(
        self,
        other: OtherEnd,
        stream: ByteStream,
        *,
        deliver: Callable[[str, Spool], Awaitable[Receipt]],
        on_move: Callable[[], None],
        limits: LinkLimits,
        meter: Meter,
    ) -> None:
        """`on_move` is called when the peer asks for another stream."""
        self.other, self._stream, self._deliver = other, stream, deliver
        self._on_move, self._limits, self._meter = on_move, limits, meter
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._retiring, self._their_goodbye = asyncio.Event(), asyncio.Event()
        self._writing, self._one_parcel = asyncio.Lock(), asyncio.Lock()
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue(MOST_UNSENT)
        self._whole: asyncio.Queue[Spool] = asyncio.Queue()
        self._last_received = time.monotonic()
        self._number = 0
        self._leaving: dict[int, _Leaving] = {}
        self._arriving: Spool | None = None
        self._undecided = 0

    async def run(self) -> str:
        """Serve the stream until it ends; returns why it did."""
        work = [self._listen(), self._decide(), self._write_queued(), self._watch(), self._take_leave()]
        tasks = [asyncio.ensure_future(part) for part in work]
        try:
            done, _ = await asyncio.wait({*tasks, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            for first in done:
                if first.cancelled():  # by gRPC: the stream was ended on this side
                    continue
                error = first.exception()
                if error is not None and not isinstance(error, PeerError):
                    raise error
                self.end(str(first.result() if error is None else error))
        finally:
            self.end("the connection was closed here")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._drop_arriving()
            while not self._whole.empty():
                self._whole.get_nowait().close()
        return self._ended.result()

    @property
    def open(self) -> bool:
        """Whether new parcels may go this way."""
        return not self._ended.done() and not self._retiring.is_set()

    def end(self, reason: str) -> None:
        """Stop at once; calls that wait for a receipt fail with PeerMissing."""
        if not self._ended.done():
            self._ended.set_result(reason)

    def retire(self) -> None:
        """Another stream takes over: finish what is under way, then end."""
        self._retiring.set()

    def probe(self) -> None:
        """Probe the stream: it gets a third of its timeout to show that it is alive."""
        self._last_received = min(self._last_received, time.monotonic() - self._limits.silence * 2 / 3)

    def ask_to_move(self) -> None:
        self._queue(frames.MOVE)

    async def send(self, parcel_id: str, body: Body) -> Receipt:
        """Stream a parcel and wait for its receipt; PeerMissing if the stream ends before."""
        return await self._unless_ended(self._send(parcel_id, body))

    async def _send(self, parcel_id: str, body: Body) -> Receipt:
        self._number += 1
        number, leaving = self._number, _Leaving(asyncio.get_running_loop().create_future())
        self._leaving[number] = leaving
        try:
            async with self._one_parcel:
                with body.open() as file:
                    await self._put(frames.offer(number, body.size, parcel_id))
                    await self._send_chunks(number, file, body.size, leaving)
            await leaving.complete.wait()
            async with asyncio.timeout(self._limits.patience):
                return await leaving.decided
        except TimeoutError:
            raise PeerMissing(
                f'"{self.other.peer}" has the parcel {parcel_id}, but did not say within '
                f"{self._limits.patience:g} seconds whether it was taken"
            ) from None
        finally:
            del self._leaving[number]

    async def _send_chunks(self, number: int, file: BinaryIO, size: int, leaving: _Leaving) -> None:
        try:
            left = size
            while left > 0:
                if leaving.decided.done():  # refused before all of it was sent
                    return
                chunk = file.read(min(left, frames.CHUNK))
                if not chunk:
                    raise CheckpointError(
                        f'a parcel for "{self.other.peer}" lacks its last {left:,} bytes here'
                    )
                await self._put(frames.data(number, chunk))
                left -= len(chunk)
        except asyncio.CancelledError:
            self._queue(frames.numbered(frames.WITHDRAWN, number))
            raise

    async def _put(self, frame: bytes) -> None:
        """Write a message whole: gRPC ends a stream of which a write is cancelled, so a write is not."""
        task = asyncio.ensure_future(self._write_in_turn(frame))
        task.add_done_callback(_forget)
        await asyncio.shield(task)

    async def _write_in_turn(self, frame: bytes) -> None:
        async with self._writing:
            await self._stream.write(frame)
            self._meter.sent += len(frame)

    def _queue(self, frame: bytes) -> None:
        """Have a small message written soon, without waiting for it."""
        try:
            self._unsent.put_nowait(frame)
        except asyncio.QueueFull:
            self.end("it provokes messages and reads none")

    async def _unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise PeerMissing(f'"{self.other.peer}" was lost: {self._ended.result()}')
        except Broken as error:
            raise PeerMissing(f'"{self.other.peer}" was lost: {error}') from None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self) -> str:
        while (frame := await self._stream.read()) is not None:
            self._last_received, self._meter.last_contact = time.monotonic(), time.time()
            self._meter.received += len(frame)
            if frames.kind_of(frame) == frames.REFUSAL:
                return frames.reason_in(frame)
            self._take(frame)
        return "it closed the connection"

    def _take(self, frame: bytes) -> None:
        match frames.kind_of(frame):
            case frames.DATA:
                self._take_data(*frames.read_data(frame))
            case frames.OFFER:
                self._take_offer(frames.read_offer(frame))
            case frames.COMPLETE:
                if leaving := self._leaving.get(frames.read_number(frame)):
                    leaving.complete.set()
            case frames.RECEIPT:
                self._take_receipt(*frames.read_receipt(frame))
            case frames.WITHDRAWN:
                if self._arriving and self._arriving.number == frames.read_number(frame):
                    self._drop_arriving()
            case frames.MOVE:
                self._on_move()
            case frames.GOODBYE:
                self._their_goodbye.set()
                self.retire()
            case frames.HEARTBEAT:
                pass
            case other:
                raise frames.BadFrame(f"it sent a message of an unknown kind, {other!r}")

    def _take_offer(self, offer: frames.Offer) -> None:
        if self._arriving is not None:
            raise frames.BadFrame("it began a parcel in the middle of another one")
        if offer.size > self._limits.largest:
            text = f"a parcel of {offer.size:,} bytes; at most {self._limits.largest:,} are taken"
            self._answer(offer.number, Receipt(Outcome.REFUSED, text))
        elif self._undecided >= MOST_WAITING:
            self._answer(offer.number, Receipt(Outcome.DEFERRED, f"{MOST_WAITING} parcels wait already"))
        else:
            self._arriving = Spool(offer.number, offer.size, self._limits.folder)
            self._take_whole()

    def _take_data(self, number: int, chunk: memoryview) -> None:
        if self._arriving is None or self._arriving.number != number:
            return  # of a parcel that was refused; the sender will see it
        try:
            self._arriving.add(chunk)
        except OSError as error:
            self._drop_arriving()
            self._answer(number, Receipt(Outcome.DEFERRED, f"cannot keep it now: {error.strerror}"))
        else:
            self._take_whole()

    def _take_whole(self) -> None:
        if self._arriving is not None and self._arriving.whole:
            self._queue(frames.numbered(frames.COMPLETE, self._arriving.number))
            self._whole.put_nowait(self._arriving)
            self._arriving = None
            self._undecided += 1

    def _take_receipt(self, number: int, answer: Receipt) -> None:
        leaving = self._leaving.get(number)
        if leaving is not None and not leaving.decided.done():
            leaving.decided.set_result(answer)
            leaving.complete.set()

    def _answer(self, number: int, answer: Receipt) -> None:
        self._queue(frames.receipt(number, answer))

    def _drop_arriving(self) -> None:
        if self._arriving is not None:
            self._arriving.close()
            self._arriving = None

    async def _decide(self) -> str:
        """Hand on whole parcels, in their order. A delivery that has begun goes on even if the stream ends."""
        while True:
            spool = await self._whole.get()
            answer = await asyncio.shield(asyncio.ensure_future(self._deliver(self.other.peer, spool)))
            self._undecided -= 1
            await self._put(frames.receipt(spool.number, answer))

    async def _write_queued(self) -> str:
        """Write queued messages; a heartbeat if there was none for a quarter of the silence."""
        while True:
            frame = frames.HEARTBEAT
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.silence / 4):
                    frame = await self._unsent.get()
            await self._put(frame)

    async def _watch(self) -> str:
        while (quiet := time.monotonic() - self._last_received) < self._limits.silence:
            await asyncio.sleep(min(self._limits.silence - quiet, self._limits.silence / 4) + 0.01)
        return f"nothing was received from it for {self._limits.silence:g} seconds"

    async def _take_leave(self) -> str:
        await self._retiring.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.patience):
                while self._leaving or self._arriving or self._undecided:
                    await asyncio.sleep(0.01)
                await self._put(frames.GOODBYE)
                await self._their_goodbye.wait()
        return "another connection took over"


def _forget(task: asyncio.Task[None]) -> None:
    """Retrieve the result of a write that is no longer awaited."""
    if not task.cancelled():
        task.exception()
