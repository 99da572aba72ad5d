"""Which sites are present in each round and which send to which, computed once for all sites of a process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from confrere.core.protocols import Topology
from confrere.exchange.topology import senders_by_receiver
from confrere.study.churn import Churn

JOINED, LEFT, ABSENT = "joined", "left", "absent"
"""The kinds of events for changes that are known beforehand."""
ROUNDS = 32
"""How many rounds are remembered; earlier ones are computed again when a site asks."""


class Schedule:
    """Presence and edges of each round, from churn and topology. All of it is public and the same at every site."""

    def __init__(self, churn: Churn, sites: Sequence[str], topology: Topology) -> None:
        self.churn, self.sites, self.topology = churn, tuple(sorted(sites)), topology
        self._rounds: dict[int, ScheduledRound] = {}

    def round(self, round: int) -> ScheduledRound:
        """The facts of a round."""
        found = self._rounds.get(round)
        if found is None:
            found = self._rounds[round] = ScheduledRound(self, round)
            if len(self._rounds) > ROUNDS:
                del self._rounds[next(iter(self._rounds))]
        return found


class ScheduledRound:
    """One round of a schedule; each fact is worked out when it is first asked for."""

    def __init__(self, schedule: Schedule, round: int) -> None:
        self._schedule, self.round = schedule, round

    @cached_property
    def epoch(self) -> int:
        return self._schedule.churn.epoch(self.round)

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The sites that belong to the collaboration."""
        churn, sites = self._schedule.churn, self._schedule.sites
        return churn.members(self.round, sites) if churn.join or churn.leave else sites

    @cached_property
    def participants(self) -> tuple[str, ...]:
        """The members that take part: all of them, unless the study draws some for each round."""
        churn, leader = self._schedule.churn, getattr(self._schedule.topology, "leader", None)
        if not churn.participation:
            return self.members
        drawn = churn.drawn(self.round, self.members)
        if leader in self.members and leader not in drawn:  # who is named as the centre is always there
            drawn = tuple(sorted([*drawn, leader]))
        return drawn

    @cached_property
    def present(self) -> frozenset[str]:
        """The participants that can be reached."""
        there = self._schedule.churn.present
        return frozenset(n for n in self.participants if there(self.round, n))

    @cached_property
    def centre(self) -> str | None:
        return self._schedule.topology.centre(self.round, self.participants)

    @cached_property
    def senders(self) -> Mapping[str, Sequence[str]]:
        """For each receiver, the present sites that send to it."""
        found = senders_by_receiver(self._schedule.topology, self.round, self.participants)
        if len(self.present) == len(self.participants):
            return found
        return {receiver: [s for s in froms if s in self.present] for receiver, froms in found.items()}

    @cached_property
    def changes(self) -> Mapping[str, str]:
        """The sites that join in this round, have left before it, or cannot be reached in it, by kind of event."""
        churn = self._schedule.churn
        found: dict[str, str] = {}
        moves = bool(churn.join or churn.leave)
        before = (
            set(self._schedule.round(self.round - 1).members) if moves and self.round else set(self.members)
        )
        if moves:
            now = set(self.members)
            found |= {n: JOINED for n in self.members if n not in before}
            found |= dict.fromkeys(sorted(before - now), LEFT)
        if churn.absent or churn.probability:
            found |= {n: ABSENT for n in self.participants if n not in self.present and n in before}
        return found

    @cached_property
    def returning(self) -> frozenset[str]:
        """The sites that are present in the next round and not in this one: they do not have the common model."""
        churn = self._schedule.churn
        if not (churn.participation or churn.join or churn.absent or churn.probability):
            return frozenset()
        return self._schedule.round(self.round + 1).present - self.present

    def sender_of_common(self, missing: Collection[str] = ()) -> str | None:
        """Which site sends the common model to them: the centre, or the first of those that are not `missing`."""
        return self.centre or min(self.present.difference(missing), default=None)

    @cached_property
    def rounds_to_reach_all(self) -> int:
        """In how many rounds, this one the last, a message from every site could reach every other.

        0 without peers. A graph that never connects all sites counts as many rounds as it has sites.
        """
        sites = self.participants
        all_sites = (1 << len(sites)) - 1
        # as bits: whose messages reach a site, going back round by round
        known = [1 << n for n in range(len(sites))]
        for count in range(1, min(len(sites), self.round + 1) + 1):
            reached_by = self._schedule.round(self.round - count + 1)._reached_by(sites)
            known = [_union(own, reached_by) for own in known]
            if all(own == all_sites for own in known):
                return count if len(sites) > 1 else 0
        return len(sites) if any(own.bit_count() > 1 for own in known) else 0

    def _reached_by(self, sites: Sequence[str]) -> list[int]:
        """For each site, as bits, itself and the sites whose messages reach it; with a centre, all do."""
        numbers = {name: n for n, name in enumerate(sites)}
        out = [1 << n for n in range(len(sites))]
        found = senders_by_receiver(self._schedule.topology, self.round, self.participants)
        for receiver, senders in found.items():
            for sender in senders if receiver in numbers else ():
                if sender in numbers:
                    out[numbers[receiver]] |= 1 << numbers[sender]
        if self.centre in numbers and any(own.bit_count() > 1 for own in out):
            return [(1 << len(sites)) - 1] * len(sites)
        return out


def _union(own: int, reached_by: Sequence[int]) -> int:
    """All sites whose messages have reached one of a set of sites, as bits."""
    out = 0
    while own:
        lowest = own & -own
        out |= reached_by[lowest.bit_length() - 1]
        own ^= lowest
    return out
