"""The durable state of a node in one SQLite file: outbox, inbox, the log of the round, and the last states.

Large bodies (models) are files next to it (`blob_files.py`); the row holds the name of the file.

A round can be done again from the state before it: what cannot be repeated (a training, which is paid for
and draws fresh noise; parcels that were taken) is in the log under (round, call) and is read back instead.

| transaction | what it holds |
|---|---|
| keep | the result of a training, or of a masked sum: once the ledger has marked a training too, it may leave |
| debit | the exact bytes of all parcels of one exchange; a parcel is always sent again from here |
| credit | a parcel that arrived and its number; it is acknowledged after this, never before |
| take | which parcels an exchange was given |
| close | the state after the round; parcels that it has absorbed lose their bodies |

So a parcel's mass is at any instant in exactly one place: in the state of its sender, in the outbox and not in the
receiver's inbox, in that inbox, or in the state of the receiver. The two newest states stay, with
the log of the rounds after the older one: if the newest is damaged, the round before is replayed to the bit.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from confrere.core.errors import CheckpointError
from confrere.core.parcel import Parcel
from confrere.node import equivocation
from confrere.node.blob_files import BlobStore
from confrere.node.database import Database
from confrere.node.equivocation import LEAVING, Equivocation
from confrere.node.failpoints import reach
from confrere.node.shortage import DiskFull, Shortage, recognising_shortages
from confrere.transport import body as bodies
from confrere.transport.body import Body
from confrere.transport.wire import Sealed, header_of

FORMAT = "confrere-node-1"
WAITING, DELIVERED, CANCELLED = 0, 1, 2

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
CREATE INDEX IF NOT EXISTS inbox_kept ON inbox (sender) WHERE body IS NOT NULL;
CREATE INDEX IF NOT EXISTS inbox_waiting ON inbox (round) WHERE taken_round IS NULL;
CREATE TABLE IF NOT EXISTS log (
  round INTEGER NOT NULL, call INTEGER NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (round, call)
);
CREATE TABLE IF NOT EXISTS states (done INTEGER PRIMARY KEY, digest TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS signed (
  sender TEXT NOT NULL, sequence INTEGER NOT NULL, header TEXT NOT NULL, PRIMARY KEY (sender, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS equivocations (
  sender TEXT NOT NULL, sequence INTEGER NOT NULL, first TEXT NOT NULL, second TEXT NOT NULL,
  PRIMARY KEY (sender, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leaving (site TEXT PRIMARY KEY, round INTEGER NOT NULL, body BLOB NOT NULL);
"""

TABLES = ("outbox", "inbox", "log", "states")
"""Those with bodies: bytes, or as text the name of a file."""


class Store:
    """The durable side of one node in one run."""

    def __init__(self, path: Path, *, run: str, site: str) -> None:
        self.path = path
        self._database = Database(path, SCHEMA)
        self._wanted = 0
        self._rows, self._writing = self._database.rows, self._database.writing
        with self._database.translating_errors():
            self.blobs = BlobStore(path.parent / "parcels")
        known = self.facts()
        for key, value in {"format": FORMAT, "run": run, "site": site}.items():
            if known.get(key, value) != value:
                raise CheckpointError(
                    f"{path} belongs to {key} «{known[key]}», not to «{value}»: give each study its own folder (home ="
                    ' "node-2" in site.toml); the ledger is continued, and runs of version 0.1 begin anew'
                )
        if "format" not in known:
            self.note(format=FORMAT, run=run, site=site)

    def sweep(self) -> None:
        """Remove files that a crash has left behind. Only for the node whose folder it is, before it begins."""
        query = " UNION ALL ".join(f"SELECT body FROM {t} WHERE typeof(body) = 'text'" for t in TABLES)
        named = {row[0] for row in self._rows(query)}
        with self._database.translating_errors():
            self.blobs.sweep(named)

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

    def debit(self, parcels: Sequence[Sealed]) -> None:
        """Put the parcels of one exchange into the outbox, all or none; those that are there stay as they are."""
        unused = []
        with self._stored(*parcels) as bodies:
            reach("debit-written")
            with self._writing() as database:
                for sealed, body in zip(parcels, bodies, strict=True):
                    p = sealed.parcel
                    done = database.execute(
                        "INSERT OR IGNORE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (p.receiver, p.sequence, p.epoch, p.round, p.phase, mass_of(p), sealed.size, WAITING,
                         body),
                    )  # fmt: skip
                    unused += [] if done.rowcount else [body]
                    if p.phase < LEAVING:
                        _raise_to(database, f"sent:{p.receiver}", p.sequence)
                    if done.rowcount and (mass := mass_of(p)):
                        _add_to(database, f"mass_out:{p.epoch}", mass)
                reach("debit-in-transaction")
        reach("debited")
        self._drop(unused)

    def sent_size(self, receiver: str, sequence: int) -> int | None:
        """How large a parcel is that is in the outbox already."""
        rows = self._rows("SELECT size FROM outbox WHERE receiver = ? AND sequence = ?", (receiver, sequence))
        return int(rows[0][0]) if rows else None

    def undelivered(self, receiver: str, most: int = 16) -> list[tuple[int, Body]]:
        """The oldest parcels that this receiver has not acknowledged, after the message that this site leaves.

        A receiver that has the parcel of a site's last round then knows that it is the last one.
        """
        rows = self._rows(
            "SELECT sequence, size, body FROM outbox WHERE receiver = ? AND status = 0"
            " ORDER BY phase < ?, sequence LIMIT ?",
            (receiver, LEAVING, most),
        )
        return [
            (number, Body.of(kept) if isinstance(kept, bytes) else Body(size, file=self.blobs.folder / kept))
            for number, size, kept in rows
        ]

    def highest_sent(self, receiver: str) -> int:
        """The highest number that a parcel to this receiver was ever given; 0 if there was none."""
        return int(self.facts().get(f"sent:{receiver}", 0))

    def owes(self, receiver: str, sequence: int) -> bool:
        """Whether this parcel still waits to be acknowledged."""
        which = "receiver = ? AND sequence = ? AND status = 0"
        return bool(self._rows(f"SELECT 1 FROM outbox WHERE {which}", (receiver, sequence)))

    def owed(self) -> dict[str, int]:
        """How many parcels wait for each receiver."""
        return dict(self._rows("SELECT receiver, count(*) FROM outbox WHERE status = 0 GROUP BY receiver"))

    def delivered(self, receiver: str, sequence: int, credited: bool = True) -> None:
        """The receiver has it for good, or refuses it for good; its bytes are not needed any more."""
        reach("acknowledged")
        with self._writing() as database:
            which = "outbox WHERE receiver = ? AND sequence = ? AND status = 0", (receiver, sequence)
            gone = _named(database, *which)
            database.execute(
                "UPDATE outbox SET status = ?, body = NULL WHERE receiver = ? AND sequence = ? AND status = 0",
                (DELIVERED if credited else CANCELLED, receiver, sequence),
            )
        reach("delivery-noted")
        self._drop(gone)

    def count_bytes(self, size: int) -> None:
        """Count a message that leaves without passing through the outbox."""
        with self._writing() as database:
            total = str(size + int(self.facts().get("bytes_out", 0)))
            database.execute("INSERT OR REPLACE INTO facts VALUES ('bytes_out', ?)", (total,))

    def bytes_out(self) -> int:
        """How many bytes of parcels and of messages of masked sums were ever sent, or are in the outbox."""
        in_outbox = self._rows("SELECT coalesce(sum(size), 0) FROM outbox")[0][0]
        return int(self.facts().get("bytes_out", 0)) + int(in_outbox)

    # -- what arrives -----------------------------------------------------------------------------

    def credit(self, parcel: Parcel, body: Body, keep: bool = True) -> bool:
        """Take a parcel in for good; False if it was here before. Acknowledge after this, never before.

        Without `keep` only its number and its mass stay: no further round will look at it.

        A sender has one parcel for each phase of a round: another one is refused, or a peer could fill the disk.
        The signed header of each parcel stays after its body is gone: a sender that signs other content under a used
        number, or for a used phase, is caught with both signatures (`Equivocation`).
        """
        header = header_of(body)
        conflict: tuple[str, bool] | None = None
        with self._stored(body) as (kept,):
            reach("credit-written")
            with self._writing() as database:
                done = database.execute(
                    "INSERT OR IGNORE INTO inbox VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, ?)",
                    (parcel.sender, parcel.sequence, parcel.epoch, parcel.round, parcel.phase, mass_of(parcel),
                     kept if keep else None),
                )  # fmt: skip
                reach("credit-in-transaction")
                if done.rowcount:
                    database.execute(
                        "INSERT OR REPLACE INTO signed VALUES (?, ?, ?)",
                        (parcel.sender, parcel.sequence, header),
                    )
                else:
                    conflict = equivocation.conflict(database, parcel, header)
                counts = conflict is None and parcel.phase < LEAVING
                if counts and _raise_to(database, f"heard:{parcel.sender}", parcel.sequence):
                    database.execute(
                        "INSERT OR REPLACE INTO facts VALUES (?, ?)", (f"last:{parcel.sender}", header)
                    )
            if conflict is not None:
                first, new = conflict
                raise Equivocation(
                    f"its sender has signed another parcel {parcel.sequence} (round {parcel.round + 1}, phase"
                    f" {parcel.phase}); both signatures are kept",
                    (first, header) if new else None,
                )
        reach("credited")
        if not (done.rowcount and keep):
            self._drop([kept])
        return done.rowcount == 1

    def kept_of(self, sender: str) -> int:
        """How many parcels of this sender are kept whole."""
        query = "SELECT count(*) FROM inbox WHERE sender = ? AND body IS NOT NULL AND phase < ?"
        return int(self._rows(query, (sender, LEAVING))[0][0])

    def mass_flow(self, epoch: int, round: int) -> tuple[dict[str, float], float]:
        """The mass that each peer has claimed for this round or a later one, and what an epoch has brought in all.

        That is what all peers have claimed, without what has left and what was cut (`cut_mass`).
        """
        query = "SELECT sender, sum(mass), sum(iif(round >= ?, mass, 0)) FROM inbox WHERE epoch = ? GROUP BY sender"
        rows, facts = self._rows(query, (round, epoch)), self.facts()
        gone = float(facts.get(f"mass_out:{epoch}", 0.0))
        gone += sum(float(cut) for key, cut in facts.items() if key.startswith(f"mass_cut:{epoch}:"))
        return {sender: recent for sender, _, recent in rows}, sum(came for _, came, _ in rows) - gone

    def cut_mass(self, epoch: int, round: int, amount: float) -> None:
        """Record that received mass is credited below its claim (`PeersRound.exchange`)."""
        self.note(**{f"mass_cut:{epoch}:{round}": repr(amount)})

    def equivocations(self) -> dict[str, int]:
        """For each sender, how many numbers it has signed two different parcels under, up to `PROOFS`."""
        return dict(self._rows("SELECT sender, count(*) FROM equivocations GROUP BY sender"))

    def waiting(self) -> Iterator[Body]:
        """Parcels that no exchange was given yet."""
        for (body,) in self._rows(
            "SELECT body FROM inbox WHERE taken_round IS NULL AND body IS NOT NULL ORDER BY sender, sequence"
        ):
            yield self.body(body)

    def latest_rounds(self) -> dict[str, int]:
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

    def taken(self, round: int, call: int) -> tuple[list[Body], dict[str, Any]] | None:
        """What that call was given before, if it was."""
        facts = self.kept(round, call, "take")
        if facts is None:
            return None
        rows = self._rows(
            "SELECT body FROM inbox WHERE taken_round = ? AND taken_call = ? AND body IS NOT NULL"
            " ORDER BY sender, sequence",
            (round, call),
        )
        return [self.body(r[0]) for r in rows], json.loads(facts)

    # -- the log of the round ---------------------------------------------------------------------

    def keep(self, round: int, call: int, body: bytes, kind: str = "training") -> None:
        """The result of a training, or of a masked sum. There is exactly one for each call."""
        with self._stored(Body.of(body)) as (kept,):
            reach("training-written")
            with self._writing() as database:
                database.execute(
                    "INSERT INTO log VALUES (?, ?, ?, ?, ?)", (round, call, kind, _digest(body), kept)
                )
                reach("training-in-transaction")
        reach("training-kept")

    def kept(self, round: int, call: int, kind: str) -> bytes | None:
        rows = self._rows("SELECT kind, digest, body FROM log WHERE round = ? AND call = ?", (round, call))
        if not rows:
            return None
        found, digest, kept = rows[0]
        body = self._whole(kept, digest)
        if found != kind or body is None:
            raise CheckpointError(
                f"{self.path}: the log of round {round + 1} is damaged, so the round cannot be done again"
                " without a second release; restore the folder from its last backup, but never the ledger"
            )
        return body

    def forget(self, round: int, call: int) -> None:
        """Drop the result of a training that must not leave any more."""
        with self._writing() as database:
            gone = _named(database, "log WHERE round = ? AND call = ?", (round, call))
            database.execute("DELETE FROM log WHERE round = ? AND call = ?", (round, call))
        self._drop(gone)

    # -- states -----------------------------------------------------------------------------------

    def close_round(self, done: int, body: bytes) -> None:
        """The state after `done` rounds. What only the states before the last one needed is dropped."""
        before = [r[0] for r in self._rows("SELECT done FROM states WHERE done < ? ORDER BY done", (done,))]
        first = before[-1] if before else 0  # replays start here at the earliest
        gone = "status > 0 AND round < ?"
        with self._stored(Body.of(body)) as (kept,):
            reach("round-written")
            with self._writing() as database:
                dropped = [
                    *_named(database, "states WHERE done < ? OR done >= ?", (first, done)),
                    *_named(database, "log WHERE round < ?", (first,)),
                    *_named(database, "inbox WHERE taken_round < ?", (first,)),
                    *_named(database, f"outbox WHERE {gone}", (first,)),
                ]
                database.execute(
                    "INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (done, _digest(body), kept)
                )
                database.execute("DELETE FROM states WHERE done < ? OR done > ?", (first, done))
                database.execute("DELETE FROM log WHERE round < ?", (first,))
                database.execute(
                    "UPDATE inbox SET body = NULL WHERE taken_round < ? AND body IS NOT NULL", (first,)
                )
                row = database.execute(f"SELECT coalesce(sum(size), 0) FROM outbox WHERE {gone}", (first,))
                earlier = int(self.facts().get("bytes_out", 0)) + int(row.fetchone()[0])
                database.execute(f"DELETE FROM outbox WHERE {gone}", (first,))
                database.execute("INSERT OR REPLACE INTO facts VALUES ('bytes_out', ?)", (str(earlier),))
                reach("round-in-transaction")
        reach("round-kept")
        self._drop(dropped)

    def latest(self) -> Iterator[tuple[int, bytes]]:
        """The states that are whole, the newest first."""
        for done, digest, kept in self._rows("SELECT done, digest, body FROM states ORDER BY done DESC"):
            body = self._whole(kept, digest)
            if body is not None:
                yield int(done), body

    def newest(self) -> int | None:
        """How many rounds the newest state claims to have behind it, whole or not; None if there is none."""
        return self._rows("SELECT max(done) FROM states")[0][0]  # type: ignore[no-any-return]

    # -- membership -------------------------------------------------------------------------------

    def leaves(self, site: str, round: int, body: bytes = b"") -> bool:
        """Keep the signed record that a site leaves for good before this round; False if it is known.

        Of two records with different rounds the earlier counts, so that all members who have seen both agree; the
        proof that their signer contradicted itself is kept (`Equivocation`).
        """
        with self._writing() as database:
            known = database.execute("SELECT round, body FROM leaving WHERE site = ?", (site,)).fetchone()
            if known is None or round < known[0]:
                database.execute("INSERT OR REPLACE INTO leaving VALUES (?, ?, ?)", (site, round, body))
            if known is None or round == known[0] or not (known[1] and body):
                return known is None
            first, second = (header_of(Body.of(b)) for b in (known[1], body))
            sequence = json.loads(second)["sequence"]
            new = equivocation.keep_proof(database, site, sequence, first, second)
        raise Equivocation(
            f'"{site}" has signed that it leaves in two different rounds', (first, second) if new else None
        )

    def leave_messages(self) -> list[tuple[str, bytes]]:
        """The signed leave messages of other sites."""
        return self._rows("SELECT site, body FROM leaving WHERE length(body) > 0 ORDER BY site")

    def leaving(self) -> dict[str, int]:
        return dict(self._rows("SELECT site, round FROM leaving"))

    # -- inside -----------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether something can be written now, and what there was no room for last."""
        if shutil.disk_usage(self.path.parent).free < 2 * self._wanted:
            return False
        try:
            self.note(probe="x" * 4096)
        except Shortage:
            return False
        return True

    def body(self, kept: bytes | str) -> Body:
        """What a row holds of a body, as a body."""
        with self._database.translating_errors():
            return Body.of(kept) if isinstance(kept, bytes) else self.blobs.body(kept)

    def close(self) -> None:
        self._database.close()

    def _whole(self, kept: bytes | str, digest: str) -> bytes | None:
        """The bytes, if they are those that were written."""
        try:
            with recognising_shortages(self.path):
                body = self.body(kept).read()
        except Shortage:  # it may be whole
            raise
        except (CheckpointError, OSError):
            return None
        return body if _digest(body) == digest else None

    @contextmanager
    def _stored(self, *what: Sealed | Body) -> Iterator[list[bytes | str]]:
        """Bodies as their rows hold them; files are on the disk before the transaction in here begins."""
        held: list[bytes | str] = []
        try:
            with self._database.translating_errors():
                for one in what:
                    if one.size <= bodies.IN_MEMORY:
                        held.append(b"".join(one.pieces()))
                    elif isinstance(one, Body) and one.file is not None:
                        held.append(self.blobs.adopt(one.file))
                    else:
                        held.append(self.blobs.put(one.pieces()))
                if any(isinstance(kept, str) for kept in held):
                    self.blobs.settle()
            yield held
        except Exception as error:
            if isinstance(error, DiskFull):
                self._wanted = sum(one.size for one in what)
            self._drop(held)
            raise

    def _drop(self, kept: Sequence[bytes | str]) -> None:
        with self._database.translating_errors():
            self.blobs.drop(name for name in kept if isinstance(name, str))


def mass_of(parcel: Parcel) -> float:
    """The mass of a parcel; 0 without a model."""
    return parcel.scalar("mass", 0.0).value if parcel.model is not None else 0.0


def _raise_to(database: Connection, key: str, number: int) -> bool:
    """Let a fact be at least this number; whether it was less."""
    row = database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    if row is not None and int(row[0]) >= number:
        return False
    database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, str(number)))
    return True


def _add_to(database: Connection, key: str, amount: float) -> None:
    """Add to a fact that is a number."""
    row = database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    before = float(row[0]) if row is not None else 0.0
    database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, repr(before + amount)))


def _named(database: Connection, which: str, values: Sequence[Any]) -> list[str]:
    """The files that these rows name."""
    place, _, condition = which.partition(" WHERE ")
    query = f"SELECT body FROM {place} WHERE ({condition}) AND typeof(body) = 'text'"
    return [row[0] for row in database.execute(query, values)]


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
