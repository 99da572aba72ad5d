"""Where a ledger's entries are kept: in a file that outlives the process, or in memory for a rehearsal.

A file is SQLite with `synchronous=FULL`. Several processes may share it: reading what the others added and writing one's
own entry are one `BEGIN IMMEDIATE` transaction. A rehearsal of a thousand sites needs a thousand ledgers that
nobody reads afterwards; those are plain lists, with the same chain of hashes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from confrere.core.errors import PrivacyError
from confrere.privacy.charges import Charge

UNREADABLE = (sqlite3.Error, OSError)
"""What comes of opening a file that is no ledger."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger (
  one INTEGER PRIMARY KEY CHECK (one = 1), dataset TEXT NOT NULL, counter INTEGER NOT NULL, head TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
  counter INTEGER PRIMARY KEY, key TEXT NOT NULL, charges TEXT NOT NULL, at TEXT NOT NULL,
  previous TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_key ON entries (key);
CREATE TRIGGER IF NOT EXISTS entries_stay BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never removed'); END;
CREATE TRIGGER IF NOT EXISTS entries_are_final BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END;
"""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: what was charged, under which key, chained to the line before."""

    counter: int
    key: str
    charges: tuple[Charge, ...]
    at: str
    previous: str
    hash: str

    def record(self) -> dict[str, Any]:
        """The entry as plain JSON values."""
        return {**vars(self), "charges": plain(self.charges)}

    def following(self, previous: str) -> Entry:
        """The same entry, chained to the one with this hash."""
        body = {k: v for k, v in self.record().items() if k != "hash"}
        return replace(self, previous=previous, hash=digest({**body, "previous": previous}))


def genesis(dataset: str) -> str:
    """The hash that the first entry of a data set's ledger is chained to."""
    return digest({"confrere-ledger": 1, "dataset": dataset})


class Book(Protocol):
    """What a ledger asks of the place where its entries are."""

    where: str
    shared: bool
    """Whether somebody else may add entries too."""

    def writing(self) -> Any:
        """A context in which the book is held for oneself; all or nothing is written."""

    def append(self, entry: Entry) -> None: ...

    def after(self, counter: int) -> tuple[list[Entry], tuple[int, str]]:
        """The entries after the one with this number, and the number and hash that the book says it ends with."""

    def under(self, key: str) -> Entry | None:
        """The first entry with this key."""

    def hash_of(self, counter: int) -> str | None: ...

    def close(self) -> None: ...


class MemoryBook:
    """Entries that end with the process. Their chain of hashes is worked out when somebody asks for it."""

    where, shared = "the ledger in memory", False

    def __init__(self, dataset: str) -> None:
        self._entries: list[Entry] = []
        self._under: dict[str, Entry] = {}
        self._genesis = genesis(dataset)
        self._chained = 0
        """So many of the entries have their hashes."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        kept = len(self._entries)
        try:
            yield
        except BaseException:
            del self._entries[kept:]
            self._under = {k: e for k, e in self._under.items() if e.counter <= kept}
            self._chained = min(self._chained, kept)
            raise

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._under.setdefault(entry.key, entry)

    def after(self, counter: int) -> tuple[list[Entry], tuple[int, str]]:
        self._chain()
        last = self._entries[-1].hash if self._entries else self._genesis
        return self._entries[counter:], (len(self._entries), last)

    def under(self, key: str) -> Entry | None:
        return self._under.get(key)

    def hash_of(self, counter: int) -> str | None:
        self._chain()
        return self._entries[counter - 1].hash if 0 < counter <= len(self._entries) else None

    def _chain(self) -> None:
        """Give every entry its place in the chain."""
        end = len(self._entries)
        for at in range(self._chained, end):
            entry, previous = self._entries[at], self._entries[at - 1].hash if at else self._genesis
            if not entry.hash:
                self._entries[at] = entry = entry.following(previous)
                if self._under[entry.key].counter == entry.counter:
                    self._under[entry.key] = entry
        self._chained = end

    def close(self) -> None:
        """There is nothing to close."""


class FileBook:
    """Entries on the disk before anything is computed that they pay for."""

    shared = True

    def __init__(self, path: Path | str, dataset: str) -> None:
        self.where = f"the ledger {path}"
        Path(path).touch(mode=0o600)
        self.database = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False, timeout=60)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=FULL")
        self.database.executescript(SCHEMA)
        with self.writing():
            row = self.database.execute("SELECT dataset FROM ledger").fetchone()
            if row is None:
                if self.database.execute("SELECT count(*) FROM entries").fetchone()[0]:
                    raise PrivacyError(f"{self.where} was edited: its header is missing. Restore a true copy")
                self.database.execute("INSERT INTO ledger VALUES (1, ?, 0, ?)", (dataset, genesis(dataset)))
            elif row[0] != dataset:
                raise PrivacyError(
                    f"{self.where} belongs to the data set «{row[0]}», not to «{dataset}»: "
                    "give each data set its own ledger"
                )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction that holds the ledger for itself; all or nothing."""
        try:
            self.database.execute("BEGIN IMMEDIATE")
            yield
            self.database.execute("COMMIT")
        except BaseException as error:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise PrivacyError(
                    f"{self.where} could not be written ({error}): nothing was spent"
                ) from None
            raise

    def append(self, entry: Entry) -> None:
        self.database.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
            (
                entry.counter,
                entry.key,
                json.dumps(plain(entry.charges)),
                entry.at,
                entry.previous,
                entry.hash,
            ),
        )
        self.database.execute("UPDATE ledger SET counter = ?, head = ?", (entry.counter, entry.hash))

    def after(self, counter: int) -> tuple[list[Entry], tuple[int, str]]:
        rows = self.database.execute(
            "SELECT e.*, l.counter, l.head FROM ledger l LEFT JOIN entries e ON e.counter > ? ORDER BY e.counter",
            (counter,),
        ).fetchall()
        if not rows:
            raise PrivacyError(f"{self.where} was edited: its header is missing. Restore a true copy")
        return [self._entry(row[:6]) for row in rows if row[0] is not None], rows[0][6:]

    def under(self, key: str) -> Entry | None:
        query = "SELECT * FROM entries WHERE key = ? ORDER BY counter LIMIT 1"
        row = self.database.execute(query, (key,)).fetchone()
        return None if row is None else self._entry(row)

    def hash_of(self, counter: int) -> str | None:
        row = self.database.execute("SELECT hash FROM entries WHERE counter = ?", (counter,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        self.database.close()

    def _entry(self, row: Sequence[Any]) -> Entry:
        try:
            charges = tuple(Charge(event, count) for event, count in json.loads(row[2]))
        except (ValueError, TypeError, PrivacyError):
            raise PrivacyError(
                f"{self.where} was edited: entry {row[0]} cannot be read. Restore a true copy"
            ) from None
        return Entry(row[0], row[1], charges, row[3], row[4], row[5])


def charges_in(path: Path | str, *, but: str) -> tuple[Charge, ...]:
    """All charges that a ledger's file holds, but for those of the run `but`. It is only read, and its chain is not verified."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=60)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone():
                return ()  # nobody has written into it yet
            rows = database.execute("SELECT key, charges FROM entries ORDER BY counter").fetchall()
        others = [text for key, text in rows if not str(key).startswith(f"{but}/")]
        return tuple(Charge(event, count) for text in others for event, count in json.loads(text))
    except (*UNREADABLE, ValueError, TypeError, PrivacyError) as error:
        raise PrivacyError(f"the ledger {path} cannot be read ({error}); restore a true copy") from None


def plain(charges: Sequence[Charge]) -> list[list[str | int]]:
    """Charges as plain JSON values."""
    return [[c.event, c.count] for c in charges]


def digest(body: Mapping[str, Any]) -> str:
    """The hash of an entry, or of what a chain begins with."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
