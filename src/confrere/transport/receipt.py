"""The receiver's answer to a parcel: accepted, duplicate, deferred or refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from confrere.core.parcel import LedgerMark


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    """Credited and recorded, durably."""
    DUPLICATE = "duplicate"
    """Credited before; nothing changed. For the sender this is as good as ACCEPTED."""
    REFUSED = "refused"
    """Never to be taken; sending it again is useless."""
    DEFERRED = "deferred"
    """Not now (a full disk, a pause); the sender keeps it and sends the same bytes again later."""


@dataclass(frozen=True)
class Receipt:
    """Goes back to the sender after the receiver has made its decision durable."""

    outcome: Outcome
    reason: str = ""
    seen: tuple[LedgerMark, ...] = ()
    """The highest mark that the receiver keeps of each of the sender's ledgers."""

    @property
    def credited(self) -> bool:
        """Whether the parcel counts at its receiver, so that the sender may forget it."""
        return self.outcome in (Outcome.ACCEPTED, Outcome.DUPLICATE)


ACCEPTED = Receipt(Outcome.ACCEPTED)
DUPLICATE = Receipt(Outcome.DUPLICATE)
