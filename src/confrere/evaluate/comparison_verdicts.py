"""Judge the gains of a comparison: intervals, and verdicts on the primary metric corrected for multiple testing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from confrere.core.results import ALONE, POOLED, Measured, Tested, featured
from confrere.simulation.finished_run import Run
from confrere.site.predictions import PARTS
from confrere.statistics.contributions import PatientCounts, effects, patients_of
from confrere.statistics.verdict import Effect, Gain, judge_all, shown

Key = tuple[str, str, str, str]
"""Part of the records, strategy, «site» or «mean», and the name of the site or of the group of sites."""
Stated = TypeVar("Stated", bound=Measured)


@dataclass(frozen=True)
class Verdicts:
    """What can be claimed about each gain of a comparison."""

    primary: str | None = None
    gains: Mapping[Key, Mapping[str, Gain]] = field(default_factory=dict)
    """By metric; those of the primary metric state a word where the comparison shows one."""
    tested: Mapping[str, Mapping[str, Tested]] = field(default_factory=dict)
    """By part of the records and site."""
    shares: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    """By strategy and metric, the interval of the share of the gap to pooling that it closes, where known well enough."""

    def stated(self, key: Key, metric: str, gain: Stated) -> Stated:
        """The gain with its interval and its word."""
        found = self.gains.get(key, {}).get(metric)
        if found is None:
            return gain
        ends = None if found.low is None or found.high is None else (found.low, found.high)
        return replace(gain, interval=ends, word=found.stated)


def verdicts(
    runs: Mapping[str, Sequence[Run]],
    primary: str | None,
    groups: Mapping[str, Sequence[str]],
    classes: Sequence[str] = (),
) -> Verdicts:
    """Judge a comparison.

    Words go to the strategy that the comparison is about, at each site and on the mean, and to the mean of every other
    strategy. They are one family: a correction covers all of them.
    """
    about = featured(runs)
    by_key: dict[Key, Mapping[str, Effect]] = {}
    shares: dict[str, Mapping[str, tuple[float, float]]] = {}
    counts: dict[str, dict[str, Tested]] = {}
    for part in PARTS:
        predictions = {
            n: [{s: k.parts[part] for s, k in r.predictions.items() if part in k.parts} for r in found]
            for n, found in runs.items()
        }
        counts[part] = {site: _tested(c, classes) for site, c in patients_of(predictions[ALONE]).items()}
        for name, found in effects(predictions, ALONE, groups, POOLED).items():
            if part == "test":
                shares[name] = found.shares
            by_key |= {(part, name, "site", site): e for site, e in found.sites.items()}
            by_key |= {(part, name, "mean", group): e for group, e in found.groups.items()}
    gains = {key: {m: shown(e) for m, e in found.items()} for key, found in by_key.items()}
    family = {
        key: found[primary]
        for key, found in by_key.items()
        if primary is not None and primary in found and _has_word(key, about)
    }
    for key, gain in judge_all(family).items():
        assert primary is not None
        gains[key][primary] = gain
    return Verdicts(primary, gains, counts, shares)


def _tested(counts: PatientCounts, classes: Sequence[str]) -> Tested:
    if counts.rarer_class is None or len(classes) != 2:
        return Tested(counts.patients, counts.rarer, single=counts.single or None)
    rarer_class, single = classes[counts.rarer_class], counts.single or None
    return Tested(counts.patients, counts.rarer, rarer_class, counts.positive, classes[1], single)


def _has_word(key: Key, about: str | None) -> bool:
    part, strategy, scope, name = key
    if strategy == about:
        return part == "test" or scope == "mean"
    return part == "test" and (scope, name) == ("mean", "all")
