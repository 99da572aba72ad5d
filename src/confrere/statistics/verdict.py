"""The one rule for «better», «worse», «no clear difference» and «too few to judge».

Terminal, report, documents, partners and repeated experiments read these words; none has a rule of its own. Only the
study's primary metric carries words. All words of one comparison are corrected together (Holm), so a comparison in which
nothing differs contains a wrong word in at most about 5 % of cases (docs/decisions/0012-one-rule.md). Other measures are
shown with a plain 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from confrere.statistics.intervals import MeanDifference, holm_levels

Word = Literal[
    "better",
    "no clear difference",
    "worse",
    "too few to judge",
    "not judged",
    "made by an earlier version; run again to judge",
]
WORDS: tuple[Word, ...] = get_args(Word)
EARLIER: Word = "made by an earlier version; run again to judge"
"""Instead of a word, where a result was written before comparisons stated words."""

LEVEL = 0.05
"""How often a comparison in which nothing differs may contain a wrong word."""
LEAST_SEEDS = 3
LEAST_RARER = 10
"""Distinct test patients of the rarer class; with fewer, neither a difference nor its absence can be judged."""
SAME = 1e-6
"""Two models that differ by less differ by rounding only."""
WIDEST_SHARE = 0.5
"""A share of the gap whose interval is wider than this to either side is not stated."""
LEAST_SEEDS_OF_SHARE = 5
"""With fewer, short intervals are mostly those of a variance that happens to be underestimated: 9 % missed the share."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Effect:
    """A paired difference, seed by seed, with the two parts of the variance of its mean and its skewness (`intervals`)."""

    values: tuple[float, ...]
    between: float
    shared: float
    rarer: int
    """Distinct test patients of the rarer class: at one site, the degrees of freedom of the patients, plus one."""
    skewness: float = 0.0
    patients: int = 0
    """Distinct test patients; at least those of the rarer class."""
    degrees: float | None = None
    """Of the patients, where they are not `rarer` − 1: on a mean over sites. Zero where a site tests a single patient."""

    @classmethod
    def of(
        cls,
        values: NDArray[np.float64],
        contributions: NDArray[np.float64],
        rarer: int,
        degrees: float | None = None,
    ) -> Effect:
        """From the difference in each seed, and the contribution of each patient to it (seeds × patients)."""
        if len(values) < 2:
            return cls(tuple(values.tolist()), 0.0, 0.0, rarer, degrees=degrees)
        found = MeanDifference.of(values, contributions, rarer)
        variances = float(found.between), float(found.shared)
        skewness, patients = float(found.skewness), int(found.patients)
        return cls(tuple(values.tolist()), *variances, rarer, skewness, patients, degrees)

    @property
    def difference(self) -> MeanDifference:
        """As the rule judges it."""
        seeds = len(self.values)
        degrees = max(1.0, self.rarer - 1 if self.degrees is None else self.degrees)
        return MeanDifference(
            self.mean, self.between, self.shared, seeds, degrees, self.skewness, self.patients
        )

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def enough(self) -> bool:
        """Whether it can be judged at all."""
        return len(self.values) >= LEAST_SEEDS and self.rarer >= LEAST_RARER and self.degrees != 0

    @property
    def p(self) -> float:
        return float(self.difference.p())

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """None where there are too few seeds or patients for one."""
        if not self.enough:
            return None
        low, high = self.difference.interval(level)
        return float(low), float(high)


@dataclass(frozen=True)
class Gain:
    """How much better one way of learning is than another: positive is better, whatever the metric.

    `low` to `high` is its interval. `stated` is the word of the comparison, which knows how many words it contains.
    The interval alone never makes one: a gain by another metric is «not judged».
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    pairs: int
    stated: Word | None = None

    @property
    def word(self) -> Word:
        if self.stated is not None:
            return self.stated
        return "too few to judge" if self.low is None else "not judged"

    @property
    def judged(self) -> bool:
        """Whether there was enough to judge it, by this version's rule."""
        return self.word not in ("too few to judge", "not judged", EARLIER)

    @property
    def clear(self) -> bool:
        """Whether the difference is clear, in either direction."""
        return self.word in ("better", "worse")


@dataclass(frozen=True)
class GapClosed:
    """How much of the gap between training alone and pooling all records was closed."""

    gap: Gain
    gained: Gain
    share: float | None
    """None where there is no clear gap, or where the share is too uncertain to state."""
    interval: tuple[float, float] | None = None
    """Of the share, at 95 %."""


def judge_all(effects: Mapping[Key, Effect]) -> dict[Key, Gain]:
    """The words of one comparison, corrected together; each interval is at the level at which its word was judged.

    What has too few seeds or patients gets no interval and does not count in the correction.
    """
    judged = [key for key, effect in effects.items() if effect.enough]
    levels = dict(zip(judged, _levels([effects[key].p for key in judged]), strict=True))
    found: dict[Key, Gain] = {}
    for key, effect in effects.items():
        gain = shown(effect, levels.get(key, LEVEL))
        found[key] = replace(gain, stated=_word(gain))
    return found


def _word(gain: Gain) -> Word:
    if gain.low is None or gain.high is None:
        return "too few to judge"
    return "better" if gain.low > 0 else "worse" if gain.high < 0 else "no clear difference"


def shown(effect: Effect, level: float = LEVEL) -> Gain:
    """An effect with its interval, uncorrected unless `level` says otherwise."""
    std = float(np.std(effect.values, ddof=1)) if len(effect.values) > 1 else None
    low, high = effect.interval(level) or (None, None)
    return Gain(effect.mean, std, low, high, len(effect.values))


def stated(
    values: Iterable[float | None],
    interval: tuple[float, float] | None = None,
    word: str | None = None,
) -> Gain | None:
    """A gain as a comparison states it, by its values over seeds; None without a pair. Nothing is judged here.

    A difference that could not be measured (None) makes no pair.
    """
    pairs = [v for v in values if v is not None]
    if not pairs:
        return None
    mean, std = math.fsum(pairs) / len(pairs), float(np.std(pairs, ddof=1)) if len(pairs) > 1 else None
    low, high = interval or (None, None)
    return Gain(mean, std, low, high, len(pairs), next((w for w in WORDS if w == word), None))


def _levels(p_values: Sequence[float]) -> list[float]:
    return [float(v) for v in holm_levels(np.array(p_values), LEVEL)] if p_values else []
