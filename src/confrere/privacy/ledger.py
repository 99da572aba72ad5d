"""The ledger of a data set: what was spent on it, written before it is spent, and never more than the budget.

One ledger per data set; all studies on it compose. An entry holds integer counts of mechanism events.
Entries are chained by SHA-256 from the fingerprint of the data set, so an edited ledger, or one of other
data, is noticed when it is opened. Somebody who replaces the whole file by an older copy is not noticed
from inside: peers keep the counter and the head that they saw last, and `refuse_rollback` compares.

A spend is written before it returns, in a file down to the disk. A crash between the spend and its use therefore
over-counts, never under-counts. Several processes may share a file: the check and the entry are one
transaction, so two of them cannot both take the last step. Where entries are kept is in `privacy.book`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from confrere.core.errors import BudgetExhausted, PrivacyError
from confrere.privacy.accounting import capacity, check_delta, check_epsilon, epsilon
from confrere.privacy.book import UNREADABLE, Book, Entry, FileBook, MemoryBook, digest, genesis
from confrere.privacy.charges import Accountant, Charge, Guarantee, Unit, rounded_up


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
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._counter, self._head = 0, genesis(dataset)
        try:
            self._book: Book = MemoryBook(dataset) if path is None else FileBook(path, dataset)
            self._catch_up()
        except UNREADABLE as error:
            raise PrivacyError(
                f"the ledger {path} cannot be read ({error}); restore it, or ask your peers"
            ) from None

    # -- reading ----------------------------------------------------------------------------------

    @property
    def counter(self) -> int:
        """How many entries there are: a number that only grows, handed to peers."""
        self._catch_up()
        return self._counter

    @property
    def head(self) -> str:
        """The hash of the last entry; it fixes all entries before."""
        self._catch_up()
        with self._lock:
            return self._head if self._book.shared else self._book.after(self._counter)[1][1]

    def charges(self) -> tuple[Charge, ...]:
        """Everything that was spent, one count per event."""
        self._catch_up()
        return tuple(Charge(event, count) for event, count in sorted(self._counts.items()))

    def epsilon(self, delta: float, accountant: Accountant | None = None) -> float:
        """The ε of everything that was spent, at this δ."""
        return epsilon(self.charges(), delta, accountant or self.accountant)

    def guarantee(self, delta: float) -> Guarantee:
        """What everything that was spent amounts to, for the weakest unit and the weakest claim among it."""
        self._catch_up()
        return _guarantee(tuple(sorted(self._counts.items())), delta, self.accountant)

    def remaining(self, budget: Budget, charge: Charge) -> int:
        """How many more times `charge` (one step, or one round of steps) fits into the budget."""
        self._catch_up()
        others = tuple(c for c in self.charges() if c.event != charge.event)
        most = capacity(charge.event, others, budget.epsilon, budget.delta, self.accountant)
        return max(most - self._counts.get(charge.event, 0), 0) // max(charge.count, 1)

    def entries(self) -> list[dict[str, Any]]:
        """All entries as plain JSON values, for a checkpoint or an auditor."""
        with self._lock:
            return [entry.record() for entry in self._book.after(0)[0]]

    # -- spending ---------------------------------------------------------------------------------

    def spend(
        self, charges: Sequence[Charge], *, key: str, budget: Budget | None, replay: bool = False
    ) -> Entry:
        """Write a charge durably, before the caller computes what it pays for.

        Refuses with BudgetExhausted, and writes nothing, if the total would exceed the budget. Spending
        again under the same key is charged again, since a second release tells more. Only a seeded
        simulation, which would compute the identical release, may pass `replay=True`: it is given the first
        entry and charged nothing. An entry in memory gets its hash when the ledger is asked for it, not here.
        """
        charges = tuple(c for c in charges if c.count)
        if not key or not charges:
            raise PrivacyError("a spend needs a key and at least one step to charge")
        with self._lock:
            with self._book.writing():
                self._catch_up()
                if replay and (entry := self._book.under(key)) is not None:
                    if entry.charges != charges:
                        raise PrivacyError(
                            f"{self._book.where} has other charges under «{key}»: this is not a replay of it"
                        )
                    return entry
                if budget is not None:
                    self._refuse_overspending(charges, budget, key)
                entry = self._next(charges, key)
                self._book.append(entry)
            self._take(entry)
        return entry

    def refuse_rollback(self, counter: int, head: str | None = None) -> None:
        """Refuse to go on if peers saw a later state of this ledger, or another history of it."""
        own = self.counter
        if own < counter:
            raise PrivacyError(
                f"{self._book.where} stands at entry {own}, but peers saw entry {counter}: it was rolled back. "
                "Restore the latest copy; training on an older one would spend privacy twice"
            )
        if head is None:
            return
        with self._lock:
            found = self._book.hash_of(counter) or genesis(self.dataset)
        if found != head:
            raise PrivacyError(
                f"{self._book.where} has another entry {counter} than peers saw: its history was rewritten. "
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
        for fields in entries:
            try:
                charges = tuple(Charge(event, count) for event, count in fields["charges"])
                told = [fields[k] for k in ("at", "previous", "hash")]
                entry = Entry(fields["counter"], fields["key"], charges, *told)
            except (KeyError, TypeError, ValueError, PrivacyError) as error:
                raise PrivacyError(f"an entry of the saved ledger cannot be read: {error}") from None
            ledger._book.append(ledger._verified(entry))
            ledger._take(entry)
        return ledger

    def close(self) -> None:
        self._book.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------

    def _next(self, charges: tuple[Charge, ...], key: str) -> Entry:
        """The entry that follows the last one."""
        if not self._book.shared:  # nobody else reads it: its place in the chain is found when somebody asks
            return Entry(self._counter + 1, key, charges, "", "", "")
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return Entry(self._counter + 1, key, charges, at, "", "").following(self._head)

    def _catch_up(self) -> None:
        """Verify and take in the entries that another process added; to a book in memory nobody else adds any."""
        if not self._book.shared:
            return
        with self._lock:
            entries, end = self._book.after(self._counter)
            for entry in entries:
                self._take(self._verified(entry))
            if end != (self._counter, self._head):
                raise PrivacyError(
                    f"{self._book.where} was edited: it should end with entry {end[0]}, and entry "
                    f"{self._counter} is its last. Restore a true copy"
                )

    def _verified(self, entry: Entry) -> Entry:
        """The same entry, if it follows from the last one."""
        body = {k: v for k, v in entry.record().items() if k != "hash"}
        follows = (entry.counter, entry.previous) == (self._counter + 1, self._head)
        with suppress(ValueError, TypeError):  # what is no JSON was not written by a ledger
            if follows and digest(body) == entry.hash:
                return entry
        raise PrivacyError(
            f"{self._book.where} was edited, or belongs to other data: entry {self._counter + 1} does not follow "
            "from the one before. Restore a true copy"
        )

    def _take(self, entry: Entry) -> None:
        self._counter, self._head = entry.counter, entry.hash
        for charge in entry.charges:
            self._counts[charge.event] = self._counts.get(charge.event, 0) + charge.count

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
            f"{self._book.where} has spent ε = {rounded_up(spent)} of {budget.epsilon:g} (δ = {budget.delta:g}); "
            f"«{key}» would bring it to ε = {rounded_up(after)}. Nothing was computed. "
            "Stop here, add more noise, or raise the site's cap"
        )


@lru_cache(maxsize=4096)
def _guarantee(counts: tuple[tuple[str, int], ...], delta: float, accountant: Accountant) -> Guarantee:
    """Worked out once for all ledgers with the same counts: the sites of a rehearsal mostly spend alike."""
    charges = [Charge(event, count) for event, count in counts]
    unit: Unit = "patient" if charges and all(c.unit == "patient" for c in charges) else "record"
    return Guarantee(
        epsilon(charges, delta, accountant), delta, unit, accountant, all(c.proven for c in charges)
    )
