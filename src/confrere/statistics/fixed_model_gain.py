"""Differences between fixed models on the same patients: the claim is about these models, not about another run.

There is no luck of the run, so patients are the only source of variance, and the degrees of freedom are those of the
patients in the one rule (`intervals`): patients of the rarer class, minus one. A model that is certain and seldom wrong
looks better than it is on patients among whom these errors are missing, so the interval is extended on the side of the
longer tail (`intervals.MeanDifference`). Several differences are corrected together (Holm), and each interval is at
the level at which its word was judged. docs/decisions/0012-one-rule.md has the measured rate of wrong words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confrere.core.metrics import METRICS
from confrere.statistics.contributions import Judged, _Blocks, _counted
from confrere.statistics.intervals import MeanDifference, holm_levels, skewness_of
from confrere.statistics.verdict import LEAST_RARER, LEVEL, SAME, Gain, Key, Word


@dataclass(frozen=True)
class FixedEffect:
    """A difference between fixed models; positive is better."""

    mean: float
    variance: float
    """Of the mean."""
    degrees: int
    enough: bool = True
    """Whether it can be judged at all."""

    skewness: float = 0.0
    """Of the mean: the sum of the patients' cubed contributions, divided by the standard error cubed."""
    patients: int = 0
    """Distinct test patients, or blocks of them; at least those of the rarer class."""

    @property
    def difference(self) -> MeanDifference:
        """As the rule judges it: without any variance between runs."""
        return MeanDifference(self.mean, 0.0, self.variance, 1, self.degrees, self.skewness, self.patients)

    @property
    def p(self) -> float:
        return float(self.difference.p())

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        low, high = self.difference.interval(level)
        return float(low), float(high)

    @classmethod
    def of(cls, mean: float, contributions: NDArray[np.float64], rarer: int) -> FixedEffect:
        """From the contribution of each patient to the mean, which may be that of any metric."""
        variance = float(np.square(contributions).sum())
        skewness, patients = float(skewness_of(contributions, variance)), int(np.count_nonzero(contributions))
        return cls(mean, variance, max(1, rarer - 1), rarer >= LEAST_RARER, skewness, patients)


@dataclass(frozen=True)
class JudgedPatients:
    """The patients behind a set of records, and how many of them are of the rarer class."""

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

    @property
    def count(self) -> int:
        """The number of distinct patients."""
        return int(self.whose.max()) + 1 if len(self.whose) else 0

    def effect(self, differences: NDArray[np.float64]) -> FixedEffect:
        """The mean over records; the records of one patient stray together."""
        if not len(differences):
            return FixedEffect(math.nan, 0.0, 1, enough=False)
        mean, count = float(differences.mean()), self.count
        shares = np.bincount(self.whose, (differences - mean) / len(differences), count)
        scaled = np.asarray(shares * math.sqrt(count / max(1, count - 1)), dtype=np.float64)
        return FixedEffect.of(mean, scaled, self.rarer)


def model_effects(before: Judged, after: Judged) -> dict[str, FixedEffect]:
    """By metric, what one model gains over another on the same test patients."""
    places, rarer = _Blocks.of([before]), _counted([before]).rarer
    own, other = places.contributions(0, before), places.contributions(0, after)
    found = {}
    for metric in own.keys() & other.keys():
        sign, mean = METRICS[metric].sign, other[metric][0] - own[metric][0]
        if not math.isnan(mean):
            contributions = sign * (other[metric][1] - own[metric][1])
            found[metric] = FixedEffect.of(sign * mean, contributions, rarer)
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
    low, high = effect.interval(level)
    if low > -SAME and high < SAME:  # rounding makes no model better
        mean = low = high = 0.0
    word: Word = "better" if low > 0 else "worse" if high < 0 else "no clear difference"
    return Gain(mean, None, low, high, pairs, word)
