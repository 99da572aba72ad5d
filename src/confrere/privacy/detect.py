"""What an attacker really detects: statistics that turn scores into a lower bound on ε, with confidence.

A bound from below can show that a guarantee is broken; it can never show that one holds. All functions are
pure: scores go in, numbers come out. A higher score says «this record was in».
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from confrere.core.errors import StudyError
from confrere.privacy.charges import rounded_up

Numbers = NDArray[np.float64]

SHARES = (0.05, 0.2, 0.5, 1.0)
"""Of how many canaries a guess is made; fixed beforehand, and corrected for."""

MOST = 50.0
"""A bound is not looked for beyond this ε: nothing is private there."""


@dataclass(frozen=True)
class Detected:
    """«At least ε was detected», at this confidence.

    >>> print(Detected(2.24, 1e-5, 0.95, "one run").against(0.6))
    at least ε = 2.24 was detected (95 % confidence, one run); claimed 0.6: the guarantee is broken
    """

    epsilon: float
    delta: float
    confidence: float
    how: Literal["one run", "many runs"]

    def breaks(self, claimed: float) -> bool:
        """Whether a claimed ε is refuted."""
        return self.epsilon > claimed

    def __str__(self) -> str:
        shown = math.floor(self.epsilon * 100) / 100  # a bound from below is rounded down
        return f"at least ε = {shown:g} was detected ({100 * self.confidence:g} % confidence, {self.how})"

    def against(self, claimed: float) -> str:
        """The verdict on a claim, in plain words."""
        verdict = (
            "the guarantee is broken"
            if self.breaks(claimed)
            else "no contradiction, which by itself proves nothing"
        )
        return f"{self}; claimed {rounded_up(claimed)}: {verdict}"


# One run with many canaries


def one_run_p_value(epsilon: float, *, canaries: int, guesses: int, right: int, delta: float) -> float:
    """How likely so many right guesses are, at most, if (ε, δ) held (Steinke, Nasr, Jagielski 2023).

    Each of `canaries` records was in with probability ½, independently; an attacker guessed for `guesses`
    of them, abstained for the others, and was right `right` times.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    as_good = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(as_good, 1.0)
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    slack = float(np.max(below / np.arange(1, right + 1)))
    return min(as_good + 2 * canaries * delta * slack, 1.0)


def one_run(*, canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """The largest ε that so many right guesses refute."""
    if not 0 <= right <= guesses <= canaries:
        raise StudyError(f"{right} right of {guesses} guesses on {canaries} canaries cannot be")
    _check(delta, confidence)

    def refuted(epsilon: float) -> bool:
        p = one_run_p_value(epsilon, canaries=canaries, guesses=guesses, right=right, delta=delta)
        return p < 1 - confidence

    return _last(refuted)


def canaries_in_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
) -> Detected:
    """What one training run betrays: guess «in» for the highest scores and «out» for the lowest.

    Tries each share of canaries to guess for and keeps the best, each at the confidence that makes the best
    of them right (Bonferroni).
    """
    value, inside = _numbers(scores), np.asarray(included, dtype=bool)
    if value.shape != inside.shape or value.ndim != 1 or len(value) < 2:
        raise StudyError("at least two canaries are needed, each with a score and whether it was included")
    order = np.argsort(-value, kind="stable")
    stricter = 1 - (1 - confidence) / len(shares)
    best = 0.0
    for share in shares:
        each = max(int(share * len(value)) // 2, 1)
        right = int(inside[order[:each]].sum() + (~inside[order[-each:]]).sum())
        found = one_run(canaries=len(value), guesses=2 * each, right=right, delta=delta, confidence=stricter)
        best = max(best, found)
    return Detected(best, delta, confidence, "one run")


# Many runs with and without one record


def worst_case(
    with_record: ArrayLike, without_record: ArrayLike, *, delta: float, confidence: float = 0.95
) -> Detected:
    """What many runs with and without one record betray of it: ln((TPR − δ)/FPR), with the rates bounded.

    The threshold, and the side of it that is called «in», come from one half of the runs; the bounds (Clopper
    and Pearson 1934) from the other, so that choosing does not flatter. Runs are taken in the given order:
    even ones choose, odd ones judge.
    """
    _check(delta, confidence)
    inside, outside = _numbers(with_record), _numbers(without_record)
    if inside.ndim != 1 or outside.ndim != 1 or min(len(inside), len(outside)) < 4:
        raise StudyError("at least four runs with the record and four without it are needed")
    threshold, above, swapped = _best_test(inside[::2], outside[::2], delta, confidence)
    likely, unlikely = (outside[1::2], inside[1::2]) if swapped else (inside[1::2], outside[1::2])
    hits = _beyond(likely, np.array([threshold]), above), _beyond(unlikely, np.array([threshold]), above)
    found = _log_ratio(hits[0], len(likely), hits[1], len(unlikely), delta, confidence)[0]
    return Detected(max(float(found), 0.0), delta, confidence, "many runs")


def _best_test(
    inside: Numbers, outside: Numbers, delta: float, confidence: float
) -> tuple[float, bool, bool]:
    """The threshold, the side of it, and which world makes it likely, that show most on these runs."""
    thresholds = np.unique(np.concatenate([inside, outside]))
    best, chosen = -math.inf, (float(thresholds[0]), True, False)
    for above in (True, False):
        for swapped in (False, True):
            likely, unlikely = (outside, inside) if swapped else (inside, outside)
            hits = _beyond(likely, thresholds, above), _beyond(unlikely, thresholds, above)
            found = _log_ratio(hits[0], len(likely), hits[1], len(unlikely), delta, confidence)
            at = int(np.argmax(found))
            if found[at] > best:
                best, chosen = float(found[at]), (float(thresholds[at]), above, swapped)
    return chosen


def _beyond(scores: Numbers, thresholds: Numbers, above: bool) -> NDArray[np.int64]:
    """How many scores are at least, or else below, each threshold."""
    below = np.searchsorted(np.sort(scores), thresholds, side="left").astype(np.int64)
    return len(scores) - below if above else below


def _log_ratio(
    hits: NDArray[np.int64], of: int, misses: NDArray[np.int64], out_of: int, delta: float, confidence: float
) -> Numbers:
    """ln((low − δ)/high): each of the two bounds may err half as often as the whole."""
    each = (1 + confidence) / 2
    low = rate_bounds(hits, of, each)[0] - delta
    high = rate_bounds(misses, out_of, each)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        out: Numbers = np.where(low > 0, np.log(low / high), -np.inf)
    return out


def rate_bounds(hits: ArrayLike, trials: int, confidence: float) -> tuple[Numbers, Numbers]:
    """Clopper and Pearson's lower and upper bound of a rate; each errs with probability 1 − confidence."""
    k = np.asarray(hits, dtype=np.float64)
    low = np.where(k > 0, stats.beta.ppf(1 - confidence, np.maximum(k, 1), trials - k + 1), 0.0)
    high = np.where(k < trials, stats.beta.ppf(confidence, k + 1, np.maximum(trials - k, 1)), 1.0)
    return low, high


# Membership inference


def logit_confidence(probability_of_truth: ArrayLike) -> Numbers:
    """log(p/(1 − p)) of the probability that a model gave to a record's true label: near to normal."""
    p = np.clip(_numbers(probability_of_truth), 1e-12, 1 - 1e-12)
    out: Numbers = np.log(p) - np.log1p(-p)
    return out


def likelihood_ratio(observed: ArrayLike, with_record: ArrayLike, without_record: ArrayLike) -> Numbers:
    """LiRA's score of each record (Carlini et al. 2022): log-likelihood ratio of two fitted normals.

    `observed` has one statistic per record under attack; the others have one row per shadow model, trained
    with or without that record, and one column per record. With fewer than 32 rows a common spread is used.
    """
    seen, inside, outside = _numbers(observed), _numbers(with_record), _numbers(without_record)
    if (
        inside.ndim != 2
        or outside.ndim != 2
        or inside.shape[1:] != seen.shape
        or outside.shape[1:] != seen.shape
    ):
        raise StudyError("shadow models need one row each, and one column for every record under attack")
    if min(len(inside), len(outside)) < 2:
        raise StudyError("at least two shadow models with a record and two without it are needed")

    def log_density(shadows: Numbers) -> Numbers:
        spread = shadows.std(0, ddof=1)
        if len(shadows) < 32:
            spread = np.full_like(spread, math.sqrt(float(np.mean(spread**2))))
        out: Numbers = stats.norm.logpdf(seen, shadows.mean(0), np.maximum(spread, 1e-9))
        return out

    return log_density(inside) - log_density(outside)


@dataclass(frozen=True)
class Membership:
    """How well scores tell members from others: ½ is chance for the area, 0 for the advantage.

    `caught` is the share of members found at `false_alarms` of non-members, `caught_at_least` its 95 % bound.
    """

    area: float
    advantage: float
    false_alarms: float
    caught: float
    caught_at_least: float

    def __str__(self) -> str:
        return (
            f"an attacker finds {100 * self.caught:.1f} % of the members at {100 * self.false_alarms:g} % "
            f"false alarms (area under the curve {self.area:.2f}, where 0.50 is chance)"
        )


def membership(scores: ArrayLike, members: ArrayLike, false_alarms: float = 0.01) -> Membership:
    """Summarise an attack by its curve and, above all, by what it finds with few false alarms."""
    value, inside = _numbers(scores), np.asarray(members, dtype=bool)
    if value.shape != inside.shape or not inside.any() or inside.all():
        raise StudyError("membership needs a score for some members and for some others")
    yes, no = np.sort(value[inside]), np.sort(value[~inside])
    ranks = stats.rankdata(value)[inside]
    area = float((ranks.sum() - len(yes) * (len(yes) + 1) / 2) / (len(yes) * len(no)))
    thresholds = np.unique(value)
    found = _beyond(yes, thresholds, above=True) / len(yes)
    wrong = _beyond(no, thresholds, above=True) / len(no)
    allowed = wrong <= false_alarms
    caught = float(found[allowed].max()) if allowed.any() else 0.0
    least = float(rate_bounds(round(caught * len(yes)), len(yes), 0.95)[0])
    return Membership(area, float(np.max(found - wrong)), false_alarms, caught, least)


def _last(refuted: Callable[[float], bool]) -> float:
    """The largest ε that is refuted, where all smaller ones are too."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if low >= MOST:
            return MOST
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _numbers(values: ArrayLike) -> Numbers:
    out = np.asarray(values, dtype=np.float64)
    if not np.isfinite(out).all():
        raise StudyError("an attack's scores must be finite numbers")
    return out


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise StudyError(f"δ must be at least 0 and below 1, not {delta}")
    if not 0 < confidence < 1:
        raise StudyError(f"the confidence must lie between 0 and 1, not {confidence}")
