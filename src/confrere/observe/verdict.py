"""Is together better than alone? Judged in pairs: record by record where that was measured, else seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

from confrere.observe.results import Comparison, Measured, StrategyResult

Word = Literal["better", "no clear difference", "worse", "one seed only"]

LOWER_IS_BETTER = frozenset({"log_loss", "rmse"})


@dataclass(frozen=True)
class Gain:
    """How much better together is than alone: positive is better, whatever the measure.

    `low` to `high` is its 95 % interval: of the paired bootstrap over test records and seeds where the comparison
    states it, else Student's t over the seeds. One seed has none: it cannot tell a gain from luck.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    pairs: int

    @property
    def word(self) -> Word:
        if self.low is None or self.high is None:
            return "one seed only"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no clear difference"


@dataclass(frozen=True)
class GapClosed:
    """How far together came on the way from alone to pooling all records."""

    gap: Gain
    gained: Gain
    share: float | None
    """None where there is no clear gap, so that a share of it would mean nothing."""
    share_std: float | None


def gain(differences: Iterable[float], interval: tuple[float, float] | None = None) -> Gain | None:
    """The mean of paired differences with its 95 % interval, the stated one if there is one; None without a pair."""
    pairs = list(differences)
    if not pairs:
        return None
    mean = math.fsum(pairs) / len(pairs)
    if len(pairs) == 1:
        return Gain(mean, None, None, None, 1)
    std = math.sqrt(math.fsum((d - mean) ** 2 for d in pairs) / (len(pairs) - 1))
    if interval is not None:
        return Gain(mean, std, interval[0], interval[1], len(pairs))
    half = float(stdtrit(len(pairs) - 1, 0.975)) * std / math.sqrt(len(pairs))
    if half < 1e-12 and abs(mean) < 1e-12:
        half = mean = 0.0
    return Gain(mean, std, mean - half, mean + half, len(pairs))


def site_gain(
    comparison: Comparison, site: str, metric: str, strategy: StrategyResult | None = None
) -> Gain | None:
    """What one site gains; None where one of the two was not measured there."""
    chosen = strategy or comparison.together
    stated = chosen.sites[site].gains.get(metric) if chosen and site in chosen.sites else None
    pairs = stated.values if stated else _differences(comparison, site, metric, strategy)
    return gain((d for d in pairs if d is not None), stated.interval if stated else None)


def mean_gain(comparison: Comparison, metric: str, strategy: StrategyResult | None = None) -> Gain | None:
    """The gain averaged over sites (each counts the same), then judged over seeds."""
    chosen = strategy or comparison.together
    if chosen and metric in chosen.gains and chosen.gains[metric].values:
        stated = chosen.gains[metric]
        return gain((d for d in stated.values if d is not None), stated.interval)
    rows = [_differences(comparison, site, metric, strategy) for site in comparison.sites]
    return gain(_by_seed([row for row in rows if row]))


def gap_closed(comparison: Comparison, metric: str, site: str | None = None) -> GapClosed | None:
    """How much of the way to pooled training was made, at one site or averaged over them."""
    if comparison.pooled is None or comparison.together is None:
        return None
    sites = comparison.sites if site is None else (site,)
    both = [
        (_differences(comparison, s, metric, comparison.pooled), _differences(comparison, s, metric, None))
        for s in sites
    ]
    both = [(p, t) for p, t in both if p and t and len(p) == len(t)]
    gaps, gains = _by_seed([p for p, _ in both]), _by_seed([t for _, t in both])
    gap, gained = gain(gaps), gain(gains)
    if site is None:  # as the comparison states them, with their intervals
        gap, gained = mean_gain(comparison, metric, comparison.pooled), mean_gain(comparison, metric)
    if gap is None or gained is None:
        return None
    if gap.word in ("worse", "no clear difference") or min(gaps) <= 0 or len(gaps) != len(gains):
        return GapClosed(gap, gained, None, None)
    shares = gain(t / g for t, g in zip(gains, gaps, strict=True))
    return GapClosed(gap, gained, gained.mean / gap.mean, shares.std if shares else None)


def not_worth_it(comparison: Comparison) -> bool:
    """Whether collaboration cost privacy and brought nothing that is clear: by no deciding measure, on no site's mean.

    The deciding measures are the headline and the log loss. One seed says nothing either way.
    """
    together = comparison.together
    if together is None or comparison.alone is None or together.privacy is None:
        return False
    names = [n for n in dict.fromkeys((comparison.headline, "log_loss", "rmse")) if n in comparison.metrics]
    gains = [g for n in names if n and (g := mean_gain(comparison, n))]
    words = {g.word for g in gains}
    return bool(words) and not words & {"better", "one seed only"}


def _differences(
    comparison: Comparison, site: str, metric: str, strategy: StrategyResult | None
) -> list[float | None]:
    """Seed by seed, together minus alone, turned so that more is better."""
    strategy = strategy or comparison.together
    alone = _values(comparison.alone, site, metric)
    together = _values(strategy, site, metric)
    if len(alone) != len(together):
        return []
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    return [None if a is None or t is None else sign * (t - a) for a, t in zip(alone, together, strict=True)]


def _values(strategy: StrategyResult | None, site: str, metric: str) -> Sequence[float | None]:
    result = strategy.sites.get(site) if strategy else None
    measured: Measured | None = result.metrics.get(metric) if result else None
    if measured is None:
        return ()
    return measured.values or (measured.mean,)


def _by_seed(rows: Sequence[Sequence[float | None]]) -> list[float]:
    """The mean over sites for each seed; a seed that lacks a site's figure is left out of the pairs."""
    if not rows or len({len(row) for row in rows}) != 1:
        return []
    columns = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
    return [math.fsum(c) / len(c) for c in columns if len(c) == len(rows)]
