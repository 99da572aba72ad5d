"""Audit statistics: a lower bound on ε from what an attacker detects in the releases.

A bound from below can show that a guarantee is broken; it can never show that one holds. All functions are
pure: scores go in, numbers come out. A higher score says «this record was in».

**What the bound means.** A trial is one canary in one run: its coin, and a score that is a function of what the run
released. If the releases of a run are (ε, δ)-differentially private, then whatever the other canaries' coins were,
P(score > t | in) ≤ e^ε·P(score > t | out) + δ, for every threshold and the other way round. The two rates, averaged
over canaries and runs, keep to that too. So ln((low − δ)/high), with a lower bound of one rate and an upper bound of
the other, exceeds the true ε with at most the stated probability, provided that the test was fixed without
looking at the trials that judge it, and that both bounds hold.

**Which trials are independent.** Runs are: each has coins, samples and noise of its own. Within a run, canaries whose
clipped gradients are orthogonal have scores that depend on their own coin, their own place in the Poisson samples and
the noise along their own direction, all independent: then hits are sums of independent Bernoulli trials, for which
the bounds of Clopper and Pearson hold (a mean of unequal rates is only less spread, Hoeffding 1956). All releases of
one canary in one run, which share its place in the sample, are *one* trial with one joint score. Where canaries of a
run are coupled (by a clipping norm that adapts, say), hits vary more from run to run than independent
trials would; the number of trials is then reduced by that factor (the design effect, Kish 1965).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np
import scipy  # `scipy.stats` is loaded when an audit first asks for it
from numpy.typing import ArrayLike, NDArray

from confrere.core.errors import StudyError
from confrere.privacy.charges import rounded_up

Numbers = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)

THRESHOLDS = 60
"""How many thresholds are tried in each tail, by their rank in it."""

CHOOSING = 0.999
"""Confidence of the bounds by which a test is chosen among some thousands: few hits should not win by luck. It has no
part in the confidence of the result."""

UNLIKELY = 1e-9
"""Numbers of inclusions that are rarer than this are left out of a likelihood."""


@dataclass(frozen=True)
class Detected:
    """«At least ε was detected», at this confidence.

    >>> print(Detected(2.24, 1e-5, 0.95).against(0.6))
    at least ε = 2.24 was detected (95 % confidence); claimed 0.6: the guarantee is broken
    """

    epsilon: float
    delta: float
    confidence: float
    how: str = ""
    """Which score and which canaries showed it."""

    def breaks(self, claimed: float) -> bool:
        """Whether a claimed ε is refuted."""
        return self.epsilon > claimed

    def __str__(self) -> str:
        shown = math.floor(self.epsilon * 100) / 100  # a bound from below is rounded down
        return f"at least ε = {shown:g} was detected ({100 * self.confidence:g} % confidence)"

    def against(self, claimed: float) -> str:
        """The verdict on a claim, in plain words."""
        verdict = (
            "the guarantee is broken"
            if self.breaks(claimed)
            else "no contradiction; a low value proves nothing"
        )
        return f"{self}; claimed {rounded_up(claimed)}: {verdict}"


# Many trials with and without a record


@dataclass(frozen=True)
class ThresholdTest:
    """Says «likely» for scores on one side of a threshold; `swapped` means that they are likelier without the record."""

    threshold: float
    above: bool = True
    swapped: bool = False

    def bound(
        self,
        inside: ArrayLike,
        outside: ArrayLike,
        *,
        delta: float,
        confidence: float = 0.95,
        runs: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> float:
        """ln((low − δ)/high) on trials that had no say in the choice of this test; at least 0.

        `runs` names the run of each trial, in and out: where hits vary from run to run more than
        independent trials would, fewer trials are counted.
        """
        _check(delta, confidence)
        scores = [_scores(inside), _scores(outside)]
        of = [None, None] if runs is None else [np.asarray(r) for r in runs]
        if self.swapped:
            scores, of = scores[::-1], of[::-1]
        counts = []
        for values, run in zip(scores, of, strict=True):
            hit = values >= self.threshold if self.above else values < self.threshold
            fewer = 1.0 if run is None else design_effect(hit, run)
            counts.append((float(hit.sum()) / fewer, len(hit) / fewer))
        (likely, n), (unlikely, m) = counts
        found = _log_ratio(np.array([likely]), n, np.array([unlikely]), m, delta, confidence)[0]
        return max(float(found), 0.0)


def best_test(
    inside: ArrayLike, outside: ArrayLike, *, delta: float, confidence: float = 0.95
) -> tuple[ThresholdTest, float]:
    """The test that shows most on these trials, and how much; judge it on others, or it flatters."""
    _check(delta, confidence)
    yes, no = np.sort(_scores(inside)), np.sort(_scores(outside))
    best, chosen = -math.inf, ThresholdTest(float(yes[-1]))
    for above in (True, False):
        thresholds = _tail(yes, no, above)
        for swapped in (False, True):
            likely, unlikely = (no, yes) if swapped else (yes, no)
            hits = _beyond(likely, thresholds, above), _beyond(unlikely, thresholds, above)
            found = _log_ratio(hits[0], len(likely), hits[1], len(unlikely), delta, confidence)
            at = int(np.argmax(found))
            if found[at] > best:
                best, chosen = float(found[at]), ThresholdTest(float(thresholds[at]), above, swapped)
    return chosen, max(best, 0.0)


def design_effect(hits: NDArray[np.bool_], runs: ArrayLike) -> float:
    """How many times more the number of hits varies from run to run than if trials were independent; at least 1."""
    _, run = np.unique(np.asarray(runs), return_inverse=True)
    each = np.bincount(run).astype(np.float64)
    rate = float(hits.mean())
    if len(each) < 8 or rate in (0.0, 1.0):
        return 1.0
    apart = np.bincount(run, weights=hits) - each * rate
    spread = float((apart**2).sum()) * len(each) / (len(each) - 1)
    return max(spread / (float(each.sum()) * rate * (1 - rate)), 1.0)


def _tail(yes: Numbers, no: Numbers, above: bool) -> Numbers:
    """Thresholds at the first, second, … score from one end of either world, ever further apart."""
    found = []
    for values in (yes, no):
        ranks = np.unique(np.geomspace(1, len(values), THRESHOLDS).astype(int)) - 1
        found.append(values[::-1][ranks] if above else np.nextafter(values[ranks], np.inf))
    return np.unique(np.concatenate(found))


def _beyond(scores: Numbers, thresholds: Numbers, above: bool) -> NDArray[np.int64]:
    """How many of these sorted scores are at least, or else below, each threshold."""
    below = np.searchsorted(scores, thresholds, side="left").astype(np.int64)
    return len(scores) - below if above else below


def _log_ratio(
    hits: ArrayLike, of: float, misses: ArrayLike, out_of: float, delta: float, confidence: float
) -> Numbers:
    """ln((low − δ)/high): each of the two bounds may err half as often as the whole."""
    each = (1 + confidence) / 2
    low = rate_bounds(hits, of, each)[0] - delta
    high = rate_bounds(misses, out_of, each)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        out: Numbers = np.where(low > 0, np.log(low / high), -np.inf)
    return out


# Canaries in many runs


@dataclass(frozen=True)
class Trials:
    """What an attacker reads from the releases of many runs, and the coins.

    `seen` is [run, release, canary]: how far each release moved along the canary's own direction, in any unit.
    `coins` is [run, canary]. `calls` says which releases come from one call of training: they may share a
    sample. In each of `steps` steps of a call a unit takes part with probability `rate`; `noise` is the noise multiplier
    that a step is said to have. `kinds` are groups of canaries that may be exposed differently.
    """

    seen: Numbers
    coins: NDArray[np.bool_]
    calls: Sequence[int]
    rate: float = 1.0
    steps: int = 1
    noise: float | None = None
    kinds: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def only(self, runs: slice, canaries: NDArray[np.bool_] | None = None) -> Trials:
        """The trials of these runs, and of these canaries."""
        among = slice(None) if canaries is None else canaries
        return Trials(
            self.seen[runs][:, :, among],
            self.coins[runs][:, among],
            self.calls,
            self.rate,
            self.steps,
            self.noise,
        )


@dataclass(frozen=True)
class Score:
    """A canary's log-likelihood ratio given all releases of a run: the most powerful score, if it is fitted well.

    Without the canary a release is normal with this `mean` and `spread`; each inclusion adds `shift` spreads.
    `shared` says that the releases of a call come from the same samples, so that the canary is in all of them or in none:
    the ratio of a mixture, log Σ_k P(k)·exp(k·Σ c·z − k²·Σ c²/2) over the number k of inclusions.
    """

    mean: Numbers
    spread: Numbers
    shift: Numbers
    shared: bool

    def __call__(self, trials: Trials) -> Numbers:
        """[run, canary]"""
        z = (trials.seen - self.mean[:, None]) / self.spread[:, None]
        calls = np.asarray(trials.calls) if self.shared else np.arange(z.shape[1])
        total: Numbers = np.zeros((z.shape[0], z.shape[2]))
        for call in np.unique(calls):
            at, c = calls == call, self.shift[calls == call]
            lean, cost = np.einsum("rkc,k->rc", z[:, at], c), float((c**2).sum()) / 2
            terms = [log_p + k * lean - k**2 * cost for k, log_p in _inclusions(trials.steps, trials.rate)]
            total += np.logaddexp.reduce(terms, axis=0)
        return total


def fitted(trials: Trials, shared: bool, announced: bool) -> Score:
    """A score with parameters from these trials; the shift from the announced noise, if `announced`."""
    out, inside = ~trials.coins[:, None, :], trials.coins[:, None, :]
    shape = trials.seen.shape
    mean = np.mean(trials.seen, axis=(0, 2), where=np.broadcast_to(out, shape))
    spread = np.std(trials.seen, axis=(0, 2), where=np.broadcast_to(out, shape))
    spread = np.maximum(spread, 1e-12 * max(float(np.abs(trials.seen).max()), 1e-300))
    if announced and trials.noise:
        shift = np.full(len(mean), 1 / (trials.noise * math.sqrt(trials.steps)))
    else:
        with_it = np.mean(trials.seen, axis=(0, 2), where=np.broadcast_to(inside, shape))
        shift = np.clip((with_it - mean) / (spread * trials.steps * trials.rate), -100, 100)
    return Score(mean, spread, shift, shared)


def detect(trials: Trials, *, delta: float, confidence: float = 0.95) -> Detected:
    """What all releases of all runs betray of the canaries.

    Even runs fit the scores and choose among them, among groups of canaries, the single most exposed one
    included, and among thresholds. Odd runs judge that one choice.
    """
    _check(delta, confidence)
    if len(trials.seen) < 4 or not np.isfinite(trials.seen).all():
        raise StudyError("an audit needs the finite releases of at least four runs")
    choosing, judging = slice(0, None, 2), slice(1, None, 2)
    best, found = -1.0, Detected(0.0, delta, confidence)
    for how, who, score in _candidates(trials.only(choosing), trials.kinds):
        mine = trials.only(choosing, who)
        yes, no = _split(score(mine), mine.coins)
        if not len(yes) or not len(no):
            continue
        test, merit = best_test(yes, no, delta=delta, confidence=CHOOSING)
        if merit <= best:
            continue
        theirs = trials.only(judging, who)
        values, run = (
            score(theirs),
            np.broadcast_to(np.arange(len(theirs.coins))[:, None], theirs.coins.shape),
        )
        yes, no = _split(values, theirs.coins)
        if not len(yes) or not len(no):
            continue
        bound = test.bound(yes, no, delta=delta, confidence=confidence, runs=_split(run, theirs.coins))
        best, found = merit, Detected(bound, delta, confidence, how)
    return found


def _candidates(
    trials: Trials, kinds: Mapping[str, NDArray[np.bool_]]
) -> Iterator[tuple[str, NDArray[np.bool_] | None, Score]]:
    """Scores to choose among, each with the canaries that it is meant for."""
    several = len(set(trials.calls)) < len(trials.calls)
    for name, who in {"all": None, **kinds}.items():
        mine = trials.only(slice(None), who)
        for shared in (True, False) if several and trials.rate < 1 else (True,):
            for announced in (True, False) if trials.noise else (False,):
                score = fitted(mine, shared, announced)
                yield f"{name} canaries", who, score
                if who is None:
                    alone = _most_exposed(score(trials), trials.coins)
                    yield "the most exposed canary", alone, score


def _most_exposed(scores: Numbers, coins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The canary whose scores differ most between runs with it and without."""
    count = np.maximum(coins.sum(0), 1), np.maximum((~coins).sum(0), 1)
    apart = (scores * coins).sum(0) / count[0] - (scores * ~coins).sum(0) / count[1]
    out: NDArray[np.bool_] = np.arange(len(apart)) == int(np.argmax(apart))
    return out


def _split(values: NDArray[T], coins: NDArray[np.bool_]) -> tuple[NDArray[T], NDArray[T]]:
    return values[coins], values[~coins]


@lru_cache(maxsize=64)
def _inclusions(steps: int, rate: float) -> tuple[tuple[int, float], ...]:
    """How often a unit may have been drawn in this number of steps: each count with its log-probability."""
    if rate >= 1:
        return ((steps, 0.0),)
    numbers = np.arange(steps + 1)
    chance = scipy.stats.binom.logpmf(numbers, steps, rate)
    return tuple((int(k), float(p)) for k, p in zip(numbers, chance, strict=True) if p > math.log(UNLIKELY))


def rate_bounds(hits: ArrayLike, trials: float, confidence: float) -> tuple[Numbers, Numbers]:
    """Clopper and Pearson's lower and upper bound of a rate; each errs with probability 1 − confidence."""
    k = np.asarray(hits, dtype=np.float64)
    low = np.where(k > 0, scipy.stats.beta.ppf(1 - confidence, np.maximum(k, 1), trials - k + 1), 0.0)
    high = np.where(k < trials, scipy.stats.beta.ppf(confidence, k + 1, np.maximum(trials - k, 1)), 1.0)
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
        out: Numbers = scipy.stats.norm.logpdf(seen, shadows.mean(0), np.maximum(spread, 1e-9))
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
    ranks = scipy.stats.rankdata(value)[inside]
    area = float((ranks.sum() - len(yes) * (len(yes) + 1) / 2) / (len(yes) * len(no)))
    thresholds = np.unique(value)
    found = _beyond(yes, thresholds, above=True) / len(yes)
    wrong = _beyond(no, thresholds, above=True) / len(no)
    allowed = wrong <= false_alarms
    caught = float(found[allowed].max()) if allowed.any() else 0.0
    least = float(rate_bounds(round(caught * len(yes)), len(yes), 0.95)[0])
    return Membership(area, float(np.max(found - wrong)), false_alarms, caught, least)


def _scores(values: ArrayLike) -> Numbers:
    out = _numbers(values)
    if out.ndim != 1 or not len(out):
        raise StudyError("trials with the record and trials without it are needed")
    return out


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
