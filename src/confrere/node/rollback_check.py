"""Remember the highest known entry of each ledger, outside the ledger's file, to detect rollback.

A ledger that is deleted, or put back from an old copy, looks right from inside. The node's store remembers the site's own
ledgers for its run, a file beside the identity key for all runs. That file also keeps the highest mark that each peer has
signed of its ledgers, to be returned to it. An owner who removes these too is noticed by peers alone.

A contradiction stays. A site that was shown a mark with its own signature that its ledger does not contain keeps that mark
and checks it at every start, until the right ledger is back. A site that holds two signatures of a peer for one entry of a
ledger with different contents keeps both and never accepts that ledger again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from confrere.core.errors import LedgerRolledBack
from confrere.core.parcel import LedgerMark
from confrere.node.database import Database
from confrere.node.store import Store
from confrere.transport.ledger_marks import MOST_LEDGERS

FILE = "witness.sqlite"
SCHEMA = """
CREATE TABLE IF NOT EXISTS ledgers (id TEXT PRIMARY KEY, counter INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks (
  site TEXT NOT NULL, ledger TEXT NOT NULL, counter INTEGER NOT NULL, head TEXT NOT NULL, signature TEXT NOT NULL,
  PRIMARY KEY (site, ledger)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rollbacks (
  ledger TEXT NOT NULL, counter INTEGER NOT NULL, head TEXT NOT NULL, signature TEXT NOT NULL,
  PRIMARY KEY (ledger, counter, head)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forks (
  site TEXT NOT NULL, ledger TEXT NOT NULL, counter INTEGER NOT NULL,
  head TEXT NOT NULL, signature TEXT NOT NULL, other_head TEXT NOT NULL, other_signature TEXT NOT NULL,
  PRIMARY KEY (site, ledger)
) WITHOUT ROWID;
"""
FACT = "ledger:"


class RollbackCheck:
    """The highest entry of each ledger that this site has seen. `folder` is that of the keys, or the node's own."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._database = Database(folder / FILE, SCHEMA)

    # -- the site's own ledgers -------------------------------------------------------------------

    def seen(self) -> dict[str, int]:
        facts = self._store.facts().items()
        found = {key.removeprefix(FACT): int(value) for key, value in facts if key.startswith(FACT)}
        for id, counter in self._database.rows("SELECT id, counter FROM ledgers"):
            found[id] = max(counter, found.get(id, 0))
        return found

    def note(self, id: str, counter: int) -> None:
        """Remember an entry, durably; called before what it pays for is computed."""
        with self._database.writing() as database:
            database.execute(
                "INSERT INTO ledgers VALUES (?, ?) ON CONFLICT DO UPDATE SET counter = max(counter, excluded.counter)",
                (id, counter),
            )
        self._store.note(**{FACT + id: counter})

    def refuse_missing(self, path: Path) -> None:
        """Refuse to start a new ledger if a known one is missing."""
        if seen := self.seen():
            raise gone(path, f"this site has charged {max(seen.values())} entries to it")

    def refuse_rollback(self, path: Path, counters: Mapping[str, int]) -> None:
        """Refuse a file that lacks a ledger, or entries, that this site has seen."""
        for id, seen in self.seen().items():
            if id not in counters:
                raise LedgerRolledBack(
                    f"the ledger {path} is not the one that this site has charged {seen} entries to; put that one back,"
                    ' or name its place in site.toml (ledger = "…"). See «Backup and restore» in docs/operations.md'
                )
            if counters[id] < seen:
                raise LedgerRolledBack(
                    f"the ledger {path} ends at entry {counters[id]}, but this site has seen entry {seen}: it was"
                    " rolled back. Restore the latest copy; training on an older one would spend privacy twice"
                )

    def keep_rollback(self, mark: LedgerMark) -> None:
        """Remember a mark with this site's signature that its ledger does not contain."""
        with self._database.writing() as database:
            values = (mark.ledger, mark.counter, mark.head, mark.signature)
            database.execute("INSERT OR IGNORE INTO rollbacks VALUES (?, ?, ?, ?)", values)

    def rollbacks(self) -> tuple[LedgerMark, ...]:
        """The marks that a ledger of this site was found not to contain; the right one contains them."""
        query = "SELECT ledger, counter, head, signature FROM rollbacks ORDER BY counter"
        return tuple(LedgerMark(*row) for row in self._database.rows(query))

    # -- those of its peers -----------------------------------------------------------------------

    def keep(self, peer: Ed25519PublicKey, mark: LedgerMark) -> None:
        """Remember a mark that the peer has signed, unless a higher one of the same ledger is known.

        Marks of its first ledgers stay: a site could otherwise push out what it has signed by signing more. A mark of a
        ledger that has forked is not kept: what the peer has to be shown is the one from before.
        """
        site, known = _name(peer), {m.ledger: m for m in self.marks(peer)}
        if self.note_fork(peer, mark) or (mark.ledger not in known and len(known) >= MOST_LEDGERS):
            return
        if mark.ledger in known and known[mark.ledger].counter >= mark.counter:
            return
        with self._database.writing() as database:
            database.execute(
                "INSERT INTO marks VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET counter = excluded.counter,"
                " head = excluded.head, signature = excluded.signature WHERE excluded.counter > counter",
                (site, mark.ledger, mark.counter, mark.head, mark.signature),
            )

    def marks(self, peer: Ed25519PublicKey) -> tuple[LedgerMark, ...]:
        """The highest mark of each ledger of a peer, from any run."""
        query = "SELECT ledger, counter, head, signature FROM marks WHERE site = ? ORDER BY ledger"
        return tuple(LedgerMark(*row) for row in self._database.rows(query, (_name(peer),)))

    def note_fork(self, peer: Ed25519PublicKey, mark: LedgerMark) -> bool:
        """Whether the peer has ever signed two different entries of one number in this ledger, with this mark or before.

        Kept durably. An honest site cannot: an entry is on its disk before it is signed, and entries do not change.
        """
        site = _name(peer)
        if self._database.rows("SELECT 1 FROM forks WHERE site = ? AND ledger = ?", (site, mark.ledger)):
            return True
        for known in self.marks(peer):
            if (known.ledger, known.counter) == (mark.ledger, mark.counter) and known.head != mark.head:
                values = (known.head, known.signature, mark.head, mark.signature)
                with self._database.writing() as database:
                    database.execute(
                        "INSERT OR IGNORE INTO forks VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (site, mark.ledger, mark.counter, *values),
                    )
                return True
        return False

    def close(self) -> None:
        self._database.close()


def _name(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()


def gone(path: Path, why: str) -> LedgerRolledBack:
    """Advice when a known ledger is missing."""
    return LedgerRolledBack(
        f"the ledger {path} is missing, and {why}. Put the newest copy back; if there is none, what was spent is unknown:"
        " see «Backup and restore» in docs/operations.md"
    )
