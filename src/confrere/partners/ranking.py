"""How a possible partner stands by one method: a value, how sure it is, and what it means in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

By = Literal[
    "influence", "transfer", "leave-one-out", "add-one-in", "running", "similarity", "clusters", "profiles",
    "jensen-shannon", "renyi",
]  # fmt: skip
METHODS: tuple[By, ...] = get_args(By)


@dataclass(frozen=True)
class PartnerScore:
    """One possible partner by one method."""

    peer: str
    value: float
    error: float
    """Standard error of the value."""
    chosen: bool
    sentence: str
    terms: Mapping[str, float] = field(default_factory=dict)
    """What the value is made of."""

    def as_json(self) -> dict[str, Any]:
        return {
            "site": self.peer, "value": self.value, "standard_error": self.error, "chosen": self.chosen,
            "sentence": self.sentence, **({"terms": dict(self.terms)} if self.terms else {}),
        }  # fmt: skip


@dataclass(frozen=True)
class Ranking:
    """All possible partners by one method, the best first."""

    method: str
    title: str
    measures: str
    """What the value is, in plain words."""
    standings: tuple[PartnerScore, ...]
    sends: str
    """What a peer has to send for it."""
    simulation_only: bool
    """Whether it needs records, or models without noise, that no peer would send."""

    @property
    def chosen(self) -> list[str]:
        return [s.peer for s in self.standings if s.chosen]

    def top(self, count: int) -> Ranking:
        """The same with the first ones chosen instead, whatever they are worth."""
        return replace(
            self, standings=tuple(replace(s, chosen=n < count) for n, s in enumerate(self.standings))
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title, "measures": self.measures, "simulation_only": self.simulation_only,
            "sends": self.sends, "ranking": [s.as_json() for s in self.standings],
        }  # fmt: skip


def ranked(standings: Sequence[PartnerScore], *, least_first: bool = False) -> tuple[PartnerScore, ...]:
    """The best first; equals by name, so that the order never depends on luck."""
    return tuple(sorted(standings, key=lambda s: (s.value if least_first else -s.value, s.peer)))


def likeness(
    peer: str, user: str, distance: float, error: float, like: float, *, hidden: bool, how: str, other: str
) -> tuple[bool, str]:
    """Whether a peer with this distance between its records and the user's is chosen, and a sentence that says so.

    `like` is a small distance; `hidden` says that noise leaves nothing to go by.
    """
    if hidden:
        return False, f"Noise hides what the records of {peer} look like"
    if distance + error < like:
        return True, f"The records of {peer} {how} much like those of {user}"
    degree = "somewhat" if distance - error < like else "clearly"
    return False, f"The records of {peer} {how} {degree} {other} from those of {user}"
