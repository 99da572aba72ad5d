"""Differences between fixed models on the same patients: the claim is about these models, not about another run.

There is no luck of the run, so patients are the only source of variance, and the degrees of freedom are those of the
patients in the one rule (`intervals`): patients of the rarer class, minus one. Several differences are corrected together
(Holm), and each interval is at the level at which its word was judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confrere.core.metrics import METRICS
from confrere.statistics.contributions import Judged, _Blocks, _counted
from confrere.statistics.intervals import half_width, holm_levels, p_value
from confrere.statistics.verdict import LEAST_RARER, LEVEL, SAME, Gain, Key, Word

NO_SEEDS = 2
"""`intervals` takes a number of seeds; without variance between them it does not matter."""


@dataclass(frozen=True)
class FixedEffect:
    """A difference between fixed models; positive is better."""

    mean: float
    variance: float
    """Of the mean."""
    degrees: int
    enough: bool = True
    """Whether it can be judged at all."""

    @property
    def p(self) -> float:
        return float(p_value(self.mean, 0.0, self.variance, NO_SEEDS, self.degrees))

    def half_width(self, level: float = LEVEL) -> float:
        """Half the width of its interval."""
        return float(half_width(0.0, self.variance, NO_SEEDS, self.degrees, level))


@dataclass(frozen=True)
class JudgedPatients:
    """Whose records some records are, and how many of these patients are of the rarer class."""

    whose: NDArray[np.int64]
    """For each record the number of its patient, from 0."""
    rarer: int

    @classmethod
    def of(cls, targets: NDArray[np.generic], patients: NDArray[np.generic] | None = None) -> JudgedPatients:
        """For a number, or for several labels, all patients count as of the rarer class."""
        who = np.arange(len(targets)) if patients is None else patients
        numbers = np.unique(who, return_inverse=True)[1].astype(np.int64)
        rare = np.ones(len(targets), dtype=bool)
        if targets.dtype.kind != "f" and len(targets):
            labels = targets.reshape(-1).astype(np.int64)
            rare = labels != np.bincount(labels).argmax()
        return cls(numbers, len(np.unique(numbers[rare])))

    def effect(self, differences: NDArray[np.float64]) -> FixedEffect:
        """The mean over records; the records of one patient stray together."""
        if not len(differences):
            return FixedEffect(math.nan, 0.0, 1, enough=False)
        mean, count = float(differences.mean()), int(self.whose.max()) + 1
        shares = np.bincount(self.whose, (differences - mean) / len(differences), count)
        variance = float(np.square(shares).sum()) * count / max(1, count - 1)
        return FixedEffect(mean, variance, max(1, self.rarer - 1), self.rarer >= LEAST_RARER)


def model_effects(before: Judged, after: Judged) -> dict[str, FixedEffect]:
    """By metric, what one model gains over another on the same test patients."""
    places, rarer = _Blocks.of([before]), _counted([before]).rarer
    own, other = places.contributions(0, before), places.contributions(0, after)
    found = {}
    for metric in own.keys() & other.keys():
        sign, mean = METRICS[metric].sign, other[metric][0] - own[metric][0]
        if not math.isnan(mean):
            variance = float(np.square(other[metric][1] - own[metric][1]).sum())
            found[metric] = FixedEffect(sign * mean, variance, max(1, rarer - 1), rarer >= LEAST_RARER)
    return found


def judge_fixed(effects: Mapping[Key, FixedEffect]) -> dict[Key, Gain]:
    """The words of one family, corrected together; what has too few patients does not count in the correction."""
    judged = [key for key, effect in effects.items() if effect.enough]
    levels = holm_levels(np.array([effects[key].p for key in judged]), LEVEL) if judged else np.zeros(0)
    known = dict(zip(judged, levels.tolist(), strict=True))
    return {key: _judged(effect, known.get(key)) for key, effect in effects.items()}


def _judged(effect: FixedEffect, level: float | None) -> Gain:
    mean, pairs = effect.mean, effect.degrees + 1
    if level is None:
        return Gain(mean, None, None, None, pairs, "too few to judge")
    half = effect.half_width(level)
    if abs(mean) + half < SAME:  # rounding makes no model better
        mean = half = 0.0
    low, high = mean - half, mean + half
    word: Word = "better" if low > 0 else "worse" if high < 0 else "no clear difference"
    return Gain(mean, None, low, high, pairs, word)
