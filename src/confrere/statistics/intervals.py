"""Interval and p-value of a mean difference over seeds, with variance from runs and from patients.

A paired difference of patient i in seed s is modelled as μ + run_s + patient_i + rest_si. Seeds share patients, because
they re-split one set of records or use a common test set, so they are not independent. With D_s the difference in seed s
and s² its variance over S seeds,

    Var(mean of D_s) = E[s²] / S + mean covariance of two seeds,

which holds however much the test sets overlap. The covariance comes only from patients that two seeds share and is
estimated from them: Σ_i c_si·c_ti, where c_si is the contribution of patient i to D_s (`contributions`). On a common test
set this is the crossed-effects estimate (MS_seed + MS_patient − MS_rest)/(S·N).

The critical value is that of Cochran and Cox (1950): the mean of Student's t with S − 1 degrees and with the degrees of
the patients, weighted by the two variances. On the side of the longer tail of the patients' contributions it is extended for
skewness (Hall 1992). docs/decisions/0012-one-rule.md has the measured error rates and power.

Everything takes arrays of any leading shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import stdtrit

Floats = NDArray[np.float64]


def variance_parts(differences: NDArray[Any], contributions: NDArray[Any]) -> tuple[Floats, Floats]:
    """The variance of the mean between seeds, and what patients shared by the seeds add to it.

    `differences` is … × seeds, `contributions` … × seeds × patients, zero where a patient is not in a seed's test set.
    The sum is never below the variance of the patients alone.
    """
    seeds = differences.shape[-1]
    between = np.asarray(differences.var(axis=-1, ddof=1) / seeds, dtype=float)
    squares = np.square(contributions.sum(axis=-2)).sum(axis=-1)
    own = np.square(contributions).sum(axis=(-2, -1))
    shared = np.maximum((squares - own) / (seeds * (seeds - 1)), 0.0)
    patients_alone = squares / seeds**2
    return between, np.asarray(np.maximum(shared, patients_alone - between), dtype=float)


@dataclass(frozen=True)
class MeanDifference:
    """A mean of paired differences over seeds, or an array of such means, with all that the rule needs to judge it."""

    mean: Any
    between: Any
    """Variance of the mean between seeds; zero for fixed models, which have no luck of the run."""
    shared: Any
    """What patients shared by the seeds add to it."""
    seeds: int
    degrees: Any
    """Of the patients: at a site those of the rarer class, minus one; on a mean over sites fewer (`contributions`)."""
    skewness: Any = 0.0
    """Of the mean, from patients alone: the sum of their cubed contributions, divided by the standard error cubed."""
    patients: Any = 0
    """Distinct patients tested, or blocks of them; at least those of the rarer class."""

    @classmethod
    def of(cls, differences: NDArray[Any], contributions: NDArray[Any], rarer: Any) -> MeanDifference:
        """From … × seeds differences and … × seeds × patients contributions, zero where a patient is not tested."""
        between, shared = variance_parts(differences, contributions)
        skewness = skewness_of(contributions.mean(axis=-2, dtype=float), between + shared)
        patients = (contributions != 0).any(axis=-2).sum(axis=-1)
        degrees = np.maximum(rarer, 2) - 1
        return cls(
            differences.mean(axis=-1), between, shared, differences.shape[-1], degrees, skewness, patients
        )

    def p(self, steps: int = 50) -> Floats:
        """The level at which the interval just reaches zero; found by bisection of its logarithm."""
        total = np.add(self.between, self.shared)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.asarray(self.mean / np.sqrt(total), dtype=float)
        low, high = np.full(t.shape, -60.0), np.zeros(t.shape)
        for _ in range(steps):
            middle = (low + high) / 2
            wider = self._errors(np.exp(middle), np.multiply(self.skewness, np.sign(t))) >= np.abs(t)
            low, high = np.where(wider, middle, low), np.where(wider, high, middle)
        found = np.where(t == 0, 1.0, np.exp(high))
        return np.asarray(np.where(total > 0, found, np.where(np.equal(self.mean, 0), 1.0, 0.0)))

    def interval(self, level: Any) -> tuple[Floats, Floats]:
        """Misses the true difference with probability `level`."""
        error = np.sqrt(np.add(self.between, self.shared))
        below, above = self._errors(level, self.skewness), self._errors(level, np.negative(self.skewness))
        return np.asarray(self.mean - error * below), np.asarray(self.mean + error * above)

    def _errors(self, level: Any, skewness: Any) -> Floats:
        """The reach of the interval below the mean, in standard errors; above it with the opposite skewness.

        It is the longer of Cochran and Cox and of Hall's correction for skewness, which starts from Student's t with all
        patients as degrees. The skewness of a sample is itself uncertain, so the correction never narrows the interval.
        """
        most = np.maximum(self.patients, np.add(self.degrees, 1)) - 1
        return np.maximum(
            self._critical(level, self.degrees), _untransformed(self._critical(level, most), skewness)
        )

    def _critical(self, level: Any, degrees: Any) -> Floats:
        total = np.add(self.between, self.shared)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(total > 0, np.divide(self.between, total), 1.0)
        tail = np.divide(level, 2)
        luck, chance = -stdtrit(max(1, self.seeds - 1), tail), -stdtrit(degrees, tail)
        return np.asarray(share * luck + (1 - share) * chance)


def skewness_of(contributions: NDArray[Any], variance: Any) -> Floats:
    """The skewness of a mean with this variance, from the contribution of each patient to it."""
    third, cubed = np.power(contributions, 3).sum(axis=-1), np.power(variance, 1.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(cubed > 0, third / cubed, 0.0))


def clear(p_values: NDArray[Any], level: float = 0.05) -> NDArray[np.bool_]:
    """Which of several differences, along the last axis, are «better» or «worse» when they are corrected together."""
    return np.asarray(p_values <= holm_levels(p_values, level))


def ratio_interval(
    differences: tuple[Floats, Floats],
    contributions: tuple[Floats, Floats],
    degrees: float,
    level: float,
    widest: float,
) -> tuple[float, float] | None:
    """The interval of the ratio of two mean differences over the same seeds and patients; None beyond `widest` to a side.

    Fieller's (1954) method with the variance of the one rule: the ratio r is in the interval if the mean of
    «numerator − r · denominator» does not differ from zero at this level.
    """
    (above, below), (own, other) = differences, contributions
    ratio = float(above.mean() / below.mean())

    def excess(r: float) -> float:
        """Positive where «numerator − r · denominator» is clearly not zero."""
        rest = MeanDifference.of(above - r * below, own - r * other, degrees + 1)
        low, high = rest.interval(level)
        return float(np.maximum(low, -high))

    ends = ratio - widest, ratio + widest
    if any(not excess(end) > 0 for end in ends):
        return None
    if not excess(ratio) < 0:  # no variance at all
        return ratio, ratio
    low, high = (float(brentq(excess, ratio, end, xtol=1e-6)) for end in ends)
    return low, high


def _untransformed(value: Any, skewness: Any) -> Floats:
    """The smaller inverse of Hall's two transformations of t: (e^(2kt/3) − 1)·3/(2k) + k/6, and t + kt²/3 + k²t³/27 + k/6.

    The first is closer to the simulated critical values. Its inverse is infinite for much skewness, that of the second is not.
    """
    k = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness)
    shift = value - k / 6
    inside = 1 + 2 / 3 * k * shift
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(inside > 0, 1.5 / k * np.log(inside), np.inf)
    return np.asarray(np.minimum(first, 3 / k * (np.cbrt(1 + k * shift) - 1)))


def holm_levels(p_values: NDArray[Any], level: float = 0.05) -> Floats:
    """The level at which each of several differences is judged (Holm 1979), along the last axis.

    A difference is clear where its p-value is at most its level. All differences after the first unclear one, in the order
    of their p-values, are judged at that one's level, so an interval at this level agrees with the word. NaN is what cannot
    be judged; it does not count in the correction.
    """
    order = np.argsort(p_values, axis=-1, kind="stable")
    ranked = np.take_along_axis(p_values, order, axis=-1)
    count = np.maximum((~np.isnan(ranked)).sum(axis=-1, keepdims=True), 1)
    rank = np.arange(p_values.shape[-1])
    levels = level / np.maximum(count - rank, 1)
    passed = np.cumprod(ranked <= levels, axis=-1).sum(axis=-1, keepdims=True)
    last = level / (count - np.minimum(passed, count - 1))
    judged = np.where(rank < passed, levels, last)
    out = np.empty_like(judged)
    np.put_along_axis(out, order, judged, axis=-1)
    return np.asarray(out, dtype=float)
