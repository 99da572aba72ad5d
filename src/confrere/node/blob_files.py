"""Large values (parcels, states) in files next to the store's database.

A file is on the disk before a transaction names it, and is removed after one has ceased to. So a row never names what
is not there; what no row names was left by a crash, and is swept away at the next start.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from confrere.core.owner_only import make_private_folder
from confrere.transport.body import Body


class BlobStore:
    """One folder; names in it are never used twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_private_folder(folder)

    def put(self, pieces: Iterable[bytes | memoryview]) -> str:
        """A new file of these bytes."""
        name = secrets.token_hex(12)
        path = self.folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for piece in pieces:
                left = memoryview(piece)
                while len(left):
                    left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        return name

    def adopt(self, file: Path) -> str:
        """Take over a file by renaming it, so that its writer cannot remove it any more."""
        name = secrets.token_hex(12)
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(file, self.folder / name)
        return name

    def settle(self) -> None:
        """Have the names of new files on the disk, too."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def body(self, name: str) -> Body:
        """FileNotFoundError if it was removed."""
        path = self.folder / name
        return Body(path.stat().st_size, file=path)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()

    def sweep(self, named: Collection[str]) -> None:
        """Remove files that no row names."""
        self.drop({path.name for path in self.folder.iterdir()} - set(named))
