"""Rankings of possible partners: for each peer a value with its interval, a finding, and a sentence in plain words.

A method states for each peer how far its value speaks for the peer, with an error. All peers of one method are judged
together by the one rule (`statistics`): a finding is «yes» or «no» only where the interval says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from confrere.core.results import Document
from confrere.partners import Method
from confrere.statistics.fixed_model_gain import FixedEffect, judge_fixed
from confrere.statistics.verdict import Gain, Word

NEEDS_RECORDS = "its records, which no site does"
"""What a peer would have to send for a method that works in simulations only."""

KNOWN = 10**6
"""Degrees of freedom of an error that follows from known noise instead of being estimated."""

Finding = Literal["yes", "no", "unclear", "too few", "noise"]
"""Whether a method speaks for a peer: clearly, clearly not, neither, too few patients to judge, or hidden by noise."""

FINDINGS: Mapping[Word, Finding] = {
    "better": "yes", "worse": "no", "no clear difference": "unclear", "too few to judge": "too few",
}  # fmt: skip


@dataclass(frozen=True)
class Criteria:
    """Whose partners are ranked, and whether peers add noise to what they send."""

    user: str
    released: bool = False
    """Without noise, the result is for simulations only."""

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
    finding: Finding
    interval: tuple[float, float] | None
    """Of the value, at the level at which the peer was judged; None where it was not."""
    chosen: bool
    sentence: str
    terms: Mapping[str, float] = field(default_factory=dict)
    """The parts of the value."""


@dataclass(frozen=True)
class Candidate:
    """One peer by one method, before all peers are judged together."""

    peer: str
    value: float
    error: float
    favour: FixedEffect | None
    """How far the value speaks for the peer; None where noise hides it."""
    sentence: Callable[[Finding], str]
    terms: Mapping[str, float] = field(default_factory=dict)
    may_help: bool = True
    may_harm: bool = True
    """Whether the rest of what is known allows a clear finding."""


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

    @property
    def findings(self) -> dict[str, Finding]:
        return {s.peer: s.finding for s in self.scores}

    def top(self, count: int) -> Ranking:
        """The same ranking with the first `count` peers chosen."""
        return replace(self, scores=tuple(replace(s, chosen=n < count) for n, s in enumerate(self.scores)))


def ranked(candidates: Sequence[Candidate], *, least_first: bool = False) -> tuple[PartnerScore, ...]:
    """All peers of one method, judged together; the best first, ties by name."""
    judged = judge_fixed({c.peer: c.favour for c in candidates if c.favour is not None})
    scores = []
    for c in candidates:
        gain = judged.get(c.peer)
        finding: Finding = "noise" if gain is None else FINDINGS[gain.word]
        if (finding == "yes" and not c.may_help) or (finding == "no" and not c.may_harm):
            finding = "unclear"
        interval = None
        if gain is not None and gain.judged and c.favour is not None and math.isfinite(c.error):
            interval = _interval(c, c.favour, gain, least_first)
        scores.append(
            PartnerScore(
                c.peer, c.value, c.error, finding, interval, finding == "yes", c.sentence(finding), c.terms
            )
        )
    return tuple(sorted(scores, key=lambda s: (s.value if least_first else -s.value, s.peer)))


def _interval(
    candidate: Candidate, favour: FixedEffect, gain: Gain, less_is_better: bool
) -> tuple[float, float]:
    """The interval of the value, from that of the favour; these have opposite signs where less is better."""
    assert gain.low is not None
    assert gain.high is not None
    width = math.sqrt(favour.variance)
    scale = candidate.error / width if width else 0.0
    below, above = scale * (gain.mean - gain.low), scale * (gain.high - gain.mean)
    if less_is_better:
        below, above = above, below
    return candidate.value - below, candidate.value + above


@dataclass(frozen=True)
class RecordDistance:
    """How far a peer's records are from the user's, before any training."""

    value: float
    error: float
    small: float
    """A distance clearly below this is small."""
    hidden: bool
    """Whether noise hides the peer's records."""
    shown: str
    """The distance in words."""
    most: str = ""
    """What differs most, in words."""

    def candidate(self, peer: str, user: str) -> Candidate:
        """The peer: its records are alike if the distance is clearly small."""

        def sentence(finding: Finding) -> str:
            if finding == "noise":
                words = f"Noise hides what the records of {peer} look like"
            elif finding == "yes":
                words = f"The records of {peer} look much like those of {user}"
            elif finding == "no":
                words = f"The records of {peer} look clearly different from those of {user}{self.most}"
            else:
                words = f"The records of {peer} look somewhat different from those of {user}"
            return f"{words} ({self.shown})."

        favour = None if self.hidden else FixedEffect(self.small - self.value, self.error**2, KNOWN)
        return Candidate(peer, self.value, self.error, favour, sentence)
