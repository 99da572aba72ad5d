"""What a node may never forget, in one SQLite file: outbox, inbox, the log of the round, and the last states.

A round can be done again from the state before it: whatever cannot be repeated (a training, which is paid for
and draws fresh noise; parcels that were taken) is in the log under (round, call) and is read back instead.

| transaction | what it holds |
|---|---|
| keep | the result of a training: from here on it may leave |
| debit | the exact bytes of all parcels of one exchange; whatever is sent again is sent from here |
| credit | a parcel that arrived and its number; after it the sender is told, never before |
| take | which parcels an exchange was given |
| close | the state after the round; parcels that it has absorbed lose their bodies |

So a parcel's mass is at any instant in exactly one place: in the state of its sender, in the outbox and not in the
receiver's inbox, in that inbox, or in the state of the receiver. The two newest states stay, with
the log of the rounds after the older one: if the newest is damaged, the round before is replayed to the bit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confrere.core.errors import BadParcel, CheckpointError
from confrere.core.parcel import Parcel
from confrere.node.failpoints import reach

FORMAT = "confrere-node-1"
WAITING, DELIVERED, CANCELLED = 0, 1, 2
LEAVING = 255
"""The phase of a parcel that says that its sender leaves for good; no exchange comes near it."""

PAGE = 32768
"""Bytes of a page: parcels are large, and with the usual 4 KiB a write takes twice as long."""
PIECE = 2**20

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
  receiver TEXT NOT NULL, sequence INTEGER NOT NULL, epoch INTEGER NOT NULL, round INTEGER NOT NULL,
  phase INTEGER NOT NULL, mass REAL NOT NULL, size INTEGER NOT NULL, status INTEGER NOT NULL, body BLOB,
  PRIMARY KEY (receiver, sequence)
);
CREATE INDEX IF NOT EXISTS outbox_waiting ON outbox (receiver, sequence) WHERE status = 0;
CREATE TABLE IF NOT EXISTS inbox (
  sender TEXT NOT NULL, sequence INTEGER NOT NULL, epoch INTEGER NOT NULL, round INTEGER NOT NULL,
  phase INTEGER NOT NULL, mass REAL NOT NULL, taken_round INTEGER, taken_call INTEGER, body BLOB,
  PRIMARY KEY (sender, sequence)
);
CREATE UNIQUE INDEX IF NOT EXISTS inbox_once ON inbox (sender, epoch, round, phase);
CREATE INDEX IF NOT EXISTS inbox_waiting ON inbox (round) WHERE taken_round IS NULL;
CREATE TABLE IF NOT EXISTS log (
  round INTEGER NOT NULL, call INTEGER NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (round, call)
);
CREATE TABLE IF NOT EXISTS states (done INTEGER PRIMARY KEY, digest TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS leaving (site TEXT PRIMARY KEY, round INTEGER NOT NULL, body BLOB NOT NULL);
"""


class DiskFull(CheckpointError):
    """There is no room to write; nothing was changed."""


@dataclass(frozen=True)
class Debit:
    """A parcel that is about to leave: its exact bytes, and what it takes along."""

    parcel: Parcel
    body: bytes

    @property
    def mass(self) -> float:
        return mass_of(self.parcel)


class Store:
    """The durable side of one node in one run."""

    def __init__(self, path: Path, *, run: str, site: str) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            path.touch(mode=0o600)
            self._database = sqlite3.connect(
                str(path), isolation_level=None, check_same_thread=False, timeout=60
            )
            self._database.execute(f"PRAGMA page_size={PAGE}")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(SCHEMA)
            known = self.facts()
        except (sqlite3.Error, OSError) as error:
            raise self._trouble(error) from None
        for key, value in {"format": FORMAT, "run": run, "site": site}.items():
            if known.get(key, value) != value:
                raise CheckpointError(
                    f"{path} belongs to {key} «{known[key]}», not to «{value}»: give each study its own folder"
                )
        if "format" not in known:
            self.note(format=FORMAT, run=run, site=site)

    # -- facts ------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        return dict(self._rows("SELECT key, value FROM facts"))

    def note(self, **facts: Any) -> None:
        """Keep small facts about the run."""
        with self._writing() as database:
            database.executemany(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)", [(k, str(v)) for k, v in facts.items()]
            )

    # -- what leaves ------------------------------------------------------------------------------

    def debit(self, parcels: Sequence[Debit]) -> None:
        """Put the parcels of one exchange into the outbox, all or none; those that are there stay as they are."""
        with self._writing() as database:
            for debit in parcels:
                p = debit.parcel
                done = database.execute(
                    "INSERT OR IGNORE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, zeroblob(?))",
                    (p.receiver, p.sequence, p.epoch, p.round, p.phase, debit.mass, len(debit.body), WAITING,
                     len(debit.body)),
                )  # fmt: skip
                _fill(database, "outbox", done, debit.body)
            reach("debit-in-transaction")
        reach("debited")

    def sent_size(self, receiver: str, sequence: int) -> int | None:
        """How large a parcel is that is in the outbox already."""
        rows = self._rows("SELECT size FROM outbox WHERE receiver = ? AND sequence = ?", (receiver, sequence))
        return int(rows[0][0]) if rows else None

    def undelivered(self, receiver: str, most: int = 16) -> list[tuple[int, bytes]]:
        """The oldest parcels that this receiver has not acknowledged."""
        with self._lock:
            rows = self._rows(
                "SELECT sequence, rowid FROM outbox WHERE receiver = ? AND status = 0 ORDER BY sequence LIMIT ?",
                (receiver, most),
            )
            try:
                return [(sequence, _body(self._database, "outbox", row)) for sequence, row in rows]
            except sqlite3.Error as error:
                raise self._trouble(error) from None

    def owed(self) -> dict[str, int]:
        """How many parcels wait for each receiver."""
        return dict(self._rows("SELECT receiver, count(*) FROM outbox WHERE status = 0 GROUP BY receiver"))

    def delivered(self, receiver: str, sequence: int, credited: bool = True) -> None:
        """The receiver has it for good, or refuses it for good; its bytes are not needed any more."""
        reach("acknowledged")
        with self._writing() as database:
            database.execute(
                "UPDATE outbox SET status = ?, body = NULL WHERE receiver = ? AND sequence = ? AND status = 0",
                (DELIVERED if credited else CANCELLED, receiver, sequence),
            )
        reach("delivery-noted")

    def cancel(self, epoch: int) -> None:
        """A new epoch of membership: exchanges that were not delivered in an earlier one never will be."""
        with self._writing() as database:
            database.execute(
                "UPDATE outbox SET status = 2, body = NULL WHERE status = 0 AND epoch < ? AND phase < 2",
                (epoch,),
            )

    def bytes_out(self) -> int:
        """How many bytes of parcels were ever put into the outbox."""
        return int(self.facts().get("bytes_out", 0)) + int(
            self._rows("SELECT coalesce(sum(size), 0) FROM outbox")[0][0]
        )

    # -- what arrives -----------------------------------------------------------------------------

    def credit(self, parcel: Parcel, body: bytes) -> bool:
        """Take a parcel in for good; False if it was here before. Acknowledge after this, never before.

        A sender has one parcel for each phase of a round: another one is refused, or a peer could fill the disk.
        """
        with self._writing() as database:
            done = database.execute(
                "INSERT OR IGNORE INTO inbox VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, zeroblob(?))",
                (parcel.sender, parcel.sequence, parcel.epoch, parcel.round, parcel.phase, mass_of(parcel),
                 len(body)),
            )  # fmt: skip
            _fill(database, "inbox", done, body)
            reach("credit-in-transaction")
            known = database.execute(
                "SELECT 1 FROM inbox WHERE sender = ? AND sequence = ?", (parcel.sender, parcel.sequence)
            ).fetchone()
            if known is None:
                raise BadParcel(f"a second parcel for phase {parcel.phase} of round {parcel.round + 1}")
        reach("credited")
        return done.rowcount == 1

    def waiting(self) -> list[bytes]:
        """Parcels that no exchange was given yet."""
        rows = self._rows(
            "SELECT body FROM inbox WHERE taken_round IS NULL AND body IS NOT NULL ORDER BY sender, sequence"
        )
        return [r[0] for r in rows]

    def heard(self) -> dict[str, int]:
        """The latest round that each peer has sent something in."""
        return dict(self._rows("SELECT sender, max(round) FROM inbox WHERE phase < 255 GROUP BY sender"))

    def take(self, round: int, call: int, ids: Sequence[tuple[str, int]], facts: Mapping[str, Any]) -> None:
        """These parcels were given to this call of this round; `facts` come back when it is replayed."""
        body = json.dumps(dict(facts)).encode()
        with self._writing() as database:
            database.executemany(
                "UPDATE inbox SET taken_round = ?, taken_call = ? WHERE sender = ? AND sequence = ?",
                [(round, call, *i) for i in ids],
            )
            database.execute(
                "INSERT INTO log VALUES (?, ?, 'take', ?, ?)", (round, call, _digest(body), body)
            )
            reach("take-in-transaction")
        reach("taken")

    def taken(self, round: int, call: int) -> tuple[list[bytes], dict[str, Any]] | None:
        """What that call was given before, if it was."""
        facts = self.kept(round, call, "take")
        if facts is None:
            return None
        rows = self._rows(
            "SELECT body FROM inbox WHERE taken_round = ? AND taken_call = ? AND body IS NOT NULL"
            " ORDER BY sender, sequence",
            (round, call),
        )
        return [r[0] for r in rows], json.loads(facts)

    # -- the log of the round ---------------------------------------------------------------------

    def keep(self, round: int, call: int, body: bytes) -> None:
        """The result of a training. There is one for each call, whatever happens."""
        with self._writing() as database:
            database.execute(
                "INSERT INTO log VALUES (?, ?, 'training', ?, ?)", (round, call, _digest(body), body)
            )
            reach("training-in-transaction")
        reach("training-kept")

    def kept(self, round: int, call: int, kind: str) -> bytes | None:
        rows = self._rows("SELECT kind, digest, body FROM log WHERE round = ? AND call = ?", (round, call))
        if not rows:
            return None
        found, digest, body = rows[0]
        if found != kind or _digest(body) != digest:
            raise CheckpointError(
                f"{self.path}: the log of round {round + 1} is damaged, so the round cannot be done again"
                " without a second release; restore the folder from its last backup, but never the ledger"
            )
        return bytes(body)

    def trainings(self) -> list[tuple[int, int]]:
        """Round and call of every training that is in the log."""
        return self._rows("SELECT round, call FROM log WHERE kind = 'training' ORDER BY round, call")

    # -- states -----------------------------------------------------------------------------------

    def close_round(self, done: int, body: bytes) -> None:
        """The state after `done` rounds. What only the states before the last one needed is dropped."""
        before = [r[0] for r in self._rows("SELECT done FROM states WHERE done < ? ORDER BY done", (done,))]
        first = before[-1] if before else 0  # replays start here at the earliest
        with self._writing() as database:
            database.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (done, _digest(body), body))
            database.execute("DELETE FROM states WHERE done < ? OR done > ?", (first, done))
            database.execute("DELETE FROM log WHERE round < ?", (first,))
            database.execute(
                "UPDATE inbox SET body = NULL WHERE taken_round < ? AND body IS NOT NULL", (first,)
            )
            gone = "status > 0 AND round < ?"
            row = database.execute(f"SELECT coalesce(sum(size), 0) FROM outbox WHERE {gone}", (first,))
            earlier = int(self.facts().get("bytes_out", 0)) + int(row.fetchone()[0])
            database.execute(f"DELETE FROM outbox WHERE {gone}", (first,))
            database.execute("INSERT OR REPLACE INTO facts VALUES ('bytes_out', ?)", (str(earlier),))
            reach("round-in-transaction")
        reach("round-kept")

    def latest(self) -> Iterator[tuple[int, bytes]]:
        """The states that are whole, the newest first."""
        for done, digest, body in self._rows("SELECT done, digest, body FROM states ORDER BY done DESC"):
            if _digest(body) == digest:
                yield int(done), bytes(body)

    def newest(self) -> int | None:
        """How many rounds the newest state claims to have behind it, whole or not; None if there is none."""
        found: int | None = self._rows("SELECT max(done) FROM states")[0][0]
        return found

    # -- membership -------------------------------------------------------------------------------

    def leaves(self, site: str, round: int, body: bytes = b"") -> None:
        """A site has said, signed, that it leaves for good before this round; the first word counts."""
        with self._writing() as database:
            database.execute("INSERT OR IGNORE INTO leaving VALUES (?, ?, ?)", (site, round, body))

    def leaving(self) -> dict[str, int]:
        return dict(self._rows("SELECT site, round FROM leaving"))

    # -- inside -----------------------------------------------------------------------------------

    def balance(self) -> dict[str, list[tuple[str, int, int, float]]]:
        """For whoever checks the books: (peer, sequence, round, mass) of what is out, and of what came in."""
        return {
            "out": self._rows("SELECT receiver, sequence, round, mass FROM outbox WHERE status < 2"),
            "in": self._rows(
                "SELECT sender, sequence, coalesce(taken_round, -1), mass FROM inbox ORDER BY sender, sequence"
            ),
        }

    def has_room(self) -> bool:
        """Whether something can be written now."""
        try:
            self.note(probe="x" * 4096)
        except DiskFull:
            return False
        return True

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._database.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._trouble(error) from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: on the disk when it is over, or never begun."""
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except BaseException as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error | OSError):
                    raise self._trouble(error) from None
                raise

    def _trouble(self, error: Exception) -> CheckpointError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        full = code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == errno.ENOSPC
        if full or (code == sqlite3.SQLITE_IOERR and shutil.disk_usage(self.path.parent).free < 2**20):
            return DiskFull(f"{self.path}: the disk is full; free some space, nothing was lost")
        return CheckpointError(f"{self.path} cannot be used ({error}); restore the folder from a backup")


def mass_of(parcel: Parcel) -> float:
    """What a parcel weighs: without a model its mass counts for nothing."""
    return parcel.scalar("mass", 0.0) if parcel.model is not None else 0.0


def _fill(database: sqlite3.Connection, table: str, inserted: sqlite3.Cursor, body: bytes) -> None:
    """Write a body into the row that was just inserted, piece by piece: bound to a statement it would be copied twice."""
    if inserted.rowcount == 1 and body and inserted.lastrowid is not None:
        with database.blobopen(table, "body", inserted.lastrowid) as blob:
            for at in range(0, len(body), PIECE):
                blob.write(body[at : at + PIECE])


def _body(database: sqlite3.Connection, table: str, row: int) -> bytes:
    with database.blobopen(table, "body", row, readonly=True) as blob:
        return blob.read()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
