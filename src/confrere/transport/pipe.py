"""A pipe between two processes of one machine: messages of a small JSON object and a block of bytes.

Both ends are made before the processes part (`pair`), so no other process can write to it. `None` from `receive` means that the
other end is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

HEAD = struct.Struct("<QQ")


class PipeEnd:
    """One end of a pipe between two processes. It is made outside of any event loop and opened inside of one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> PipeEnd:
        self._end.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=self._end, limit=2**22)
        return self

    def send(self, message: Mapping[str, Any], block: bytes = b"") -> None:
        """Queue a message; it goes out whenever the event loop has time. To an end that is gone it is dropped."""
        if self._writer is None or self._writer.is_closing():
            return
        text = json.dumps(dict(message)).encode()
        self._writer.write(HEAD.pack(len(text), len(block)) + text)
        if block:
            self._writer.write(block)

    async def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next message, or None if the other end is gone."""
        assert self._reader is not None
        try:
            text, block = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            message = json.loads(await self._reader.readexactly(text))
            return message, await self._reader.readexactly(block)
        except (OSError, asyncio.IncompleteReadError):
            return None

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(RuntimeError):  # the event loop may be over already
                self._writer.close()
        self._end.close()


def pair() -> tuple[PipeEnd, PipeEnd]:
    """Two ends that are connected."""
    one, other = socket.socketpair()
    return PipeEnd(one), PipeEnd(other)
