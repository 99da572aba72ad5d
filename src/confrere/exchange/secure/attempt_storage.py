"""What a member of a masked sum needs from its site: a place for secrets, and facts in the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class AttemptStore(Protocol):
    """Where a member keeps its secrets and what it has sent: on disk before `save` returns, readable by the site only."""

    def save(self, attempt: str, part: str, data: bytes) -> None: ...

    def load(self, attempt: str, part: str) -> bytes | None: ...

    def erase(self, attempt: str) -> None:
        """Remove all parts of an attempt."""


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
    store: AttemptStore
    facts: LedgerFacts


@dataclass
class MemoryAttempts:
    """Both of them in memory, for one site."""

    parts: dict[tuple[str, str], bytes] = field(default_factory=dict)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def save(self, attempt: str, part: str, data: bytes) -> None:
        self.parts[attempt, part] = data

    def load(self, attempt: str, part: str) -> bytes | None:
        return self.parts.get((attempt, part))

    def erase(self, attempt: str) -> None:
        self.parts = {at: data for at, data in self.parts.items() if at[0] != attempt}

    def write_once(self, subject: str, fact: str, value: str, /) -> str:
        return self.facts.setdefault((subject, fact), value)

    def written(self, subject: str, fact: str, /) -> str | None:
        return self.facts.get((subject, fact))
