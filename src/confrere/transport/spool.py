"""Where a parcel is kept while it arrives: in memory while it is small, in a nameless file once it is not."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from confrere.transport.frames import BadFrame

IN_MEMORY = 128 * 1024


@dataclass(frozen=True)
class Terms:
    """What this site grants its peers; the same for every link."""

    largest: int
    """Bytes of a parcel."""
    silence: float
    """Seconds without a sign of life after which a peer is lost."""
    patience: float
    """Seconds that a peer may take to decide on a parcel that it has received."""
    folder: Path | None = None
    """Where large parcels are spooled; the system's own folder for temporary files if None."""


class Spool:
    """The bytes of one parcel so far. Its file has no name, so nothing is left behind by a crash."""

    def __init__(self, number: int, size: int, folder: Path | None) -> None:
        self.number, self.size = number, size
        place = None if folder is None else str(folder)
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=place)  # noqa: SIM115
        self._received = 0

    @property
    def whole(self) -> bool:
        return self._received == self.size

    def add(self, chunk: memoryview) -> None:
        if self._received + len(chunk) > self.size:
            raise BadFrame("it sent more of a parcel than it had offered")
        self._file.write(chunk)
        self._received += len(chunk)

    def read(self) -> bytes:
        """All of it, once."""
        self._file.seek(0)
        return self._file.read(self.size)

    def close(self) -> None:
        self._file.close()
