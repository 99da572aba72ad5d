"""Buffer for a parcel that is still arriving: in memory, or in a file once it is large."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from confrere.transport.body import IN_MEMORY, Body
from confrere.transport.grpc.frames import BadFrame

ARRIVING = "arriving-"
"""What the name of such a file begins with, so that those of a program that was killed are found."""


class Spool:
    """The bytes of one parcel so far. The receiver may move its file away; otherwise `close` removes it."""

    def __init__(self, number: int, size: int, folder: Path | None) -> None:
        self.number, self.size = number, size
        self._folder = folder
        self._received = 0
        self._memory = bytearray()
        self._file: int | None = None
        self._path: Path | None = None

    @property
    def whole(self) -> bool:
        return self._received == self.size

    def add(self, chunk: memoryview) -> None:
        if self._received + len(chunk) > self.size:
            raise BadFrame("it sent more of a parcel than it had offered")
        self._received += len(chunk)
        if self.size <= IN_MEMORY:
            self._memory += chunk
            return
        if self._file is None:
            self._file, path = tempfile.mkstemp(prefix=ARRIVING, dir=self._folder)
            self._path = Path(path)
        while len(chunk):
            chunk = chunk[os.write(self._file, chunk) :]

    def body(self) -> Body:
        """All of it, once it is whole."""
        if self._path is None:
            return Body(self.size, bytes(self._memory))
        return Body(self.size, file=self._path)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()
