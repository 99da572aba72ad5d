"""Who takes part in masked sums of one epoch, and on which terms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.sum_terms import SumTerms
from confrere.exchange.secure.mask_graph import COMPLETE, MaskGraph, complete_graph, sparse_graph


@dataclass(frozen=True, order=True)
class MaskingMember:
    """A member as all others know it."""

    name: str
    key: bytes
    """Its Ed25519 public key, which signs what it sends."""
    declared: int
    """Its declared number of records, which bounds its vector."""


@dataclass(frozen=True)
class Agreement:
    """The same at all members, or nothing is opened. A new epoch of membership makes a new one."""

    members: tuple[MaskingMember, ...]
    """In the order of their names."""
    terms: SumTerms
    epoch: int = 0
    seed: bytes = b""
    """The common seed of the mask graph; needed above 64 members."""

    def __post_init__(self) -> None:
        if list(self.names) != sorted(set(self.names)):
            raise StudyError("the members of a masked sum must be sorted by name, each of them once")
        if self.terms.members != len(self.members):
            raise StudyError(
                f"the terms of a masked sum are for {self.terms.members} members, and {len(self.members)} take part"
            )
        keys = [member.key for member in self.members if member.key]  # sums without masks need none
        if len(set(keys)) < len(keys):
            raise StudyError(
                "two members of a masked sum have the same signing key: one site could sign for both"
            )
        if any(member.declared < 1 for member in self.members):
            raise StudyError("a masked sum needs a declared size of each member")
        if self.n > COMPLETE and len(self.seed) != 32:
            raise StudyError(
                f"a masked sum of more than {COMPLETE} members needs the common seed of its mask graph"
            )
        self.terms.check_sum(sum(member.declared for member in self.members))

    @property
    def n(self) -> int:
        return self.terms.members

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def graph(self) -> MaskGraph:
        """Which members mask with one another."""
        if self.n <= COMPLETE:
            return complete_graph(self.names, self.terms.threshold)
        return sparse_graph(self.names, self.terms.colluding, self.terms.dropouts, self.seed)

    @cached_property
    def roster_hash(self) -> bytes:
        """Identifies the members with their keys and sizes, and their epoch."""
        return roster_hash(self.members, self.epoch)

    @cached_property
    def digest(self) -> bytes:
        """Identifies everything that was agreed on."""
        terms = {name: v.hex() if isinstance(v, float) else v for name, v in asdict(self.terms).items()}
        return _digest("agreement", {**terms, "seed": self.seed.hex(), "roster": self.roster_hash.hex()})

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def member(self, name: str) -> MaskingMember:
        """A member by its name; a site outside the agreement is refused."""
        if name not in self:
            raise StudyError(
                f'"{name}" is not part of this masked sum; its members are {", ".join(self.names)}'
            )
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, MaskingMember]:
        return {member.name: member for member in self.members}

    def position(self, name: str) -> int:
        """Where a member evaluates secrets that are shared out: from 1."""
        return self._positions[self.member(name).name]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.names, 1)}

    def rota(self, turn: int) -> tuple[str, ...]:
        """The summing site of a turn, followed by its successors."""
        start = turn % self.n
        return self.names[start:] + self.names[:start]


def roster_hash(members: Sequence[MaskingMember], epoch: int) -> bytes:
    """Identifies members with their keys and sizes, and their epoch; needed before the seed of a mask graph is known."""
    listed = [[member.name, member.key.hex(), member.declared] for member in members]
    return _digest("roster", {"members": listed, "epoch": epoch})


def _digest(what: str, fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"confrere masked {what}\0{text}".encode()).digest()
