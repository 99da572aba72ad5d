"""A bad network between two sites: a TCP proxy that delays, throttles, cuts, hangs, and alters what passes.

At this level a lost, doubled or swapped segment is a different stream of bytes, as if somebody in the middle had
written it: TLS must notice each one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Mangle = Callable[[bytes], list[bytes]]


@dataclass
class FaultProxy:
    """Forwards to `target` on this machine. All knobs can be turned while it runs."""

    target: int
    delay: float = 0.0
    """Seconds before each piece goes on."""
    rate: float = 0.0
    """Bytes per second in each direction; 0 is without limit."""
    mangle: Mangle | None = None
    """What becomes of each piece on its way."""
    hung: bool = False
    """Keep the connections open and forward nothing, as a peer that vanished without a word."""
    refuse: bool = False
    port: int = 0
    connections: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        """Break all connections now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        finally:
            for end in (writer, back):
                self._writers.discard(end)
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(16 * 1024):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.rate:
                    await asyncio.sleep(len(data) / self.rate)
                while self.hung:
                    await asyncio.sleep(0.05)
                for piece in [data] if self.mangle is None else self.mangle(data):
                    writer.write(piece)
                await writer.drain()
        writer.close()


def flips(chance: float, seed: int) -> Mangle:
    """Flip one bit of a piece, now and then."""
    draw = random.Random(seed)

    def mangle(data: bytes) -> list[bytes]:
        if draw.random() >= chance:
            return [data]
        out = bytearray(data)
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
        return [bytes(out)]

    return mangle


def loses(chance: float, seed: int) -> Mangle:
    draw = random.Random(seed)
    return lambda data: [] if draw.random() < chance else [data]


def doubles(chance: float, seed: int) -> Mangle:
    draw = random.Random(seed)
    return lambda data: [data, data] if draw.random() < chance else [data]


def truncates(chance: float, seed: int) -> Mangle:
    draw = random.Random(seed)
    return lambda data: [data[: len(data) // 2]] if draw.random() < chance else [data]


def swaps(chance: float, seed: int) -> Mangle:
    """Hold a piece back until the next one has passed."""
    draw, held = random.Random(seed), list[bytes]()

    def mangle(data: bytes) -> list[bytes]:
        if held:
            return [data, held.pop()]
        if draw.random() < chance:
            held.append(data)
            return []
        return [data]

    return mangle
