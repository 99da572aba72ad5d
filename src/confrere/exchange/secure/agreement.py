"""What the members of a masked sum agree on, and what must hold before anything is masked.

n members, of which at most t pool what they see and at most d drop out: h = n − t − d honest members are certainly in an
opened sum, and each adds noise of variance σ²/h. T = ⌊(n + t)/2⌋ + 1 members must sign a list of survivors: two such
groups have an honest member in common, and that one signs a single list. An agreement belongs to one epoch of membership;
a new epoch makes a new one, with its own n, t, d and noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from confrere.core.errors import PrivacyError, StudyError
from confrere.exchange.secure.mask_graph import COMPLETE, MaskGraph, complete_graph, sparse_graph

FINENESS = 1000
"""Rounding to the grid moves a sum by at most C/1000."""

LEAST_STEPS = 5.0
"""The least noise of one member, in grid steps: below, sums of discrete noise are not close enough to discrete noise."""

FAR = 12
"""No noise is ever this many standard deviations away."""

MOST_BITS = 64


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
    """Who takes part in masked sums of one epoch, and how: the same at all members, or nothing is opened.

    `noise_std` is σ, the standard deviation of the noise in the opened sum; `clip` is C, what one record adds at most; `size`
    is P, the length of the vectors; `grid` is γ, and sums are computed modulo 2^`bits`. Lengths are in the units of the sum.
    """

    members: tuple[MaskingMember, ...]
    colluding: int
    dropouts: int
    noise_std: float
    clip: float
    size: int
    grid: float
    bits: int = MOST_BITS
    epoch: int = 0
    seed: bytes = b""
    """The common seed of the mask graph; needed above 64 members."""

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        if names != sorted(set(names)):
            raise StudyError("the members of a masked sum must be sorted by name, each of them once")
        check_collusion(self.n, self.colluding, self.dropouts)
        if self.size < 1 or any(member.declared < 1 for member in self.members):
            raise StudyError(
                "a masked sum needs vectors of at least one number, and a declared size of each member"
            )
        if self.n > COMPLETE and len(self.seed) != 32:
            raise StudyError(
                f"a masked sum of more than {COMPLETE} members needs the common seed of its mask graph"
            )
        self._check_grid()

    def _check_grid(self) -> None:
        for name, value in (("noise_std", self.noise_std), ("clip", self.clip), ("grid", self.grid)):
            if not (math.isfinite(value) and value > 0):
                raise PrivacyError(f"{name} of a masked sum must be a number above 0, not {value}")
        if not 8 <= self.bits <= MOST_BITS:
            raise StudyError(f"masked sums are computed modulo 2^8 to 2^{MOST_BITS}, not 2^{self.bits}")
        rounding = self.grid * math.sqrt(self.size)
        if rounding > self.clip / FINENESS:
            raise PrivacyError(
                f"the grid {self.grid:g} is too coarse: rounding moves a sum of {self.size} numbers by up to {rounding:.3g}, "
                f"and only {self.clip / FINENESS:.3g} is allowed for; use {grid_for(self.clip, self.size):g}"
            )
        if self.share_scale < LEAST_STEPS:
            raise PrivacyError(
                f"the grid {self.grid:g} is too coarse for the noise: each member adds {self.share_scale:.3g} grid steps, "
                f"and at least {LEAST_STEPS:g} are needed; use a finer grid or more noise"
            )
        if not self.largest < 2 ** (self.bits - 1):
            raise PrivacyError(
                f"a masked sum of {self.n} members could reach {self.largest:.3g} grid steps and wrap around modulo "
                f"2^{self.bits}; use {MOST_BITS} bits, a coarser grid or smaller declared sizes"
            )

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def honest(self) -> int:
        """h: how many honest members an opened sum certainly has."""
        return self.n - self.colluding - self.dropouts

    @property
    def threshold(self) -> int:
        """T: how many members must sign the same list of survivors."""
        return threshold(self.n, self.colluding)

    @property
    def quorum(self) -> int:
        """How many members each step needs, and how many survivors a list."""
        return max(self.threshold, self.n - self.dropouts)

    @property
    def share_scale(self) -> float:
        """The standard deviation of one member's noise, in grid steps."""
        return self.noise_std / math.sqrt(self.honest) / self.grid

    @property
    def largest(self) -> float:
        """What no coordinate of an opened sum exceeds, in grid steps."""
        declared = sum(member.declared for member in self.members)
        rounding = self.grid * math.sqrt(self.size) * self.n
        noise = FAR * self.noise_std * math.sqrt(self.n / self.honest)
        return (self.clip * declared + rounding + noise) / self.grid

    @property
    def condition(self) -> str:
        """The assumption that the privacy of an opened sum rests on."""
        return f"if at most {self.colluding} of the other {self.n - 1} sites pool what they see"

    @cached_property
    def graph(self) -> MaskGraph:
        """Which members mask with one another."""
        if self.n <= COMPLETE:
            return complete_graph(self.names, self.threshold)
        return sparse_graph(self.names, self.colluding, self.dropouts, self.seed)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def roster_hash(self) -> bytes:
        """Identifies the members with their keys and sizes, and their epoch."""
        listed = [[member.name, member.key.hex(), member.declared] for member in self.members]
        return _digest("roster", {"members": listed, "epoch": self.epoch})

    @cached_property
    def digest(self) -> bytes:
        """Identifies everything that was agreed on."""
        fields = {name: value for name, value in asdict(self).items() if name != "members"}
        for name in ("noise_std", "clip", "grid"):
            fields[name] = float(fields[name]).hex()
        fields["seed"] = self.seed.hex()
        return _digest("agreement", {**fields, "roster": self.roster_hash.hex()})

    def member(self, name: str) -> MaskingMember:
        """A member by its name; a site outside the agreement is refused."""
        if name not in self._by_name:
            raise StudyError(
                f'"{name}" is not part of this masked sum; its members are {", ".join(self.names)}'
            )
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, MaskingMember]:
        return {member.name: member for member in self.members}

    def position(self, name: str) -> int:
        """Where a member evaluates secrets that are shared out: from 1."""
        return self.names.index(self.member(name).name) + 1

    def rota(self, turn: int) -> tuple[str, ...]:
        """The summing site of a turn, followed by its successors."""
        start = turn % self.n
        return self.names[start:] + self.names[:start]

    def release_terms(self) -> dict[str, Any]:
        """What `privacy.masked_release.MaskedRelease` needs to know of the agreement."""
        return {
            "clip": self.clip,
            "noise_std": self.noise_std,
            "grid": self.grid,
            "parameters": self.size,
            "members": self.n,
            "colluding": self.colluding,
            "dropouts": self.dropouts,
        }


def agree(
    members: Iterable[MaskingMember],
    *,
    colluding: int,
    dropouts: int,
    noise_std: float,
    clip: float,
    size: int,
    grid: float | None = None,
    bits: int = MOST_BITS,
    epoch: int = 0,
    seed: bytes = b"",
) -> Agreement:
    """An agreement of these members, on the coarsest grid that is fine enough unless one is given."""
    grid = grid_for(clip, size) if grid is None else grid
    return Agreement(
        tuple(sorted(members)), colluding, dropouts, noise_std, clip, size, grid, bits, epoch, seed
    )


def threshold(members: int, colluding: int) -> int:
    """T = ⌊(n + t)/2⌋ + 1.

    >>> threshold(8, 2)
    6
    """
    return (members + colluding) // 2 + 1


def check_collusion(members: int, colluding: int, dropouts: int) -> None:
    """Refuse numbers of members, colluding members and dropouts for which masks do not protect."""
    for name, value in (("colluding", colluding), ("dropouts", dropouts)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise StudyError(f"{name} must be a whole number of at least 0, not {value!r}")
    if members < 3:
        raise StudyError(
            f"a masked sum needs at least 3 members, not {members}: each of two knows the other's part"
        )
    if colluding < 1:
        raise StudyError(
            "colluding = 0 is unsound: every member sees the sum and knows its own noise; use at least 1"
        )
    needed = threshold(members, colluding)
    if dropouts > members - needed:
        raise StudyError(
            f"with {members} members, of which {colluding} may collude, {needed} must sign a list of survivors, so at most "
            f"{max(members - needed, 0)} may drop out, not {dropouts}"
        )
    if members - colluding - dropouts < 2:
        raise StudyError(
            f"{members} members less {colluding} colluding and {dropouts} dropouts leave fewer than 2 honest ones to share the "
            "noise; lower colluding or dropouts, or add members"
        )


def grid_for(clip: float, size: int) -> float:
    """The coarsest power of two with γ√P ≤ C/1000."""
    if not (math.isfinite(clip) and clip > 0 and size > 0):
        raise PrivacyError(f"a clipping norm must be a number above 0, not {clip}")
    return math.ldexp(1.0, math.frexp(clip / FINENESS / math.sqrt(size))[1] - 1)


def _digest(what: str, fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"confrere masked {what}\0{text}".encode()).digest()
