"""Intervals and p-values of a mean difference over seeds, with variance from two sources: runs and patients.

A paired difference of patient i in seed s is modelled as μ + run_s + patient_i + rest_si. Seeds share patients, because
they re-split one set of records or use a common test set, so they are not independent. With D_s the difference in seed s
and s² its variance over S seeds,

    Var(mean of D_s) = E[s²] / S + mean covariance of two seeds,

which holds however much the test sets overlap. The covariance comes only from patients that two seeds share and is
estimated from them: Σ_i c_si·c_ti, where c_si is the contribution of patient i to D_s (`contributions`). On a common test
set this is the crossed-effects estimate (MS_seed + MS_patient − MS_rest)/(S·N).

The critical value is that of Cochran and Cox (1950): the mean of Student's t with S − 1 degrees and with the degrees of
the patients, weighted by the two variances. docs/decisions/0012-one-rule.md has the measured error rates and power.

All functions take arrays of any leading shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit

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


def half_width(between: Any, shared: Any, seeds: int, degrees: Any, level: Any) -> Floats:
    """Half the width of the interval that misses the truth with probability `level`."""
    between, shared = np.asarray(between, dtype=float), np.asarray(shared, dtype=float)
    total = between + shared
    with np.errstate(invalid="ignore"):
        share = np.where(total > 0, between / total, 1.0)
    luck, chance = -stdtrit(seeds - 1, np.divide(level, 2)), -stdtrit(degrees, np.divide(level, 2))
    return np.asarray((share * luck + (1 - share) * chance) * np.sqrt(total))


def p_value(mean: Any, between: Any, shared: Any, seeds: int, degrees: Any, steps: int = 50) -> Floats:
    """The level at which the interval just reaches zero; found by bisection of its logarithm."""
    size = np.abs(np.asarray(mean, dtype=float))
    low, high = np.full(size.shape, -60.0), np.zeros(size.shape)
    for _ in range(steps):
        middle = (low + high) / 2
        wider = half_width(between, shared, seeds, degrees, np.exp(middle)) >= size
        low, high = np.where(wider, middle, low), np.where(wider, high, middle)
    return np.asarray(np.where(size == 0, 1.0, np.exp(high)))


def ratio_interval(
    differences: tuple[Floats, Floats],
    contributions: tuple[Floats, Floats],
    degrees: int,
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
        parts = variance_parts(above - r * below, own - r * other)
        size = abs(float((above - r * below).mean()))
        return size - float(half_width(*parts, len(above), degrees, level))

    ends = ratio - widest, ratio + widest
    if any(not excess(end) > 0 for end in ends):
        return None
    if not excess(ratio) < 0:  # no variance at all
        return ratio, ratio
    low, high = (float(brentq(excess, ratio, end, xtol=1e-6)) for end in ends)
    return low, high


def reach_with_skewness(variance: Any, skewness: Any, degrees: Any, level: Any) -> tuple[Floats, Floats]:
    """How far the interval of a mean reaches below and above it, if the mean itself has some skewness.

    To each side it is the longer of Student's t and of Hall's (1992) transformation, which corrects for skewness. The
    skewness of a sample is itself uncertain, so the correction may widen the interval and never narrows it.
    """
    error, critical = np.sqrt(variance), -stdtrit(degrees, np.divide(level, 2))
    below = np.maximum(critical, _untransformed(critical, skewness))
    above = np.maximum(critical, -_untransformed(-critical, skewness))
    return np.asarray(error * below), np.asarray(error * above)


def p_with_skewness(mean: Any, variance: Any, skewness: Any, degrees: Any) -> Floats:
    """The level at which the interval of `reach_with_skewness` just reaches zero."""
    mean, variance = np.asarray(mean, dtype=float), np.asarray(variance, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean / np.sqrt(variance)
        corrected = (
            t + np.multiply(skewness, t**2) / 3 + np.square(skewness) * t**3 / 27 + np.divide(skewness, 6)
        )
        size = np.maximum(np.minimum(np.abs(t), np.sign(t) * corrected), 0.0)
    found = np.minimum(1.0, 2 * stdtr(degrees, -size))
    return np.asarray(np.where(variance > 0, found, np.where(mean == 0, 1.0, 0.0)))


def _untransformed(value: Any, skewness: Any) -> Floats:
    """The inverse of Hall's transformation t + kt²/3 + k²t³/27 + k/6."""
    k = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness)
    return np.asarray(3 / k * (np.cbrt(1 + k * (value - k / 6)) - 1))


def holm_levels(p_values: NDArray[Any], level: float = 0.05) -> Floats:
    """The level at which each of several differences is judged (Holm 1979), along the last axis.

    A difference is clear where its p-value is at most its level. All differences after the first unclear one, in the order
    of their p-values, are judged at that one's level, so an interval at this level agrees with the word.
    """
    count = p_values.shape[-1]
    order = np.argsort(p_values, axis=-1, kind="stable")
    ranked = np.take_along_axis(p_values, order, axis=-1)
    levels = np.broadcast_to(level / (count - np.arange(count)), ranked.shape)
    clear = np.cumprod(ranked <= levels, axis=-1).sum(axis=-1, keepdims=True)
    last = level / (count - np.minimum(clear, count - 1))
    judged = np.where(np.arange(count) < clear, levels, last)
    out = np.empty_like(judged)
    np.put_along_axis(out, order, judged, axis=-1)
    return np.asarray(out, dtype=float)
