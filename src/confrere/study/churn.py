"""Membership (until a site leaves for good) and presence (from round to round) of sites.

All of it is a pure function of the study, so every site works it out for itself. On a node the clock and the
network decide instead; this is for rehearsing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.core.seeds import derive


@dataclass(frozen=True)
class Churn:
    """When sites are absent, join late or leave for good.

    [churn]
    absent = { SVHD = [3, 4] }         # rounds in which a site cannot be reached
    join = { STMW = 5 }                # first round of a late joiner
    leave = { SVHC = 10 }              # first round without a site that leaves for good
    probability = 0.2                  # and at random: absent with this probability …
    period = 8                         # … or, with a period, away for a part of every «day» of this many rounds,
    zones = { SVI = 0, other = 4 }     # shifted by the site's time zone
    participation = 50                 # this many members take part in a round, drawn anew each time; 0: all of them
    """

    absent: dict[str, list[int]] = field(default_factory=dict)
    """The rounds in which a site cannot be reached, by site."""
    join: dict[str, int] = field(default_factory=dict)
    """The first round of a site that joins late."""
    leave: dict[str, int] = field(default_factory=dict)
    """The first round without a site that leaves for good."""
    probability: float = 0.0
    """The probability that a site is absent from a round."""
    period: int = 0
    """With a period, absence is periodic: a site is away for that part of every n rounds."""
    zones: dict[str, int] = field(default_factory=dict)
    """By how many rounds a site's absence is shifted within the period."""
    participation: int = 0
    """How many members take part in a round, drawn anew each time; 0 means all of them."""
    seed: int = 0
    """The seed of random absence and of the draw."""

    def check(self, sites: Sequence[str], rounds: int) -> None:
        """Refuse what names no site or no round, and a site that would never take part."""
        for key in ("absent", "join", "leave", "zones"):
            for name in getattr(self, key):
                if name not in sites:
                    raise StudyError(
                        f'churn.{key} names "{name}", which is not a site of this study{nearest(name, list(sites))}'
                    )
        if not 0 <= self.probability < 1:
            raise StudyError(f"churn.probability is {self.probability}; it must be at least 0 and below 1")
        for name, joins in self.join.items():
            if not 0 <= joins < rounds:
                raise StudyError(
                    f'churn.join: "{name}" would join in round {joins}; the rounds are 0 to {rounds - 1}'
                )
        for name, leaves in self.leave.items():
            if leaves <= self.join.get(name, 0):
                raise StudyError(f'churn: "{name}" would leave in round {leaves}, before it has joined')
        if self.period < 0:
            raise StudyError(f"churn.period is {self.period}; it is a number of rounds")
        if self.participation and not 2 <= self.participation <= len(sites):
            raise StudyError(
                f"churn.participation is {self.participation}; between 2 and all {len(sites)} sites take part in a"
                " round (0: all of them)"
            )
        for name in self.absent:
            mine = {r for r in range(rounds) if name in self.members(r, [name])}
            if mine <= set(self.absent.get(name, ())):
                raise StudyError(f'churn.absent: "{name}" would miss every round; leave it out of the study')
        if not any(self.present(r, s) for r in range(rounds) for s in self.members(r, sites)):
            raise StudyError("churn: no site would be present in any round; lower churn.probability")

    def members(self, round: int, sites: Sequence[str]) -> tuple[str, ...]:
        """The sites that belong to the collaboration in a round, in sorted order."""
        return tuple(s for s in sorted(sites) if self.join.get(s, 0) <= round < self.leave.get(s, round + 1))

    def drawn(self, round: int, members: Sequence[str]) -> tuple[str, ...]:
        """The members that take part in a round, in sorted order: drawn by lot, the same at every site.

        The work is that of those who are drawn, however many there are (Floyd's method).
        """
        if not 0 < self.participation < len(members):
            return tuple(members)
        lot = Random(derive(self.seed, "participation", round))
        chosen: set[int] = set()
        for last in range(len(members) - self.participation, len(members)):
            at = int(lot.random() * (last + 1))
            chosen.add(last if at in chosen else at)
        return tuple(members[i] for i in sorted(chosen))

    def changes(self, rounds: int) -> list[int]:
        """The rounds that begin with other members than the one before; the first is always among them."""
        return sorted({0, *(r for r in [*self.join.values(), *self.leave.values()] if 0 < r < rounds)})

    def epoch(self, round: int) -> int:
        """How often the membership has changed up to this round."""
        return len(self.changes(round + 1)) - 1

    def present(self, round: int, site: str) -> bool:
        """Whether a member can be reached in a round."""
        if round in self.absent.get(site, ()):
            return False
        if self.probability <= 0:
            return True
        if self.period > 1:  # away once a «day», for a part of it as long as the probability says
            away = math.ceil(self.probability * self.period)
            return (round + self.zones.get(site, 0)) % self.period >= away
        return derive(self.seed, "churn", site, round) / 2**63 >= self.probability
