"""Parcels between processes of one machine, over Unix domain sockets in a folder that they share.

Every site listens on a socket of its own. A frame is a kind (1 byte), a length (4 bytes) and so many bytes:
a parcel as `wire` spells it, or a control message, which is a small JSON object from whoever supervises the
run («site x is gone»). Each frame is answered: taken, or refused. What was not answered is sent again, at a
bounded pace, until it is or the transport is closed; what arrives twice counts once. A peer that is
not there holds up nobody else, since each has its own queue. Only the owner may enter the folder.

Taken means: in the memory of the other process. Nothing here outlives a kill but what others still queue for
the victim; a run that must survive one restarts from its checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confrere.core.errors import BadParcel, PeerError, StudyError
from confrere.core.events import Event
from confrere.core.params import Shapes
from confrere.core.parcel import Parcel
from confrere.transport import wire

HEAD = struct.Struct(">cI")
PARCEL, CONTROL = b"P", b"C"
TAKEN, REFUSED = b"+", b"-"
LARGEST_CONTROL = 64 * 1024
LONGEST_ADDRESS = 100  # bytes; the system's own limit is 108
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds before another attempt to reach a peer

Message = Mapping[str, Any]


@contextlib.contextmanager
def meeting_place() -> Iterator[Path]:
    """A folder for the sockets of one run, with a short path; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="confrere-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def address(folder: Path, site: str) -> str:
    """Where a site listens. Its name is hashed: it may be long, or hold a slash."""
    path = str(folder / hashlib.sha256(site.encode()).hexdigest()[:16])
    if len(os.fsencode(path)) >= LONGEST_ADDRESS:
        raise StudyError(
            f"the folder for sockets has too long a path ({folder}); set TMPDIR to a shorter one"
        )
    return path


@dataclass
class _Outbox:
    """What waits for one peer, oldest first, and the task that delivers it."""

    frames: deque[bytes] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class ProcessTransport:
    """A site's post office among processes of one machine; `async with` opens and closes it.

    `on_event` hears notices (a broken frame, a refused parcel), `on_control` the supervisor's messages.
    With `run`, parcels of other runs are refused, with `expect`, models with other tensors. `on_refused` hears whose
    parcel was refused, and why, where that can be read from it.
    """

    def __init__(
        self,
        site: str,
        folder: Path,
        *,
        run: str | None = None,
        expect: Shapes | None = None,
        limits: wire.Limits = wire.STANDARD,
        on_event: Callable[[Event], None] | None = None,
        on_control: Callable[[Message], None] | None = None,
        on_refused: Callable[[Parcel, BadParcel], None] | None = None,
    ) -> None:
        self.site, self.folder, self.run = site, folder, run
        self._expect, self._limits = expect, limits
        self._on_event, self._on_control, self._on_refused = on_event, on_control, on_refused
        self._arrived: asyncio.Queue[Parcel] = asyncio.Queue()
        self._seen: set[tuple[str, str, int]] = set()
        self._outboxes: dict[str, _Outbox] = {}
        self._delivered = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._visitors: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self) -> ProcessTransport:
        """Start to listen. The socket that a killed predecessor left behind is replaced."""
        self._server = await asyncio.start_unix_server(
            self._receive_from, address(self.folder, self.site), limit=2**20
        )
        return self

    async def close(self) -> None:
        """Stop listening and sending; what is still queued is dropped. `drain` first to avoid that."""
        if self._server is not None:
            self._server.close()
            Path(address(self.folder, self.site)).unlink(missing_ok=True)
            self._server = None
        for peer in list(self._outboxes):
            self.forget(peer)
        for visitor in self._visitors.values():
            visitor.close()  # which its reader sees as the end
        await asyncio.gather(*self._visitors, return_exceptions=True)

    async def __aenter__(self) -> ProcessTransport:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, to: str, parcel: Parcel) -> int:
        """Queue a parcel for a peer, there or not; returns its bytes on the wire."""
        data = wire.encode(parcel)
        self._queue(to, HEAD.pack(PARCEL, len(data)) + data)
        return len(data)

    async def receive(self) -> Parcel:
        return await self._arrived.get()

    async def tell(self, to: str, message: Message) -> None:
        """Queue a control message for a peer."""
        data = json.dumps(dict(message), sort_keys=True, allow_nan=False).encode()
        if len(data) > LARGEST_CONTROL:
            raise ValueError(
                f"a control message of {len(data):,} bytes; at most {LARGEST_CONTROL:,} are taken"
            )
        self._queue(to, HEAD.pack(CONTROL, len(data)) + data)

    def waiting(self) -> dict[str, int]:
        """How many frames each peer has not yet taken; peers that took all are left out."""
        return {peer: len(box.frames) for peer, box in sorted(self._outboxes.items()) if box.frames}

    def forget(self, peer: str) -> int:
        """Stop trying to reach a peer that is gone for good; returns how many frames were dropped."""
        box = self._outboxes.pop(peer, None)
        if box is None:
            return 0
        if box.task is not None:
            box.task.cancel()
        self._delivered.set()
        return len(box.frames)

    async def drain(self, seconds: float) -> bool:
        """Wait until everything queued was taken, at most so long; True if it was."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.waiting():
                    self._delivered.clear()
                    await self._delivered.wait()
        return not self.waiting()

    def _queue(self, to: str, frame: bytes) -> None:
        if self._server is None:
            raise PeerError(f'"{self.site}" cannot send to "{to}": its transport is not open')
        box = self._outboxes.setdefault(to, _Outbox())
        box.frames.append(frame)
        box.filled.set()
        if box.task is None:
            box.task = asyncio.create_task(self._deliver(to, box))

    async def _deliver(self, to: str, box: _Outbox) -> None:
        """Hand over frame after frame; a frame leaves the queue only when the peer has answered for it."""
        pause = FIRST_PAUSE
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(address(self.folder, to))
                try:
                    while True:
                        while not box.frames:
                            box.filled.clear()
                            await box.filled.wait()
                        writer.write(box.frames[0])
                        await writer.drain()
                        answer = await reader.readexactly(1)
                        box.frames.popleft()
                        pause = FIRST_PAUSE
                        if answer != TAKEN:
                            self._notice(f'"{to}" refused a parcel of "{self.site}"')
                        self._delivered.set()
                finally:
                    writer.close()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _receive_from(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._visitors[me] = writer
        try:
            while (answer := await self._take_frame(reader)) is not None:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer hung up; what it did not get an answer for, it sends again
        finally:
            del self._visitors[me]
            writer.close()

    async def _take_frame(self, reader: asyncio.StreamReader) -> bytes | None:
        """The answer to the next frame; None if what comes is none, and the peer is to be hung up on."""
        kind, length = HEAD.unpack(await reader.readexactly(HEAD.size))
        largest = {PARCEL: self._limits.total, CONTROL: LARGEST_CONTROL}.get(kind, -1)
        if length > largest:
            self._notice("a connection sent something that is not a frame, or too long; it was closed")
            return None
        data = await reader.readexactly(length)
        try:
            if kind == PARCEL:
                self._take_parcel(data)
            else:
                self._take_control(data)
        except BadParcel as refusal:
            if kind != PARCEL or not self._told_of(data, refusal):
                self._notice(f"refused: {refusal}")
            return REFUSED
        return TAKEN

    def _take_parcel(self, data: bytes) -> None:
        parcel = wire.decode(data, expect=self._expect, limits=self._limits)
        if parcel.receiver != self.site:
            raise BadParcel(f'a parcel from "{parcel.sender}" for "{parcel.receiver}"')
        if self.run is not None and parcel.run != self.run:
            raise BadParcel(f'a parcel from "{parcel.sender}" of another run, "{parcel.run}"')
        if parcel.id not in self._seen:
            self._seen.add(parcel.id)
            self._arrived.put_nowait(parcel)

    def _told_of(self, data: bytes, refusal: BadParcel) -> bool:
        """Whether somebody was told whose parcel was refused: its sender will send nothing else in its place."""
        if self._on_refused is None:
            return False
        try:
            route = wire.route(data, self._limits)
        except BadParcel:
            return False
        ours = route.receiver == self.site and self.run in (None, route.run)
        if ours and route.id not in self._seen:
            self._seen.add(route.id)
            self._on_refused(route, refusal)
        return ours

    def _take_control(self, data: bytes) -> None:
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise BadParcel("a control message that is not a JSON object")
        if self._on_control is None:
            return
        try:
            self._on_control(message)
        except Exception as error:  # whoever listens must not be able to stop the post
            self._notice(f"a control message could not be acted on: {type(error).__name__}: {error}")

    def _notice(self, text: str) -> None:
        if self._on_event is not None:
            self._on_event(Event("notice", self.site, data={"text": text}))
