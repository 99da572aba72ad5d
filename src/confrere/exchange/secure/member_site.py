"""What a member of a masked sum needs from its site: a signing key, and facts in the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class LedgerFacts(Protocol):
    """Facts about attempts in the site's ledger, whose counter peers remember: it cannot be restored unnoticed.

    `privacy.ledger.Ledger` is one.
    """

    def write_once(self, subject: str, fact: str, value: str, /) -> str:
        """Write a fact unless there is one; returns the value that stands. It is on disk before this returns."""

    def written(self, subject: str, fact: str, /) -> str | None: ...


@dataclass(frozen=True)
class MemberSite:
    """What a member is at its site."""

    name: str
    key: Ed25519PrivateKey
    """Signs what the member sends; the agreement has its public half."""
    facts: LedgerFacts


@dataclass
class MemoryFacts:
    """Facts of one site in memory, for simulations and tests."""

    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def write_once(self, subject: str, fact: str, value: str, /) -> str:
        return self.facts.setdefault((subject, fact), value)

    def written(self, subject: str, fact: str, /) -> str | None:
        return self.facts.get((subject, fact))
