"""The gains of a comparison, at each site and on average; `statistics.verdict` judges them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from confrere.core import metrics
from confrere.core.results import ComparisonResult, Measured, StrategyResult, Tested
from confrere.report import words
from confrere.statistics.verdict import EARLIER, LEAST_RARER, Gain, GapClosed, stated


def stated_gain(figure: Measured | None) -> Gain | None:
    """A gain that the comparison states, with its interval and its word."""
    return stated(figure.values, figure.interval, figure.word) if figure else None


def site_gain(
    comparison: ComparisonResult, site: str, metric: str, strategy: StrategyResult | None = None
) -> Gain | None:
    """What one site gains; None where one of the two was not measured there."""
    chosen = strategy or comparison.together
    figure = chosen.sites[site].gains.get(metric) if chosen and site in chosen.sites else None
    found = stated_gain(figure) if figure else stated(_differences(comparison, site, metric, strategy))
    return _dated(comparison, found)


def mean_gain(
    comparison: ComparisonResult, metric: str, strategy: StrategyResult | None = None
) -> Gain | None:
    """The gain averaged over sites (each counts the same)."""
    chosen = strategy or comparison.together
    if chosen and metric in chosen.gains and chosen.gains[metric].values:
        return _dated(comparison, stated_gain(chosen.gains[metric]))
    rows = [_differences(comparison, site, metric, strategy) for site in comparison.sites]
    return _dated(comparison, stated(_by_seed([row for row in rows if row])))


def _dated(comparison: ComparisonResult, gain: Gain | None) -> Gain | None:
    """The intervals of earlier versions follow another rule: a gain from such a file has neither an interval nor a word."""
    if gain is None or comparison.judged:
        return gain
    return replace(gain, low=None, high=None, stated=EARLIER)


def gap_closed(comparison: ComparisonResult, metric: str) -> GapClosed | None:
    """How much of the way to pooled training was made, averaged over the sites, as the comparison states it."""
    if comparison.pooled is None or comparison.together is None:
        return None
    gap, gained = mean_gain(comparison, metric, comparison.pooled), mean_gain(comparison, metric)
    if gap is None or gained is None:
        return None
    stated, name = comparison.gap.get(metric), comparison.together.name
    if gap.word != "better" or stated is None or name not in stated.intervals:
        return GapClosed(gap, gained, None)
    return GapClosed(gap, gained, stated.closed.get(name), stated.intervals[name])


def not_worth_it(comparison: ComparisonResult) -> str | None:
    """Why collaboration is not worth its privacy, in a sentence, where that is clear: privacy was spent, and a loss is clear
    or a gain is excluded.

    A gain is excluded where the interval of the mean ends at no more than 0 as shown. None where a gain is clear at any site,
    and where the interval is merely wide: it includes a gain, so nothing can be claimed.
    """
    together, name = comparison.together, comparison.headline
    if together is None or comparison.alone is None or together.privacy is None or name is None:
        return None
    overall = mean_gain(comparison, name)
    sites = [g.word for s in comparison.sites if (g := site_gain(comparison, s, name))]
    if overall is None or "better" in (overall.word, *sites) or not overall.judged:
        return None
    if overall.word == "worse" or "worse" in sites:
        return words.LOST
    excluded = overall.high is not None and not words.signed(name, overall.high).startswith("+")
    return words.NOT_WORTH_IT if excluded else None


def words_stated(comparison: ComparisonResult) -> int:
    """How many words the correction of a comparison covers; those with too few patients do not count."""
    name = comparison.headline or ""
    found: list[Mapping[str, Measured]] = [s.gains for s in comparison.strategies.values()]
    found += [site.gains for s in comparison.strategies.values() for site in s.sites.values()]
    found += [group.gains for s in comparison.strategies.values() for group in s.by_columns.values()]
    found += [s.common.gains for s in comparison.strategies.values() if s.common]
    stated = [gains[name].word for gains in found if name in gains]
    return (
        sum(word in ("better", "worse", "no clear difference") for word in stated) if comparison.judged else 0
    )


def too_few(comparison: ComparisonResult) -> list[str]:
    """The sites with too few test patients of the rarer class to be judged."""
    sites = comparison.alone.sites.values() if comparison.alone else ()
    return [s.name for s in sites if s.tested is not None and s.tested.rarer < LEAST_RARER]


def tested_singly(comparison: ComparisonResult) -> list[str]:
    """The sites of which some seed tests one patient only, so that a mean over sites that includes them is not judged."""
    sites = comparison.alone.sites.values() if comparison.alone else ()
    return [s.name for s in sites if s.tested is not None and s.tested.single]


def measured_at(comparison: ComparisonResult, metric: str) -> list[str]:
    """The sites in the mean of a metric: those that have it, alone and together."""
    ways = [w for w in (comparison.alone, comparison.together) if w is not None]
    return [s for s in comparison.sites if all(s in w.sites and metric in w.sites[s].metrics for w in ways)]


def tested_at(comparison: ComparisonResult, names: Sequence[str]) -> Tested | None:
    """The test patients of these sites together; None where the results do not state them."""
    sites = comparison.alone.sites if comparison.alone else {}
    return tested_together([sites[n].tested for n in names if n in sites])


def tested_together(counts: Sequence[Tested | None]) -> Tested | None:
    """The test patients of several sites; those of class 1 where there are two classes. None where some are not known."""
    found = [t for t in counts if t is not None]
    if not found or len(found) < len(counts):
        return None
    if len(found) == 1:
        return found[0]
    patients, rarer = sum(t.patients for t in found), sum(t.rarer for t in found)
    positive = [t.positive for t in found if t.positive is not None]
    name = found[0].positive_class
    if name is not None and len(positive) == len(found):
        return Tested(patients, sum(positive), name, sum(positive), name)
    classes = {t.rarer_class for t in found}
    return Tested(patients, rarer, classes.pop()) if len(classes) == 1 else Tested(patients, patients)


def _differences(
    comparison: ComparisonResult, site: str, metric: str, strategy: StrategyResult | None
) -> list[float | None]:
    """Seed by seed, together minus alone, turned so that more is better."""
    strategy = strategy or comparison.together
    alone = _values(comparison.alone, site, metric)
    together = _values(strategy, site, metric)
    if len(alone) != len(together):
        return []
    sign = metrics.named(metric).sign
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
