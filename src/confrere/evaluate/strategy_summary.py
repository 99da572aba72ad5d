"""What a strategy gains over training alone: paired by seed and site, with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from confrere.core.metrics import in_order
from confrere.core.metrics import named as metric_named
from confrere.core.results import (
    ALONE,
    POOLED,
    CommonResult,
    Gap,
    Group,
    InPatients,
    MeanGain,
    Measured,
    Metrics,
    PrivacySpent,
    SiteResult,
    StrategyResult,
)
from confrere.evaluate.comparison_verdicts import Verdicts
from confrere.simulation.finished_run import Run
from confrere.site.journal_results import by_columns, mean_metrics
from confrere.site.predictions import RecordPredictions
from confrere.statistics.clinical_metrics import PairedErrors, in_patients, over_sites, with_changes
from confrere.statistics.verdict import stated

Scored = Sequence[Mapping[str, Metrics[float]]]
"""For each seed, the metrics of each site."""


@dataclass(frozen=True)
class Scores:
    """A strategy beside training alone, on the same records with the same seeds."""

    together: Scored
    alone: Scored
    name: str = ""
    part: str = "test"
    verdicts: Verdicts = field(default_factory=Verdicts)

    def mean(self, sites: Sequence[str], metrics: Sequence[str]) -> Metrics[Measured]:
        """The mean over some sites."""
        means = [mean_metrics(run.get(s) for s in sites) for run in self.together]
        return _spreads({m: [mean[m] for mean in means if m in mean] for m in metrics})

    def gains(self, sites: Sequence[str], metrics: Sequence[str], group: str) -> Metrics[Measured]:
        """The gain on the mean over some sites, with its interval."""
        means = {m: [statistics.fmean(g.values()) for g in self.pairs(sites, m) if g] for m in metrics}
        return self._stated(_spreads(means), "mean", group)

    def _stated(self, gains: Metrics[Measured], scope: str, name: str) -> Metrics[Measured]:
        key = (self.part, self.name, scope, name)
        return Metrics({m: self.verdicts.stated(key, m, gain) for m, gain in gains.items()})

    def gains_of_all(self, sites: Sequence[str], metrics: Sequence[str]) -> Metrics[MeanGain]:
        """The gain on the mean over all sites, with its interval and the site that gains least."""
        found = {}
        for metric, gain in self.gains(sites, metrics, "all").items():
            by_site = self.by_site(sites, metric)
            worst = min(by_site, key=lambda s: statistics.fmean(by_site[s]))
            least = statistics.fmean(by_site[worst])
            found[metric] = MeanGain(gain.mean, gain.std, gain.values, gain.interval, gain.word, least, worst)
        return Metrics(found)

    def site(self, name: str, metrics: Sequence[str]) -> SiteResult[Measured]:
        """One site over all seeds."""
        values = {m: [run[name][m] for run in self.together if m in run.get(name, {})] for m in metrics}
        gains = _spreads({m: self.by_site([name], m).get(name, []) for m in metrics})
        return SiteResult(
            name,
            metrics=_spreads(values),
            gains=self._stated(gains, "site", name),
            tested=self.verdicts.tested.get(self.part, {}).get(name),
        )

    def by_site(self, sites: Sequence[str], metric: str) -> dict[str, list[float]]:
        """The gains of each site over the seeds; a site without any is left out."""
        pairs = self.pairs(sites, metric)
        return {s: gains for s in sites if (gains := [pair[s] for pair in pairs if s in pair])}

    def pairs(self, sites: Sequence[str], metric: str) -> list[dict[str, float]]:
        """For each seed, how much better each site does together than alone; positive is better."""
        sign = metric_named(metric).sign
        return [
            {
                s: sign * (together[s][metric] - alone[s][metric])
                for s in sites
                if metric in together.get(s, {}) and metric in alone.get(s, {})
            }
            for together, alone in zip(self.together, self.alone, strict=True)
        ]


def summary(
    name: str,
    label: str,
    runs: Mapping[str, Sequence[Run]],
    seconds: float,
    found: Verdicts,
) -> StrategyResult:
    """One strategy over all seeds, with what can be claimed about its gains."""
    own = runs[name]
    first, sites, metrics = own[0].sites, sorted(own[0].sites), in_order(own[0].mean)
    scores = Scores(_scored(own), _scored(runs[ALONE]), name, "test", found)
    patients = _in_patients(own, runs[ALONE], sites, found)
    by_site = {
        s: replace(
            scores.site(s, metrics),
            records=first[s].records,
            privacy=_largest(run.sites[s].privacy for run in own),
            bytes_sent=round(statistics.fmean(run.sites[s].bytes_sent or 0 for run in own)),
            missing_columns=first[s].missing_columns,
            in_patients=patients.get(s),
        )
        for s in sites
    }
    return StrategyResult(
        name,
        by_site,
        scores.mean(sites, metrics),
        _largest(site.privacy for run in own for site in run.sites.values()),
        seconds,
        scores.gains_of_all(sites, metrics),
        {
            kind: Group(tuple(names), scores.mean(names, metrics), scores.gains(names, metrics, kind))
            for kind, names in by_columns(first).items()
        },
        _common(name, own, runs[ALONE], found),
        label,
        patients.get(None),
    )


def _in_patients(
    own: Sequence[Run], alone: Sequence[Run], sites: Sequence[str], found: Verdicts
) -> dict[str | None, InPatients]:
    """For each site with two classes, and at None for all of them: the errors, and how they changed from training alone."""
    mine, base = ({s: _judged(runs, s) for s in sites} for runs in (own, alone))
    counts = found.tested.get("test", {})
    results, errors = dict[str, InPatients](), dict[str, PairedErrors]()
    for s in sites:
        thresholds = _thresholds(own, s)
        result = in_patients([p.predictions for p in mine[s]], thresholds) if thresholds else None
        if result is None:
            continue
        results[s] = result
        if s in counts and own is not alone and _pairs(base[s], mine[s]):
            errors[s] = PairedErrors.of(base[s], mine[s], thresholds, counts[s].rarer)
            results[s] = with_changes(result, [errors[s]], [1.0])
    every: dict[str | None, InPatients] = dict(results.items())
    weights = {s: float(counts[s].patients) for s in results if s in counts}
    if results and len(weights) == len(sites):
        every[None] = over_sites(results, weights)
        if len(errors) == len(sites) and all(len(mine[s]) == len(own) for s in sites):  # in every seed
            every[None] = with_changes(every[None], list(errors.values()), list(weights.values()))
    return every


def _judged(runs: Sequence[Run], site: str) -> list[RecordPredictions]:
    return [run.predictions[site].parts["test"] for run in runs if _has_test(run, site)]


def _has_test(run: Run, site: str) -> bool:
    return site in run.predictions and "test" in run.predictions[site].parts


def _thresholds(runs: Sequence[Run], site: str) -> list[float]:
    """Of each seed with test records; none where a seed has no training records."""
    tested = [run for run in runs if _has_test(run, site)]
    found = [run.study.threshold_of(site, run.sites[site].prevalence) for run in tested]
    return [t for t in found if t is not None] if None not in found else []


def _pairs(before: Sequence[RecordPredictions], after: Sequence[RecordPredictions]) -> bool:
    """Whether both were tested on the same records in the same order."""
    return len(before) == len(after) and all(
        np.array_equal(b.marks, a.marks) for b, a in zip(before, after, strict=True)
    )


def _common(name: str, own: Sequence[Run], alone: Sequence[Run], found: Verdicts) -> CommonResult | None:
    """The same on the common test records, where the study has them."""
    first = {s: site.common_metrics for s, site in sorted(own[0].sites.items()) if site.common_metrics}
    if not first:
        return None
    sites, metrics = list(first), in_order(m for scores in first.values() for m in scores)
    scores = Scores(_scored(own, common=True), _scored(alone, common=True), name, "common_test", found)
    return CommonResult(
        tuple(sites),
        scores.mean(sites, metrics),
        scores.gains_of_all(sites, metrics),
        {s: scores.site(s, metrics) for s in sites},
    )


def _scored(runs: Sequence[Run], common: bool = False) -> Scored:
    return [
        {n: (s.common_metrics if common else s.metrics) or Metrics() for n, s in run.sites.items()}
        for run in runs
    ]


def gap(results: Mapping[str, StrategyResult], verdicts: Verdicts) -> dict[str, Gap]:
    """For each metric: alone, pooled without noise, and the share of the way between them that each strategy made.

    Where pooling gains nothing that is clear, a share of it would mean nothing; it is None there, and where it is too
    uncertain to state.
    """
    if POOLED not in results:
        return {}
    alone, pooled, found = results[ALONE], results[POOLED], {}
    for metric in pooled.mean:
        way = pooled.gains.get(metric)
        judged = stated(way.values, way.interval, way.word) if way is not None else None
        clear = judged is not None and judged.word == "better"
        closed: dict[str, float | None] = {}
        intervals: dict[str, tuple[float, float]] = {}
        for name, result in results.items():
            gain, interval = result.gains.get(metric), verdicts.shares.get(name, {}).get(metric)
            closed[name] = None
            if clear and way is not None and gain is not None and interval is not None:
                closed[name], intervals[name] = gain.mean / way.mean, interval
        found[metric] = Gap(
            alone.mean[metric].mean if metric in alone.mean else None,
            pooled.mean[metric].mean,
            way,
            {name: share for name, share in closed.items() if name not in (ALONE, POOLED)},
            intervals,
        )
    return found


def _spreads(values: Mapping[str, Sequence[float]]) -> Metrics[Measured]:
    """Mean and standard deviation over seeds of what was measured."""
    return Metrics(
        {
            m: Measured(
                statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, tuple(found)
            )
            for m, found in values.items()
            if found
        }
    )


def _largest(found: Iterable[PrivacySpent | None]) -> PrivacySpent | None:
    """The privacy of the site and seed that spent most."""
    spent = [p for p in found if p is not None]
    return max(spent, key=lambda p: p.epsilon) if spent else None
