"""Which members mask with one another and hold shares for one another.

Up to 64 members all of them do. Above, each member is connected to a few: the members are put in a random order on a
circle, and each is connected to the `degree`/2 next ones on either side. The order follows from a seed that all members
make together after the roster is fixed (`graph_seed`), so that it does not depend on who colludes.

`sparse` computes the least degree for which these hold, the first two but for a chance of 2^−40:

1. No `degree`/2 consecutive places hold more than `corrupt` colluding members. A list of survivors is signed only if more
   than `corrupt` of its members are in each such stretch (`MaskGraph.check`). Then honest survivors are never further apart
   than `degree`/2 places, so they are connected, even if a dishonest summing site chooses the list.
2. Holders of a member's shares cannot be split: 2·threshold > holders + colluding holders.
3. Members that drop out by chance leave enough holders and lists that may be signed, but for a chance of 2^−20. Where they
   do not, the attempt is given up; nothing is revealed.

A member that commits to its part of the seed and does not reveal it is removed from the roster, and the rest start again.
At most `colluding` restarts can be forced, and the chance is divided by their number.

The chance of 2^−40 is for one epoch of membership. It is not part of the δ that the ledger states: add it there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

from confrere.core.errors import PrivacyError

COMPLETE = 64
"""Up to this number of members everyone masks with everyone."""

LOG_CHANCE = -40 * math.log(2)
"""The logarithm of the chance that a random graph does not protect its members."""

LOG_GIVEN_UP = -20 * math.log(2)
"""The logarithm of the chance that an attempt is given up although no more members dropped out than were agreed."""


@dataclass(frozen=True)
class MaskGraph:
    """Members around a circle; each is connected to the `degree`/2 next ones on either side."""

    order: tuple[str, ...]
    degree: int
    threshold: int
    """How many holders restore a secret."""
    corrupt: int
    """How many colluding members `degree`/2 consecutive places hold at most."""

    @property
    def complete(self) -> bool:
        return self.degree >= len(self.order) - 1

    @cached_property
    def _neighbours(self) -> dict[str, tuple[str, ...]]:
        n, steps = len(self.order), range(1, self.degree // 2 + 1)
        found = {}
        for at, name in enumerate(self.order):
            near = [self.order[(at + sign * step) % n] for step in steps for sign in (1, -1)]
            others = [other for other in self.order if other != name]
            found[name] = tuple(sorted(others if self.complete else near))
        return found

    @cached_property
    def _holders(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(sorted((name, *others))) for name, others in self._neighbours.items()}

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The members that this one masks with, in sorted order."""
        return self._neighbours[name]

    def holders(self, name: str) -> tuple[str, ...]:
        """The members that hold shares of this one's secrets, itself included, in sorted order."""
        return self._holders[name]

    def check(self, survivors: Collection[str]) -> None:
        """Refuse a list of survivors that could leave some of them masked by colluding members only."""
        if self.complete:
            return
        n, stretch = len(self.order), self.degree // 2
        inside = [name in survivors for name in self.order]
        count = sum(inside[:stretch])
        for start in range(n):
            if count <= self.corrupt:
                raise PrivacyError(
                    f"only {count} of {stretch} neighbouring members are among the survivors; more than {self.corrupt} must be"
                )
            count += inside[(start + stretch) % n] - inside[start]


def complete_graph(members: Collection[str], threshold: int) -> MaskGraph:
    """Everyone masks with everyone."""
    return MaskGraph(tuple(sorted(members)), max(len(members) - 1, 0), threshold, 0)


def sparse_graph(members: Collection[str], colluding: int, dropouts: int, seed: bytes) -> MaskGraph:
    """A random graph of the least degree that is safe for these numbers."""
    degree, threshold, corrupt = sparse(len(members), colluding, dropouts)
    ranked = sorted(members, key=lambda name: (hashlib.sha256(seed + name.encode()).digest(), name))
    return MaskGraph(tuple(ranked), degree, threshold, corrupt)


@lru_cache(maxsize=256)
def sparse(members: int, colluding: int, dropouts: int) -> tuple[int, int, int]:
    """The degree, the local threshold, and how many colluding members a stretch of `degree`/2 places may hold.

    >>> sparse(1000, 100, 100)[0]
    100
    """
    # two events for each member, and one more graph for each member that does not reveal its part of the seed
    chance = LOG_CHANCE - math.log(2 * members * (colluding + 1))
    given_up = LOG_GIVEN_UP - math.log(2 * members)
    for degree in range(2, members, 2):
        corrupt = _most(members, colluding, degree // 2, chance)
        gone = _most(members, dropouts, degree // 2, given_up)
        if degree // 2 - gone <= corrupt:
            continue
        holders = (
            degree + 1
        )  # a member and its neighbours; it is itself honest, or there is nothing to protect
        threshold = (holders + _most(members - 1, colluding, degree, chance)) // 2 + 1
        if holders - _most(members, dropouts, holders, given_up) >= threshold:
            return degree, threshold, corrupt
    raise PrivacyError(
        f"{colluding} colluding members and {dropouts} dropouts of {members} are too many for a sparse mask graph"
    )


def _most(population: int, marked: int, drawn: int, chance: float) -> int:
    """The least k such that more than k marked ones are drawn with at most this (logarithm of a) chance."""
    whole = _log_choose(population, drawn)
    tail = -math.inf
    for k in range(min(marked, drawn), -1, -1):
        if population - marked >= drawn - k:
            term = _log_choose(marked, k) + _log_choose(population - marked, drawn - k) - whole
            high = max(tail, term)
            tail = high + math.log(math.exp(tail - high) + math.exp(term - high))
        if tail > chance:
            return k
    return 0


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
