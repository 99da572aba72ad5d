"""A cache of computed features on disk: one SQLite file per encoder, readable only by its owner.

The key of an entry is a hash of the picture; the file's name is the identity of the encoder. Features are PRIVATE, like
the pictures. Entries are committed in groups, so a killed process loses at most the last group. Every entry has a
checksum: a damaged one counts as missing, and a damaged file is replaced by an empty one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.core.owner_only import append_private, make_private_folder, require_owner_only
from confrere.data.bundled.fetch import cache_folder

AT_ONCE = 500
"""Keys in one query."""
ELSEWHERE = "set CONFRERE_CACHE to another folder"
Features = NDArray[np.float32]


def features_folder() -> Path:
    """`features` in CONFRERE_CACHE, or `confrere/features` in the user's cache folder."""
    folder = cache_folder()
    return (folder if os.environ.get("CONFRERE_CACHE") else folder.parent) / "features"


class FeatureCache:
    """The features of one encoder."""

    def __init__(self, folder: Path, identity: str, width: int) -> None:
        self.width = width
        try:
            require_owner_only(make_private_folder(folder), DataError)
        except OSError as error:
            raise DataError(
                f"the folder of features {folder} cannot be made: {error.strerror}; {ELSEWHERE}"
            ) from None
        self.path = folder / f"{identity[:32]}.sqlite"
        try:
            self._database = self._connected()
        except sqlite3.OperationalError as error:  # a full or read-only disk, not a damaged file
            raise self._refused(error) from None
        except sqlite3.DatabaseError:
            self._replace()

    def _refused(self, error: sqlite3.Error) -> DataError:
        return DataError(f"{self.path}: features cannot be kept there: {error}; {ELSEWHERE}")

    def _replace(self) -> None:
        """Begin anew with an empty file; everything that was in the damaged one can be computed again."""
        for end in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        try:
            self._database = self._connected()
        except sqlite3.DatabaseError as error:
            raise self._refused(error) from None

    def _connected(self) -> sqlite3.Connection:
        append_private(self.path).close()
        database = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, numbers BLOB, checksum BLOB) WITHOUT ROWID"
            )
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while features are computed, so that two processes do not compute the same ones."""
        with append_private(self.path.with_suffix(".lock")) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Features]:
        """The entries that are there and whole."""
        found: dict[bytes, Features] = {}
        try:
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = self._database.execute(f"SELECT * FROM features WHERE key IN ({marks})", some)
                for key, numbers, checksum in rows:
                    if _is_whole(key, numbers, checksum, self.width):
                        found[key] = np.frombuffer(numbers, dtype="<f4")
        except sqlite3.OperationalError:  # busy, or a failing disk: they are computed again
            pass
        except sqlite3.DatabaseError:
            self._database.close()
            self._replace()
        return found

    def write(self, entries: Mapping[bytes, Features]) -> None:
        """Keep these, all or none. A full disk loses the cache, never the run."""
        rows = []
        for key, features in entries.items():
            numbers = np.ascontiguousarray(features, dtype="<f4").tobytes()
            rows.append((key, numbers, _checksum(key, numbers)))
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            if not isinstance(error, sqlite3.OperationalError):
                self._database.close()
                self._replace()

    def close(self) -> None:
        self._database.close()


def _checksum(key: bytes, numbers: bytes) -> bytes:
    return hashlib.blake2b(key + numbers, digest_size=8).digest()


def _is_whole(key: object, numbers: object, checksum: object, width: int) -> bool:
    if not isinstance(key, bytes) or not isinstance(numbers, bytes) or len(numbers) != 4 * width:
        return False
    return checksum == _checksum(key, numbers)
