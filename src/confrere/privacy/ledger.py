"""The ledger of a data set: what was spent on it, written before it is spent, and never more than the budget.

One ledger per data set; all studies on it compose. An entry holds integer counts of mechanism events.
Entries are chained by SHA-256 from the fingerprint of the data set, so an edited ledger, or one of other
data, is noticed when it is opened. Somebody who replaces the whole file by an older copy is not noticed
from inside: peers keep the counter and the head that they saw last, and `refuse_rollback` compares.

A spend is committed with SQLite's `synchronous=FULL` before it returns. A crash between the spend and its use
therefore over-counts, never under-counts. Several processes may share a file: the check and the entry are
one `BEGIN IMMEDIATE` transaction, so two of them cannot both take the last step.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confrere.core.errors import BudgetExhausted, PrivacyError
from confrere.privacy.accounting import capacity, check_delta, check_epsilon, epsilon
from confrere.privacy.charges import Accountant, Charge, Guarantee, Unit, rounded_up

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
class Budget:
    """How much may be spent on a data set in all: ε at this δ.

    >>> str(Budget(3, 1e-6))
    'ε = 3 (δ = 1e-06)'
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)

    def __str__(self) -> str:
        return f"ε = {self.epsilon:g} (δ = {self.delta:g})"


def strictest(*budgets: Budget | None) -> Budget | None:
    """The budget that keeps to all of these: a site's own caps always win over a study's wishes."""
    given = [b for b in budgets if b is not None]
    return Budget(min(b.epsilon for b in given), min(b.delta for b in given)) if given else None


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
        return {**vars(self), "charges": [[c.event, c.count] for c in self.charges]}


def genesis(dataset: str) -> str:
    """The hash that the first entry of a data set's ledger is chained to."""
    return _digest({"confrere-ledger": 1, "dataset": dataset})


class Ledger:
    """What was spent on one data set.

    >>> from confrere.privacy.charges import gaussian
    >>> ledger = Ledger(dataset="thyroid")
    >>> ledger.spend([gaussian(20.0, count=10)], key="study/round 0", budget=Budget(3, 1e-6)).counter
    1
    """

    def __init__(
        self, path: Path | str | None = None, *, dataset: str = "simulation", accountant: Accountant = "pld"
    ) -> None:
        self.dataset, self.accountant = dataset, accountant
        self._where = "the ledger in memory" if path is None else f"the ledger {path}"
        self._timed = path is not None
        self._added = True
        """Whether there may be entries that were not taken in yet."""
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._counter, self._head = 0, genesis(dataset)
        try:
            if path is not None:
                Path(path).touch(mode=0o600)
            self._database = sqlite3.connect(
                str(path or ":memory:"), isolation_level=None, check_same_thread=False, timeout=60
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._open()
        except (sqlite3.Error, OSError) as error:
            raise PrivacyError(
                f"{self._where} cannot be read ({error}); restore it, or ask your peers"
            ) from None

    # -- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """How many entries there are: a number that only grows, handed to peers."""
        if self._timed:  # a file may have been written to by another process
            self._catch_up()
        return self._counter

    @property
    def head(self) -> str:
        """The hash of the last entry; it fixes all entries before."""
        self._catch_up()
        return self._head

    def charges(self) -> tuple[Charge, ...]:
        """Everything that was spent, one count per event."""
        self._catch_up()
        return tuple(Charge(event, count) for event, count in sorted(self._counts.items()))

    def epsilon(self, delta: float, accountant: Accountant | None = None) -> float:
        """The ε of everything that was spent, at this δ."""
        return epsilon(self.charges(), delta, accountant or self.accountant)

    def guarantee(self, delta: float) -> Guarantee:
        """What everything that was spent amounts to, for the weakest unit and the weakest claim among it."""
        charges = self.charges()
        unit: Unit = "patient" if charges and all(c.unit == "patient" for c in charges) else "record"
        return Guarantee(self.epsilon(delta), delta, unit, self.accountant, all(c.proven for c in charges))

    def remaining(self, budget: Budget, charge: Charge) -> int:
        """How many more times `charge` (one step, or one round of steps) fits into the budget."""
        self._catch_up()
        others = tuple(c for c in self.charges() if c.event != charge.event)
        most = capacity(charge.event, others, budget.epsilon, budget.delta, self.accountant)
        return max(most - self._counts.get(charge.event, 0), 0) // max(charge.count, 1)

    def entries(self) -> list[dict[str, Any]]:
        """All entries as plain JSON values, for a checkpoint or an auditor."""
        rows = self._database.execute("SELECT * FROM entries ORDER BY counter")
        return [_entry(row).record() for row in rows]

    # -- spending ---------------------------------------------------------------------------------

    def spend(
        self, charges: Sequence[Charge], *, key: str, budget: Budget | None, replay: bool = False
    ) -> Entry:
        """Write a charge durably, before the caller computes what it pays for.

        Refuses with BudgetExhausted, and writes nothing, if the total would exceed the budget. Spending
        again under the same key is charged again, since a second release tells more. Only a seeded
        simulation, which would compute the identical release, may pass `replay=True`: it is given the first
        entry and charged nothing.
        """
        charges = tuple(c for c in charges if c.count)
        if not key or not charges:
            raise PrivacyError("a spend needs a key and at least one step to charge")
        with self._writing() as database:
            if replay and (row := self._find(key)) is not None:
                entry = _entry(row)
                if entry.charges != charges:
                    raise PrivacyError(
                        f"{self._where} has other charges under «{key}»: this is not a replay of it"
                    )
                return entry
            if budget is not None:
                self._refuse_overspending(charges, budget, key)
            at = datetime.now(UTC).isoformat(timespec="seconds") if self._timed else ""
            body = {"counter": self._counter + 1, "key": key, "charges": _plain(charges), "at": at}
            entry = Entry(
                self._counter + 1, key, charges, at, self._head, _digest({**body, "previous": self._head})
            )
            database.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                (entry.counter, key, json.dumps(_plain(charges)), at, entry.previous, entry.hash),
            )
            database.execute("UPDATE ledger SET counter = ?, head = ?", (entry.counter, entry.hash))
            self._added = True
        self._catch_up()
        return entry

    def refuse_rollback(self, counter: int, head: str | None = None) -> None:
        """Refuse to go on if peers saw a later state of this ledger, or another history of it."""
        own = self.counter
        if own < counter:
            raise PrivacyError(
                f"{self._where} stands at entry {own}, but peers saw entry {counter}: it was rolled back. "
                "Restore the latest copy; training on an older one would spend privacy twice"
            )
        if head is None:
            return
        row = self._database.execute("SELECT hash FROM entries WHERE counter = ?", (counter,)).fetchone()
        if (row[0] if row else genesis(self.dataset)) != head:
            raise PrivacyError(
                f"{self._where} has another entry {counter} than peers saw: its history was rewritten. "
                "Restore the copy that was in use then"
            )

    @classmethod
    def restore(
        cls,
        entries: Sequence[Mapping[str, Any]],
        *,
        dataset: str = "simulation",
        accountant: Accountant = "pld",
    ) -> Ledger:
        """A ledger in memory from the entries of a checkpoint; an edited one is refused."""
        ledger = cls(dataset=dataset, accountant=accountant)
        with ledger._writing() as database:
            for fields in entries:
                try:
                    row = (*(fields[k] for k in ("counter", "key")), json.dumps(fields["charges"]))
                    row = (*row, *(fields[k] for k in ("at", "previous", "hash")))
                except (KeyError, TypeError) as error:
                    raise PrivacyError(f"an entry of the saved ledger cannot be read: {error}") from None
                ledger._take(ledger._verified(row))
                database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
            database.execute("UPDATE ledger SET counter = ?, head = ?", (ledger._counter, ledger._head))
        return ledger

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------

    def _open(self) -> None:
        self._database.executescript(SCHEMA)
        with self._writing(fresh=True) as database:
            row = database.execute("SELECT dataset FROM ledger").fetchone()
            if row is None:
                if database.execute("SELECT count(*) FROM entries").fetchone()[0]:
                    raise PrivacyError(
                        f"{self._where} was edited: its header is missing. Restore a true copy"
                    )
                database.execute("INSERT INTO ledger VALUES (1, ?, 0, ?)", (self.dataset, self._head))
            elif row[0] != self.dataset:
                raise PrivacyError(
                    f"{self._where} belongs to the data set «{row[0]}», not to «{self.dataset}»: "
                    "give each data set its own ledger"
                )
        self._catch_up()

    @contextmanager
    def _writing(self, fresh: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction that holds the ledger for itself; all or nothing."""
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                if not fresh:
                    self._catch_up()
                yield self._database
                self._database.execute("COMMIT")
            except BaseException as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise PrivacyError(
                        f"{self._where} could not be written ({error}): nothing was spent"
                    ) from None
                raise

    def _catch_up(self) -> None:
        """Verify and take in the entries that this or another process added."""
        if not (self._timed or self._added):  # in memory nobody else adds any
            return
        with self._lock:
            rows = self._database.execute(
                "SELECT e.*, l.counter, l.head FROM ledger l LEFT JOIN entries e ON e.counter > ? "
                "ORDER BY e.counter",
                (self._counter,),
            ).fetchall()
            for row in rows:
                if row[0] is not None:
                    self._take(self._verified(row[:6]))
            if rows and rows[0][6:] != (self._counter, self._head):
                raise PrivacyError(
                    f"{self._where} was edited: it should end with entry {rows[0][6]}, and entry "
                    f"{self._counter} is its last. Restore a true copy"
                )
            self._added = False

    def _verified(self, row: tuple[Any, ...]) -> Entry:
        try:
            entry = _entry(row)
            body = {k: v for k, v in entry.record().items() if k != "hash"}
            if (
                entry.counter == self._counter + 1
                and entry.previous == self._head
                and _digest(body) == entry.hash
            ):
                return entry
        except (ValueError, TypeError, PrivacyError):
            pass
        raise PrivacyError(
            f"{self._where} was edited, or belongs to other data: entry {self._counter + 1} does not follow "
            "from the one before. Restore a true copy"
        )

    def _take(self, entry: Entry) -> None:
        self._counter, self._head = entry.counter, entry.hash
        for charge in entry.charges:
            self._counts[charge.event] = self._counts.get(charge.event, 0) + charge.count

    def _find(self, key: str) -> tuple[Any, ...] | None:
        query = "SELECT * FROM entries WHERE key = ? ORDER BY counter LIMIT 1"
        row: tuple[Any, ...] | None = self._database.execute(query, (key,)).fetchone()
        return row

    def _refuse_overspending(self, charges: tuple[Charge, ...], budget: Budget, key: str) -> None:
        if len(charges) == 1 and self.remaining(budget, charges[0]):
            return
        before = self.charges()
        after = epsilon([*before, *charges], budget.delta, self.accountant)
        if after <= budget.epsilon:
            return
        if after == float("inf"):
            raise PrivacyError(f"«{key}» adds no noise, and so keeps to no budget ({budget}); set the noise")
        spent = epsilon(before, budget.delta, self.accountant)
        raise BudgetExhausted(
            f"{self._where} has spent ε = {rounded_up(spent)} of {budget.epsilon:g} (δ = {budget.delta:g}); "
            f"«{key}» would bring it to ε = {rounded_up(after)}. Nothing was computed. "
            "Stop here, add more noise, or raise the site's cap"
        )


def _entry(row: tuple[Any, ...]) -> Entry:
    charges = tuple(Charge(event, count) for event, count in json.loads(row[2]))
    return Entry(row[0], row[1], charges, row[3], row[4], row[5])


def _plain(charges: Sequence[Charge]) -> list[list[str | int]]:
    return [[c.event, c.count] for c in charges]


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
