"""The ledger of a patient population: every charge is recorded before it is spent, and the budget is never exceeded.

One ledger per institution and population; all studies and all exports of its records compose. An entry holds integer
counts of mechanism events. Entries are chained by SHA-256 from a random 256-bit number, so that an edited ledger is
noticed when it is opened, and the head of the chain reveals nothing about the records. A whole file that is replaced by an
older copy cannot be noticed from inside: the node and its peers keep the counter that they saw last, and
`refuse_rollback` compares.

A data set whose patients are known (`register`) is charged to every ledger of the file that has any of them. For each
patient the first ledger that held them then holds everything that was ever spent on them, so that the largest ε of
these ledgers bounds what was spent on any patient.

A spend is written before it returns, in a file down to the disk, so that a crash between the spend and its use never
under-counts. On a node the ledger also records the outcome of each charge, so that a crash does not cost budget either:

    charge → draw → the released bytes are kept → `leaves` (their digest is an entry) → they are sent

A charge of which nothing was released is used again after the death of the process that made it (`spend(reuse=True)`),
at most three times. Once the ledger says that something leaves, only bytes of that digest may. Each of these marks is an
entry of the chain: a ledger from before a mark is older than what peers have seen.

Several processes may share a file: the check and the entry are one transaction, so two of them cannot both take the last
step. Where entries are kept is in `privacy.ledger_storage`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confrere.core.errors import BudgetExhausted, LedgerRolledBack, PrivacyError
from confrere.core.parcel import LedgerMark
from confrere.privacy.accounting import capacity, counted, guarantee_of, per_unit
from confrere.privacy.budget import Budget
from confrere.privacy.charges import UNITS, Accountant, Charge, Guarantee, Unit, conditions, rounded_up
from confrere.privacy.ledger_storage import (
    KEPT,
    LEAVING,
    REUSED,
    UNREADABLE,
    Attempt,
    Entry,
    EntryStorage,
    FileStorage,
    MemoryStorage,
    fact_key,
)


class Ledger:
    """What was spent on one population of patients.

    `dataset` names a ledger in memory, for a rehearsal; a file begins its chain with a random number. `population` is one
    of several that an institution keeps separate in its file.

    >>> from confrere.privacy.charges import gaussian
    >>> ledger = Ledger(dataset="thyroid")
    >>> ledger.spend([gaussian(20.0, count=10)], key="study/round 0", budget=Budget(3, 1e-6)).counter
    1
    """

    also: tuple[Ledger, ...] = ()
    """Ledgers of other populations with unknown patients: every charge is also written to these, for any records."""
    noted: Callable[[str, int], None] | None = None
    """Called with the ledger's id and counter after every entry, before what it pays for is computed."""

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        dataset: str = "simulation",
        population: str = "",
        accountant: Accountant = "pld",
    ) -> None:
        self.accountant = accountant
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._counter = 0
        self._own: set[int] = set()
        """Charges that were made, or used again, by this object: their process lives."""
        try:
            self._file = None if path is None else FileStorage(path, population)
            self._storage: EntryStorage = self._file or MemoryStorage(dataset)
            self._head = self._storage.genesis
            self._catch_up()
        except UNREADABLE as error:
            raise PrivacyError(
                f"the ledger {path} cannot be read ({error}); restore it, or ask your peers"
            ) from None

    def register(
        self,
        patients: Collection[bytes] | None,
        check: str,
        former: Mapping[bytes, Collection[bytes]] = MappingProxyType({}),
    ) -> frozenset[bytes]:
        """State whose records are about to be charged, as keyed hashes; None if that is not known.

        `former` has further hashes under which the file may know a patient.

        Returns the patients who belong to another population: their records must be left out, since what is spent on
        them is in its ledger. To charge that ledger too would show in what leaves that one of its patients is here.
        Ledgers of unknown patients are charged from here on too, regardless of who is in these records.
        """
        assert self._file is not None
        for other in self.also:
            other.close()
        populations, elsewhere = self._file.register(patients, check, former)
        self.also = tuple(
            Ledger(self._file.path, population=p, accountant=self.accountant) for p in populations
        )
        for other in self.also:
            assert other._file is not None
            other._file.known = True
        return elsewhere

    def adopt(self, path: Path) -> None:
        """Take in the charges of another ledger of the same institution; every later charge is written to it too."""
        assert self._file is not None
        self._file.adopt(path)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """A random 256-bit number, the same for the ledger's life; empty for a ledger in memory."""
        return self._storage.id

    @property
    def counter(self) -> int:
        """How many entries there are: a number that only grows, handed to peers."""
        self._catch_up()
        return self._counter

    @property
    def head(self) -> str:
        """The hash of the last entry; it fixes all entries before."""
        return self.mark().head

    def mark(self) -> LedgerMark:
        """Where the ledger stands, for peers; not signed yet."""
        with self._lock:
            self._catch_up()
            return LedgerMark(self.id, self._counter, self._head)

    def counters(self) -> dict[str, int]:
        """How many entries each ledger of the file has, by its id."""
        return self._storage.counters()

    def charges(self) -> tuple[Charge, ...]:
        """Everything that was spent, one count per event."""
        self._catch_up()
        return tuple(Charge(event, count) for event, count in sorted(self._counts.items()))

    def epsilon(self, delta: float, unit: Unit = "record") -> float:
        """The ε of everything that was spent, at this δ, for this unit; infinite where there is no bound."""
        return self.guarantee(delta, unit).epsilon

    def guarantee(self, delta: float, unit: Unit | None = None, *, ceiling: float | None = None) -> Guarantee:
        """What everything that was spent amounts to for one record or one patient, with the weakest claim among it.

        Without a unit: per patient if nothing else was spent, per record otherwise. `ceiling` is the site's.
        """
        if not self.also:
            return self._own_guarantee(delta, unit, ceiling)
        found = [ledger._own_guarantee(delta, unit, ceiling) for ledger in (self, *self.also)]
        largest = max(found, key=lambda guarantee: guarantee.epsilon)
        assumed = conditions(charge for ledger in (self, *self.also) for charge in ledger.charges())
        return replace(largest, proven=all(guarantee.proven for guarantee in found), condition=assumed)

    def before(self, run: str) -> tuple[tuple[Charge, ...], ...]:
        """Everything that was spent outside of this run, for each ledger that is charged."""
        return tuple(ledger._own_before(run) for ledger in (self, *self.also))

    def units(self) -> tuple[Unit, ...]:
        """The units that were ever drawn and protected here."""
        found = {charge.unit for ledger in (self, *self.also) for charge in ledger.charges()}
        return tuple(unit for unit in UNITS if unit in found)

    def remaining(self, budget: Budget, charge: Charge) -> int:
        """How many more times `charge` (one step, or one round of steps) fits into the budget."""
        return min(ledger._remaining(budget, charge) for ledger in (self, *self.also))

    def _own_guarantee(self, delta: float, unit: Unit | None, ceiling: float | None = None) -> Guarantee:
        self._catch_up()
        return guarantee_of(tuple(sorted(self._counts.items())), delta, unit, self.accountant, ceiling)

    def _own_before(self, run: str) -> tuple[Charge, ...]:
        with self._lock:
            entries = self._storage.after(0)[0] if self.counter else []
        return tuple(c for e in entries if not e.key.startswith(f"{run}/") for c in e.charges)

    def _remaining(self, budget: Budget, charge: Charge) -> int:
        charges = self.charges()
        others = per_unit([c for c in charges if c.event != charge.event], budget.unit)
        step = charge.per(budget.unit)
        if others is None or step is None:
            return 0
        most = capacity(step.event, tuple(others), budget.epsilon, budget.delta, self.accountant)
        return max(most - self._counts.get(charge.event, 0), 0) // max(charge.count, 1)

    def entries(self) -> list[dict[str, Any]]:
        """All entries as plain JSON values, for a checkpoint or an auditor."""
        with self._lock:
            return [entry.record() for entry in self._storage.after(0)[0]]

    # -- spending ---------------------------------------------------------------------------------

    def spend(
        self,
        charges: Sequence[Charge],
        *,
        key: str,
        budget: Budget | None,
        records: str = "",
        replay_of: str | None = None,
        reuse: bool = False,
    ) -> Entry:
        """Write a charge durably, before the caller computes what it pays for.

        Refuses with BudgetExhausted, and writes nothing, if the total would exceed the budget. Spending again under the
        same key is charged again, since a second release reveals more. `records` is a fingerprint of the records that are
        charged for. Only a seeded simulation, which would compute the identical release, may pass `replay_of`, a digest of
        what the computation starts from (empty if that is always the same): it is given the entry of `repeated` and
        charged nothing. Entries of earlier versions have no such digest; their key and records are compared.

        With `reuse`, which only a process may pass that alone has this ledger for a run, a charge for the same that a
        process which has died left without a release is used again.
        """
        charges = tuple(c for c in charges if c.count)
        if not key or not charges:
            raise PrivacyError("a spend needs a key and at least one step to charge")
        with self._lock:
            if reuse and (entry := self._use_again(charges, key, records)) is not None:
                return entry
            if self.also and budget is not None:  # a refusal by one of them leaves nothing in the others
                for ledger in (self, *self.also):
                    ledger._refuse_overspending(charges, budget, key)
            for ledger in self.also:
                ledger._spend(charges, key, budget, records, replay_of)
            entry = self._spend(charges, key, budget, records, replay_of)
            self._note()
        return entry

    # -- the outcome of a charge ---------------------------------------------------------------------

    def leaves(self, key: str, records: str, digest: str) -> None:
        """Write that what was paid for under this key leaves from here on, as bytes of this digest and no others."""
        with self._lock:
            for ledger in (*self.also, self):
                attempt = ledger._attempt(key, records)
                if attempt is None or attempt.kept or attempt.released not in (None, digest):
                    raise PrivacyError(
                        f"{self._storage.where} has not paid for what is about to leave under «{key}»; nothing was sent"
                    )
                if attempt.released is None:
                    ledger._append(attempt.mark(f"{LEAVING}{digest}"))
            self._note()

    def refuse_without(self, key: str, records: str) -> None:
        """Refuse to go on if a charge that this site has written is not here any more."""
        for ledger in (*self.also, self):
            if ledger._attempt(key, records) is None:
                raise LedgerRolledBack(
                    f"{self._storage.where} ends at entry {ledger.counter}, without the charge for «{key}» that this site"
                    " has written: it was rolled back. Restore the latest copy"
                )

    def repeated(self, key: str, records: str, replay_of: str | None) -> Entry | None:
        """The first charge of the same release, which a seeded simulation repeats for nothing (see `spend`)."""
        marks = [] if replay_of is None else [f"{records}/{replay_of}", records] if replay_of else [records]
        return next((e for mark in marks if (e := self._storage.under(key, mark)) is not None), None)

    def released(self, key: str, records: str) -> str | None:
        """The digest of what has left, or may have, for the last charge under this key; None if nothing has."""
        attempt = self._attempt(key, records)
        return None if attempt is None else attempt.released

    def keep_charge(self, key: str, records: str) -> None:
        """Write that the last charge under this key stays, although nothing was released: a result was drawn and seen."""
        with self._lock:
            for ledger in (*self.also, self):
                attempt = ledger._attempt(key, records)
                if attempt is not None and attempt.released is None and not attempt.kept:
                    ledger._append(attempt.mark(KEPT))
            self._note()

    # -- facts ----------------------------------------------------------------------------------------

    def write_once(self, subject: str, fact: str, value: str) -> str:
        """Write a fact about a subject, for good and without a charge; returns what stands: this value, or an earlier one."""
        with self._lock:
            with self._storage.writing():
                self._catch_up()
                known = self.written(subject, fact)
                if known is None:
                    entry = self._next((), f"{fact_key(subject, fact)}{value}", "")
                    self._storage.append(entry)
            if known is None:
                self._take(entry)
                self._note()
        return value if known is None else known

    def written(self, subject: str, fact: str) -> str | None:
        """What was written about a subject; None if nothing was."""
        start = fact_key(subject, fact)
        found = self._storage.first_key(start)
        return None if found is None else found.removeprefix(start)

    def _use_again(self, charges: tuple[Charge, ...], key: str, records: str) -> Entry | None:
        """A charge of which nothing was released, marked as used again in every ledger that it was written to."""
        found = [(ledger, ledger._attempt(key, records)) for ledger in (*self.also, self)]
        if not all(
            attempt is not None and attempt.reusable(charges) and attempt.charge.counter not in ledger._own
            for ledger, attempt in found
        ):
            return None
        for ledger, attempt in found:
            assert attempt is not None
            ledger._append(attempt.mark(REUSED))
            ledger._own.add(attempt.charge.counter)
            entry = attempt.charge
        self._note()
        return entry

    def _attempt(self, key: str, records: str) -> Attempt | None:
        """The last charge under a key for these records, and its outcome."""
        assert self._file is not None
        self._catch_up()
        return self._file.attempt(key, records)

    def _append(self, key: str) -> None:
        """Write an entry that charges nothing."""
        with self._storage.writing():
            self._catch_up()
            entry = self._next((), key, "")
            self._storage.append(entry)
        self._take(entry)

    def _note(self) -> None:
        if self.noted is not None:
            for ledger in (*self.also, self):
                self.noted(ledger.id, ledger.counter)

    def _spend(
        self,
        charges: tuple[Charge, ...],
        key: str,
        budget: Budget | None,
        records: str,
        replay_of: str | None,
    ) -> Entry:
        with self._lock:
            with self._storage.writing():
                self._catch_up()
                if (entry := self.repeated(key, records, replay_of)) is not None:
                    if entry.charges != charges:
                        raise PrivacyError(
                            f"{self._storage.where} has other charges under «{key}»: this is not a replay of it"
                        )
                    return entry
                if budget is not None:
                    self._refuse_overspending(charges, budget, key)
                entry = self._next(charges, key, f"{records}/{replay_of}" if replay_of else records)
                self._storage.append(entry)
            self._own.add(entry.counter)
            self._take(entry)
        return entry

    def refuse_rollback(self, counter: int) -> None:
        """Refuse to go on if peers saw a later state of this ledger."""
        if self.counter < counter:
            raise LedgerRolledBack(self._older(self.counter, counter))

    def refuse_older_than(self, mark: LedgerMark) -> None:
        """Refuse to go on if this site has signed a later state of a ledger of the file, or another history of it."""
        if not mark.counter:
            return
        with self._lock:
            own = self.counters().get(mark.ledger)
            found = self._storage.hash_of(mark.counter, mark.ledger)
        if own is None:
            raise LedgerRolledBack(
                f"{self._storage.where} is another one than this site has used: peers saw entry {mark.counter} of that"
                " one, with this site's signature. Put it back; see «Backup and restore» in docs/operations.md"
            )
        if own < mark.counter:
            raise LedgerRolledBack(self._older(own, mark.counter))
        if found != mark.head:
            raise LedgerRolledBack(
                f"{self._storage.where} has another entry {mark.counter} than peers saw: its history was rewritten. "
                "Restore the copy that was in use then"
            )

    def _older(self, own: int, seen: int) -> str:
        return (
            f"{self._storage.where} ends at entry {own}, but peers saw entry {seen}: it was rolled back. "
            "Restore the latest copy; training on an older one would spend privacy twice"
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
        for fields in entries:
            try:
                charges = tuple(Charge(event, count) for event, count in fields["charges"])
                rest = [*(fields[k] for k in ("at", "previous", "hash")), fields.get("records", "")]
                entry = Entry(fields["counter"], fields["key"], charges, *rest)
            except (KeyError, TypeError, ValueError, PrivacyError) as error:
                raise PrivacyError(f"an entry of the saved ledger cannot be read: {error}") from None
            ledger._storage.append(ledger._verified(entry))
            ledger._take(entry)
        return ledger

    def close(self) -> None:
        for ledger in (*self.also, self):
            ledger._storage.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------

    def _next(self, charges: tuple[Charge, ...], key: str, records: str) -> Entry:
        """The entry that follows the last one. A rehearsal has no time of day, so that it can be repeated."""
        at = datetime.now(UTC).isoformat(timespec="seconds") if self._storage.shared else ""
        return Entry.following(self._head, self._counter + 1, key, charges, at, records)

    def _catch_up(self) -> None:
        """Verify and add the entries that another process wrote; storage in memory has no other writer."""
        if not self._storage.shared:
            return
        with self._lock:
            entries, end = self._storage.after(self._counter)
            for entry in entries:
                self._take(self._verified(entry))
            if end != (self._counter, self._head):
                raise PrivacyError(
                    f"{self._storage.where} was edited: it should end with entry {end[0]}, and entry "
                    f"{self._counter} is its last. Restore a true copy"
                )

    def _verified(self, entry: Entry) -> Entry:
        """The same entry, if it follows from the last one."""
        follows = (entry.counter, entry.previous) == (self._counter + 1, self._head)
        with suppress(ValueError, TypeError):  # what is no JSON was not written by a ledger
            if follows and entry.expected() == entry.hash:
                return entry
        raise PrivacyError(
            f"{self._storage.where} was edited, or belongs to other data: entry {self._counter + 1} does not follow "
            "from the one before. Restore a true copy"
        )

    def _take(self, entry: Entry) -> None:
        self._counter, self._head = entry.counter, entry.hash
        for charge in entry.charges:
            self._counts[charge.event] = self._counts.get(charge.event, 0) + charge.count

    def _refuse_overspending(self, charges: tuple[Charge, ...], budget: Budget, key: str) -> None:
        if len(charges) == 1 and self._remaining(budget, charges[0]):
            return
        before = self.charges()
        unbounded = next((c for c in (*before, *charges) if c.per(budget.unit) is None), None)
        if unbounded is not None:
            raise PrivacyError(
                f"«{key}» is to keep to {budget} per {budget.unit}, and {self._storage.where} counts steps per"
                f" {unbounded.unit}: nothing bounds how many records a patient has. Use a study per {unbounded.unit},"
                " or data with a ledger of their own"
            )
        after = guarantee_of(counted([*before, *charges]), budget.delta, budget.unit, self.accountant).epsilon
        if after <= budget.epsilon:
            return
        if after == float("inf"):
            raise PrivacyError(f"«{key}» adds no noise, and so keeps to no budget ({budget}); set the noise")
        spent = self._own_guarantee(budget.delta, budget.unit).epsilon
        raise BudgetExhausted(
            f"the site's ledger has spent ε = {rounded_up(spent)} of {budget.epsilon:g} (δ = {budget.delta:g}, per "
            f"{budget.unit}); "
            f"«{key}» would bring it to ε = {rounded_up(after)}. Nothing was computed. "
            "Stop here, add more noise, or raise the site's cap"
        )
