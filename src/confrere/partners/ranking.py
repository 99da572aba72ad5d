"""Rankings of possible partners: for each peer a value, its standard error, and a sentence in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from confrere.core.results import Document
from confrere.partners import Method

NEEDS_RECORDS = "its records, which no site does"
"""What a peer would have to send for a method that works in simulations only."""


@dataclass(frozen=True)
class Criteria:
    """Whose partners are ranked, and when a difference counts."""

    user: str
    z: float = 1.0
    """A difference counts if it exceeds this many standard errors."""
    released: bool = False
    """Whether peers add noise to what they send; without it, the result is for simulations only."""

    def sends(self, what: str) -> str:
        """What a peer has to send, in words."""
        return f"{what}, with noise" if self.released else what


@dataclass(frozen=True)
class PartnerScore(Document):
    """One possible partner by one method."""

    OPTIONAL = ("terms",)
    KEYS: ClassVar[Mapping[str, str]] = {"peer": "site", "error": "standard_error"}

    peer: str
    value: float
    error: float
    """Standard error of the value."""
    chosen: bool
    sentence: str
    terms: Mapping[str, float] = field(default_factory=dict)
    """The parts of the value."""


@dataclass(frozen=True)
class Ranking(Document):
    """All possible partners by one method, the best first."""

    UNSTATED = ("method",)
    KEYS: ClassVar[Mapping[str, str]] = {"scores": "ranking"}

    method: Method
    title: str
    measures: str
    """What the value is, in plain words."""
    scores: tuple[PartnerScore, ...]
    sends: str
    """What a peer has to send for it."""
    simulation_only: bool
    """Whether it needs records, or models without noise, that no peer would send."""

    @property
    def chosen(self) -> list[str]:
        return [s.peer for s in self.scores if s.chosen]

    def top(self, count: int) -> Ranking:
        """The same ranking with the first `count` peers chosen."""
        return replace(self, scores=tuple(replace(s, chosen=n < count) for n, s in enumerate(self.scores)))


def ranked(scores: Sequence[PartnerScore], *, least_first: bool = False) -> tuple[PartnerScore, ...]:
    """The best first; ties are ordered by name."""
    return tuple(sorted(scores, key=lambda s: (s.value if least_first else -s.value, s.peer)))


def compare_records(
    peer: str, user: str, distance: float, margin: float, small: float, *, hidden: bool
) -> tuple[bool, str]:
    """Whether to choose a peer whose records are `distance` ± `margin` from the user's, and a sentence that says so.

    A distance below `small` is small; `hidden` means that noise hides the peer's records.
    """
    if hidden:
        return False, f"Noise hides what the records of {peer} look like"
    if distance + margin < small:
        return True, f"The records of {peer} look much like those of {user}"
    degree = "somewhat" if distance - margin < small else "clearly"
    return False, f"The records of {peer} look {degree} different from those of {user}"
