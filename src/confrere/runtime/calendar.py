"""Who is there in which round and who sends to whom, worked out once for all sites of a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from confrere.core.protocols import Topology
from confrere.exchange.topology import heard
from confrere.runtime.churn import Churn

T = TypeVar("T")

ROUNDS = 32
"""So many rounds are remembered; a site that was away for longer works them out again."""


class Calendar:
    """What churn and topology say about each round. Everything in it is public and the same at every site."""

    def __init__(self, churn: Churn, sites: Sequence[str], topology: Topology) -> None:
        self.churn, self.sites, self.topology = churn, tuple(sorted(sites)), topology
        self._found: dict[tuple[str, int], object] = {}
        self._rounds: list[int] = []

    def epoch(self, round: int) -> int:
        return self._once("epoch", round, lambda: self.churn.epoch(round))

    def members(self, round: int) -> tuple[str, ...]:
        """The sites that belong to the collaboration."""
        if not (self.churn.join or self.churn.leave):
            return self.sites
        return self._once("members", round, lambda: self.churn.members(round, self.sites))

    def at_work(self, round: int) -> tuple[str, ...]:
        """The members whose turn it is: all of them, unless the study draws some for each round."""
        if not self.churn.participation:
            return self.members(round)
        return self._once("at work", round, lambda: self._drawn(round))

    def _drawn(self, round: int) -> tuple[str, ...]:
        members, leader = self.members(round), getattr(self.topology, "leader", None)
        drawn = self.churn.drawn(round, members)
        if leader in members and leader not in drawn:  # who is named as the centre is always there
            drawn = tuple(sorted([*drawn, leader]))
        return drawn

    def present(self, round: int) -> frozenset[str]:
        """Whose turn it is and who can be reached."""
        return self._once(
            "present",
            round,
            lambda: frozenset(n for n in self.at_work(round) if self.churn.present(round, n)),
        )

    def centre(self, round: int) -> str | None:
        return self._once("centre", round, lambda: self.topology.centre(round, self.at_work(round)))

    def senders(self, round: int, receiver: str) -> list[str]:
        """Who is there and sends to this site."""
        found = self._once("senders", round, lambda: heard(self.topology, round, self.at_work(round)))
        present = self.present(round)
        return [s for s in found.get(receiver, ()) if s in present]

    def newcomers(self, round: int) -> tuple[str, ...]:
        """Those who are there in the next round and not in this one: somebody must tell them where things stand."""
        if not self.churn.participation:
            return ()
        here = self.at_work(round)
        return self._once(
            "newcomers",
            round,
            lambda: tuple(sorted(self.present(round + 1) - set(here))),
        )

    def teller(self, round: int) -> str | None:
        """Who tells them: the centre, or the first of those who are there."""
        return self._once(
            "teller", round, lambda: self.centre(round) or min(self.present(round), default=None)
        )

    def _once(self, what: str, round: int, work_out: Callable[[], T]) -> T:
        key = (what, round)
        if key not in self._found:
            found = work_out()
            if round not in self._rounds:
                self._rounds.append(round)
                if len(self._rounds) > ROUNDS:
                    old = self._rounds.pop(0)
                    self._found = {k: v for k, v in self._found.items() if k[1] != old}
            self._found[key] = found
        return self._found[key]  # type: ignore[return-value]
