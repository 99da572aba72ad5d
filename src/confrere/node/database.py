"""A durable SQLite file: a committed transaction is on disk, and a failed one has changed nothing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confrere.core.errors import CheckpointError
from confrere.node.shortage import recognising_shortages


class Database:
    """Used by one thread at a time; every failure is a CheckpointError that names the file."""

    def __init__(self, path: Path, schema: str) -> None:
        self.path = path
        self._lock = threading.RLock()
        with self.translating_errors():
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(
                str(path), isolation_level=None, check_same_thread=False, timeout=60
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(schema)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self.translating_errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with self._lock, self.translating_errors():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        """What the disk or SQLite complains about, in words for the owner of the node."""
        try:
            with recognising_shortages(self.path):
                yield
        except (sqlite3.Error, OSError) as error:
            raise CheckpointError(
                f"{self.path} cannot be used ({error}); restore the folder from a backup"
            ) from None

    def close(self) -> None:
        with self._lock:
            self._connection.close()
