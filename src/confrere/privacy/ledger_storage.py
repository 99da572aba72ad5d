"""Where a ledger's entries are kept: in a file that outlives the process, or in memory for a rehearsal.

A file is SQLite with `synchronous=FULL`, readable by its owner only. It belongs to an institution and holds one ledger for
each population of patients that the institution tells apart; by default that is one. Beside the entries it holds keyed
hashes of the patients whose records were charged (`privacy.patient_hashes`); neither these nor the fingerprint of the records
goes into the chain of hashes, so that the head of a ledger, which peers see, is no function of any record.

Several processes may share a file: reading what the others added and writing one's own entry are one `BEGIN IMMEDIATE`
transaction. A rehearsal of a thousand sites needs a thousand ledgers that are not read afterwards; those are plain lists,
with the same chain of hashes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from confrere.core.errors import PrivacyError
from confrere.core.owner_only import require_irreplaceable
from confrere.privacy.charges import Charge

UNREADABLE = (sqlite3.Error, OSError)
"""The errors of opening a file that is not a ledger."""

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS ledgers (
      id TEXT PRIMARY KEY, population TEXT NOT NULL UNIQUE, genesis TEXT NOT NULL, anyone INTEGER NOT NULL,
      counter INTEGER NOT NULL, head TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS entries (
      ledger TEXT NOT NULL, counter INTEGER NOT NULL, key TEXT NOT NULL, charges TEXT NOT NULL, at TEXT NOT NULL,
      previous TEXT NOT NULL, hash TEXT NOT NULL, records TEXT NOT NULL, PRIMARY KEY (ledger, counter))""",
    "CREATE INDEX IF NOT EXISTS entries_by_key ON entries (ledger, key)",
    """CREATE TABLE IF NOT EXISTS patients (
      hash BLOB NOT NULL, ledger TEXT NOT NULL, PRIMARY KEY (hash, ledger)) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TRIGGER IF NOT EXISTS entries_stay BEFORE DELETE ON entries
      BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never removed'); END""",
    """CREATE TRIGGER IF NOT EXISTS entries_are_final BEFORE UPDATE ON entries
      BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END""",
    """CREATE TRIGGER IF NOT EXISTS patients_stay BEFORE DELETE ON patients
      BEGIN SELECT RAISE(ABORT, 'patients of a ledger are never removed'); END""",
)
"""`anyone` marks a ledger that was charged for patients who are not known: any data set may overlap with it."""

COLUMNS = "counter, key, charges, at, previous, hash, records"
OLD_COLUMNS = "counter, key, charges, at, previous, hash"
"""Of an entry in version 0.1, which had one ledger in a file, chained from the name of the data set."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: what was charged, under which key, chained to the line before."""

    counter: int
    key: str
    charges: tuple[Charge, ...]
    at: str
    previous: str
    hash: str
    records: str = ""
    """A fingerprint of the records that it was charged for and, after a slash, of what the computation started from; it
    stays at the site and out of the chain of hashes."""

    def record(self) -> dict[str, Any]:
        """The entry as plain JSON values."""
        return {**vars(self), "charges": plain(self.charges)}

    @classmethod
    def following(
        cls, previous: str, counter: int, key: str, charges: tuple[Charge, ...], at: str, records: str = ""
    ) -> Entry:
        """An entry that is chained to the one with the hash `previous`."""
        return cls(counter, key, charges, at, previous, _hash(counter, key, charges, at, previous), records)

    def expected(self) -> str:
        """The hash that the entry should have."""
        return _hash(self.counter, self.key, self.charges, self.at, self.previous)


def _hash(counter: int, key: str, charges: tuple[Charge, ...], at: str, previous: str) -> str:
    """The hash of an entry. It does not cover the fingerprint of the records."""
    return digest({"counter": counter, "key": key, "charges": plain(charges), "at": at, "previous": previous})


REUSED, KEPT, LEAVING = "reused", "kept", "leaving/"
MOST_REUSES = 3


@dataclass(frozen=True)
class Attempt:
    """A charge, and the later entries that record its outcome (`attempt/COUNTER/…`); those charge nothing."""

    charge: Entry
    marks: tuple[str, ...]

    @property
    def released(self) -> str | None:
        """The digest of what leaves, or left, for it."""
        return next((m.removeprefix(LEAVING) for m in self.marks if m.startswith(LEAVING)), None)

    @property
    def kept(self) -> bool:
        """Whether it ended in an error after its result was drawn: used again, it would choose among results."""
        return KEPT in self.marks

    def reusable(self, charges: tuple[Charge, ...]) -> bool:
        """Whether it may pay for this again, if the process that made it is dead.

        A charge for a masked sum never does: it belongs to one attempt, which a process that died does not join again.
        """
        spent = self.released is not None or self.kept or self.marks.count(REUSED) >= MOST_REUSES
        return not spent and self.charge.charges == charges and not any(c.condition for c in charges)

    def mark(self, what: str) -> str:
        """The key of an entry that records the outcome of the charge."""
        return f"attempt/{self.charge.counter}/{what}"


def fact_key(subject: str, fact: str) -> str:
    """What the key of an entry starts with that states a fact; the value follows."""
    return f"fact/{quote(subject)}/{quote(fact, safe='')}="


def genesis(dataset: str) -> str:
    """The hash that the first entry of a ledger in memory is chained to; in a file that is a random number."""
    return digest({"confrere-ledger": 1, "dataset": dataset})


class EntryStorage(Protocol):
    """What a ledger asks of the place where its entries are."""

    where: str
    id: str
    genesis: str
    """The hash that the first entry is chained to."""
    shared: bool
    """Whether another process may add entries."""

    def writing(self) -> AbstractContextManager[None]:
        """A context in which the book is held for oneself; all or nothing is written."""

    def append(self, entry: Entry) -> None: ...

    def after(self, counter: int) -> tuple[list[Entry], tuple[int, str]]:
        """The entries after the one with this number, and the number and hash recorded as the last."""

    def under(self, key: str, records: str) -> Entry | None:
        """The first entry with this key that was charged for these records."""

    def first_key(self, start: str) -> str | None:
        """The key of the first entry whose key starts with this."""

    def hash_of(self, counter: int, ledger: str = "") -> str | None:
        """The hash of an entry of this ledger, or of another one in the same file."""

    def counters(self) -> dict[str, int]:
        """How many entries each ledger here has, by its id."""

    def close(self) -> None: ...


class MemoryStorage:
    """Entries that end with the process."""

    where, shared = "the ledger in memory", False

    def __init__(self, dataset: str) -> None:
        self._entries: list[Entry] = []
        self._under: dict[tuple[str, str], Entry] = {}
        self.id, self.genesis = "", genesis(dataset)

    @contextmanager
    def writing(self) -> Iterator[None]:
        kept = len(self._entries)
        try:
            yield
        except BaseException:
            del self._entries[kept:]
            self._under = {k: e for k, e in self._under.items() if e.counter <= kept}
            raise

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._under.setdefault((entry.key, entry.records), entry)

    def after(self, counter: int) -> tuple[list[Entry], tuple[int, str]]:
        last = self._entries[-1].hash if self._entries else self.genesis
        return self._entries[counter:], (len(self._entries), last)

    def under(self, key: str, records: str) -> Entry | None:
        return self._under.get((key, records))

    def first_key(self, start: str) -> str | None:
        return next((entry.key for entry in self._entries if entry.key.startswith(start)), None)

    def hash_of(self, counter: int, ledger: str = "") -> str | None:
        return self._entries[counter - 1].hash if 0 < counter <= len(self._entries) else None

    def counters(self) -> dict[str, int]:
        return {self.id: len(self._entries)}

    def close(self) -> None:
        """There is nothing to close."""


class FileStorage:
    """Entries on the disk before anything is computed that they pay for."""

    shared = True

    def __init__(self, path: Path | str, population: str = "") -> None:
        self.path, self.where = Path(path), f"the ledger {path}"
        self.path.touch(mode=0o600)
        require_irreplaceable(self.path, PrivacyError)
        self.known = False
        """Whether the patients are registered whose records are charged here."""
        self.database = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False, timeout=60)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=FULL")
        with self.writing():
            self._migrate()
            for statement in SCHEMA:
                self.database.execute(statement)
            lost = "SELECT count(*) FROM entries WHERE ledger NOT IN (SELECT id FROM ledgers)"
            if self.database.execute(lost).fetchone()[0]:
                raise PrivacyError(f"{self.where} was edited: its header is missing. Restore a true copy")
            query = "SELECT id, genesis FROM ledgers WHERE population = ?"
            row = self.database.execute(query, (population,)).fetchone() or self._begin(population)
            self.id, self.genesis = str(row[0]), str(row[1])

    def _begin(
        self, population: str, entries: Sequence[Sequence[Any]] = (), *, anyone: bool = False
    ) -> tuple[str, str]:
        """A new ledger, or one with the entries of version 0.1, which keep their hashes: peers may have seen them."""
        id, start = secrets.token_hex(32), secrets.token_hex(32)
        first = entries[0][4] if entries else start
        self.database.execute(
            "INSERT INTO ledgers VALUES (?, ?, ?, ?, 0, ?)", (id, population, first, anyone, first)
        )
        for row in entries:
            self._insert(id, (*row, ""))
        if entries:  # from here on the chain is random: no later head tells what the first one was made of
            counter, at, previous = (entries[-1][i] for i in (0, 3, 5))
            self.append(Entry.following(previous, counter + 1, f"migrated/{start}", (), at), id)
        return id, first

    def _migrate(self) -> None:
        """Bring a file of version 0.1 into the present form, with every charge."""
        if not self.database.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger'").fetchone():
            return
        header = self.database.execute("SELECT counter, head, dataset FROM ledger").fetchone()
        rows = self.database.execute(f"SELECT {OLD_COLUMNS} FROM entries ORDER BY counter").fetchall()
        ends = (rows[-1][0], rows[-1][5], rows[0][4]) if rows else None
        if rows and (header is None or ends != (*header[:2], genesis(header[2]))):
            raise PrivacyError(
                f"{self.where} was edited: its header is not that of its entries. Restore a true copy"
            )
        for table in ("entries", "ledger"):
            self.database.execute(f"DROP TABLE {table}")
        for statement in SCHEMA:
            self.database.execute(statement)
        if rows:
            self._begin("", rows, anyone=True)

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

    def append(self, entry: Entry, ledger: str = "") -> None:
        """Write an entry. A ledger that is charged before its patients are registered is one of anyone's; a fact charges
        nothing."""
        ledger = ledger or self.id
        charges = json.dumps(plain(entry.charges))
        row = (entry.counter, entry.key, charges, entry.at, entry.previous, entry.hash, entry.records)
        self._insert(ledger, row)
        self.database.execute(
            "UPDATE ledgers SET counter = ?, head = ?, anyone = max(anyone, ?) WHERE id = ?",
            (entry.counter, entry.hash, bool(entry.charges) and not self.known, ledger),
        )

    def _insert(self, ledger: str, row: Sequence[Any]) -> None:
        self.database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (ledger, *row))

    def register(
        self, patients: Collection[bytes] | None, check: str, former: Mapping[bytes, Collection[bytes]]
    ) -> tuple[list[str], frozenset[bytes]]:
        """Add the patients whose records are about to be charged, but for those of another population.

        Returns the populations that are charged too, because their patients are not known, and the patients who are left
        out. `patients` is None where they are not known: they may be in any ledger. `check` is a hash of the secret under
        which the patients were hashed; another secret would recognise no patient. `former` has further hashes under
        which a patient may be known.
        """
        with self.writing():
            self._check_secret(check)
            others = "SELECT id, population FROM ledgers WHERE id <> ? AND (anyone OR ?)"
            also = dict(self.database.execute(others, (self.id, patients is None)).fetchall())
            if patients is None:
                self.database.execute("UPDATE ledgers SET anyone = 1 WHERE id = ?", (self.id,))
            elsewhere = frozenset(
                p
                for p in patients or ()
                if any(self._is_elsewhere(known, also) for known in (p, *former.get(p, ())))
            )
            ours = frozenset(patients or ()) - elsewhere
            pairs = [(patient, id) for id in (self.id, *also) for patient in ours]
            self.database.executemany("INSERT OR IGNORE INTO patients VALUES (?, ?)", pairs)
        self.known = True
        return sorted(also.values()), elsewhere

    def _check_secret(self, check: str) -> None:
        known = self.database.execute("SELECT value FROM facts WHERE name = 'secret'").fetchone()
        if known is None:
            self.database.execute("INSERT INTO facts VALUES ('secret', ?)", (check,))
        elif known[0] != check:
            raise PrivacyError(
                f"{self.where} recognises patients by another secret than the one beside it; put back the"
                " ledger.key that was in use with it"
            )

    def _is_elsewhere(self, patient: bytes, charged_too: Mapping[str, str]) -> bool:
        """Whether a patient belongs to another population, which is not charged along with this one."""
        found = self.database.execute("SELECT ledger FROM patients WHERE hash = ?", (patient,))
        return any(id != self.id and id not in charged_too for (id,) in found.fetchall())

    def counters(self) -> dict[str, int]:
        return dict(self.database.execute("SELECT id, counter FROM ledgers"))

    def adopt(self, other: Path) -> None:
        """Take in the ledgers of another file, with every charge; those that are here already are passed over.

        Its form is the present one (opening it sees to that). Its patients were hashed under another secret, so that they are
        anyone's from here on.
        """
        self.database.execute("ATTACH ? AS other", (str(other),))
        try:
            with self.writing():
                new = "FROM other.ledgers WHERE counter AND id NOT IN (SELECT id FROM main.ledgers)"
                found = [id for (id,) in self.database.execute(f"SELECT id {new}").fetchall()]
                self.database.execute(
                    "INSERT INTO main.ledgers SELECT id, 'adopted ' || id, genesis, 1, counter, head "
                    "FROM other.ledgers WHERE id IN (SELECT value FROM json_each(?))",
                    (json.dumps(found),),
                )
                self.database.execute(
                    "INSERT INTO main.entries SELECT * FROM other.entries WHERE ledger IN (SELECT value FROM json_each(?))",
                    (json.dumps(found),),
                )
        finally:
            self.database.execute("DETACH other")

    def after(self, counter: int) -> tuple[list[Entry], tuple[int, str]]:
        fields = ", ".join(f"e.{name}" for name in COLUMNS.split(", "))
        rows = self.database.execute(
            f"SELECT l.counter, l.head, {fields} FROM ledgers l LEFT JOIN entries e"
            " ON e.ledger = l.id AND e.counter > ? WHERE l.id = ? ORDER BY e.counter",
            (counter, self.id),
        ).fetchall()
        if not rows:
            raise PrivacyError(f"{self.where} was edited: its header is missing. Restore a true copy")
        return [self._entry(row[2:]) for row in rows if row[2] is not None], rows[0][:2]

    def under(self, key: str, records: str) -> Entry | None:
        query = f"SELECT {COLUMNS} FROM entries WHERE ledger = ? AND key = ? AND records = ? ORDER BY counter LIMIT 1"
        row = self.database.execute(query, (self.id, key, records)).fetchone()
        return None if row is None else self._entry(row)

    def attempt(self, key: str, records: str) -> Attempt | None:
        """The last charge under this key for these records, and its outcome."""
        query = f"SELECT {COLUMNS} FROM entries WHERE ledger = ? AND key = ? AND records = ? ORDER BY counter DESC LIMIT 1"
        row = self.database.execute(query, (self.id, key, records)).fetchone()
        if row is None:
            return None
        start = f"attempt/{row[0]}/"
        query = "SELECT key FROM entries WHERE ledger = ? AND key >= ? AND key < ? ORDER BY counter"
        rows = self.database.execute(query, (self.id, start, start[:-1] + "0")).fetchall()  # "0" follows "/"
        return Attempt(self._entry(row), tuple(key.removeprefix(start) for (key,) in rows))

    def first_key(self, start: str) -> str | None:
        query = "SELECT key FROM entries WHERE ledger = ? AND key >= ? AND key < ? ORDER BY counter LIMIT 1"
        end = start[:-1] + chr(ord(start[-1]) + 1)
        row = self.database.execute(query, (self.id, start, end)).fetchone()
        return None if row is None else str(row[0])

    def hash_of(self, counter: int, ledger: str = "") -> str | None:
        query = "SELECT hash FROM entries WHERE ledger = ? AND counter = ?"
        row = self.database.execute(query, (ledger or self.id, counter)).fetchone()
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
        return Entry(row[0], row[1], charges, *row[3:])


def charges_in(path: Path | str, *, but: str, population: str = "") -> list[tuple[Charge, ...]]:
    """What was charged, except by the run `but`, to each ledger of a file that any records of a population are charged to.

    The file is only read, so that one of version 0.1 stays as it is; its chain is not verified.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=60)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if "entries" not in tables:
                return []  # nothing has been written to it yet
            query = "SELECT ? IS NULL, key, charges FROM entries ORDER BY counter"
            if "ledgers" in tables:
                query = (
                    "SELECT l.id, e.key, e.charges FROM entries e JOIN ledgers l ON l.id = e.ledger"
                    " WHERE l.population = ? OR l.anyone ORDER BY l.id, e.counter"
                )
            rows = database.execute(query, (population,)).fetchall()
        found: dict[Any, list[Charge]] = {}
        for ledger, key, text in rows:
            charges = [] if str(key).startswith(f"{but}/") else json.loads(text)
            found.setdefault(ledger, []).extend(Charge(event, count) for event, count in charges)
        return [tuple(charges) for charges in found.values() if charges]
    except (*UNREADABLE, ValueError, TypeError, PrivacyError) as error:
        raise PrivacyError(f"the ledger {path} cannot be read ({error}); restore a true copy") from None


CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(charges: Sequence[Charge]) -> list[list[str | int]]:
    """Charges as plain JSON values."""
    return [[c.event, c.count] for c in charges]


def digest(body: Mapping[str, Any]) -> str:
    """The hash of an entry, or of what a chain begins with."""
    return hashlib.sha256(CANONICAL.encode(body).encode()).hexdigest()
