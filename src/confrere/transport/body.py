"""The complete bytes of a parcel: in memory if it is small, otherwise in a file.

A parcel may be as large as a model. It is sent, stored and read piece by piece, so that a node never holds its bytes
and its tensors at the same time.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

IN_MEMORY = 64 * 1024
"""Bytes up to which a body is kept in memory, and in the database."""
PIECE = 256 * 1024
"""Bytes that are read, written or hashed at a time."""


@dataclass(frozen=True)
class Body:
    """Whole, and never changed once it is one."""

    size: int
    data: bytes | None = None
    file: Path | None = None

    @classmethod
    def of(cls, what: Body | bytes) -> Body:
        return what if isinstance(what, Body) else cls(len(what), bytes(what))

    def open(self) -> AbstractContextManager[BinaryIO]:
        """To be read from its beginning; FileNotFoundError if it was dropped meanwhile."""
        if self.file is None:
            return io.BytesIO(self.data or b"")
        return open(self.file, "rb", buffering=0)

    def read(self) -> bytes:
        """All of it at once."""
        with self.open() as file:
            return file.read() if self.file is None else _all(file, self.size)

    def pieces(self, length: int = PIECE) -> Iterator[bytes]:
        with self.open() as file:
            while piece := file.read(length):
                yield piece


def _all(file: BinaryIO, size: int) -> bytes:
    """In one piece of memory from the start: a file without a buffer may give less than it is asked for."""
    data = file.read(size)
    while piece := file.read(PIECE):
        data += piece
    return data
