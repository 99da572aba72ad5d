"""Answers «By how much?» on the first screen: in patients where there are two classes, and in the metric that decides."""

from __future__ import annotations

from collections.abc import Mapping

from confrere.core.results import ComparisonResult, InPatients, StrategyResult, Tested
from confrere.report import words
from confrere.report.gains import gap_closed, mean_gain, site_gain, tested_at
from confrere.report.page.answers import Answer, sentences
from confrere.statistics.clinical_metrics import over_sites
from confrere.statistics.verdict import EARLIER, Gain

YES = ("yes", "y", "true", "t", "1", "positive", "pos")
"""Names of class 1 that do not say what the condition is."""
NAMED = 3
"""At most this many sites that gain are shown one by one."""


def by_how_much(comparison: ComparisonResult, name: str, judged: Mapping[str, Gain]) -> Answer:
    """Missed patients and false alarms where together is better, or over all sites; without classes, the mean gain."""
    gain, label = mean_gain(comparison, name), words.metric(name).label
    overall = _over_all(comparison)
    found = featured(comparison, judged)
    if found is None:
        short = f"{label} {words.compared(name, gain)}" if gain else "not measured"
        if gain is not None and gain.word == "no clear difference":
            short = f"{gain.word} in {label}"
        rest = in_metric(comparison, name)
        return Answer("By how much?", words.capital(short.partition(" (")[0]), (rest,))
    site, (alone, together) = found
    short, whose = of_100(alone, together), "the sites" if site is None else f"«{site}»"
    tested = comparison.alone.sites[site].tested if comparison.alone and site else all_tested(comparison)
    counts = based_on(comparison, tested)
    based = f"; based on {counts}" if counts else ""
    weighted = " Each site counts by its test patients." if site is None else ""
    stated = [
        f"Of 100 patients like those of {whose}, {with_condition(comparison, alone)}{based}.{weighted}",
        changes(together, name),
    ]
    more = []
    better = [s for s, g in judged.items() if g.word == "better" and s != site]
    for other in better[: NAMED - 1]:
        if both := both_ways(comparison, other):
            counts = based_on(comparison, comparison.alone.sites[other].tested if comparison.alone else None)
            more.append(f"«{other}»: {_with_changes(*both)}{f'; based on {counts}' if counts else ''}.")
    if site is not None and overall is not None and len(judged) > 1:
        more.append(
            f"Over all sites, where each site counts by its test patients: {_with_changes(*overall)}{on_all(comparison)}."
        )
    return Answer("By how much?", words.capital(short), (sentences(*stated),), tuple(more))


def in_metric(comparison: ComparisonResult, name: str) -> str:
    """The mean gain in the metric that decides, and the site that gains least."""
    alone, together = comparison.alone, comparison.together
    gain = mean_gain(comparison, name)
    if (
        gain is None
        or alone is None
        or together is None
        or name not in alone.mean
        or name not in together.mean
    ):
        return ""
    judged = {s: g for s in comparison.sites if (g := site_gain(comparison, s, name))}
    over = "averaged over the sites" if len(judged) > 1 else "at the one site"
    mean = (
        f"{words.capital(words.metric(name).label)} {over}: {words.measured(name, alone.mean[name])} alone, "
        f"{words.measured(name, together.mean[name])} together ({together.label}): {words.compared(name, gain)}"
        f"{on_all(comparison)}."
    )
    least = ""
    if len(judged) > 1:
        worst, fares = smallest(judged)
        counts = words.tested(tested_at(comparison, [worst]))
        least = (
            f"«{worst}» {fares}: {words.compared(name, judged[worst])}{f', on {counts}' if counts else ''}."
        )
    return sentences(mean, least)


def featured(
    comparison: ComparisonResult, judged: Mapping[str, Gain]
) -> tuple[str | None, tuple[InPatients, InPatients]] | None:
    """The site whose patients are shown first: of those with a clear gain the one that gains most; else None, all sites."""
    better = [s for s, g in judged.items() if g.word == "better"]
    site = max(better, key=lambda s: judged[s].mean) if better else None
    both = both_ways(comparison, site) if site is not None else _over_all(comparison)
    return (site, both) if both else None


def with_condition(comparison: ComparisonResult, found: InPatients) -> str:
    """«26 with the condition («abnormal»)»."""
    name = condition(comparison)
    return f"{round(100 * found.ill)} with the condition" + (f" («{name}»)" if name else "")


def condition(comparison: ComparisonResult) -> str | None:
    """The name of class 1, where the results state it and it is more than a yes."""
    counts = (site.tested for site in comparison.alone.sites.values()) if comparison.alone else ()
    name = next((t.positive_class for t in counts if t and t.positive_class), None)
    return None if name is None or name.lower() in YES else name


def both_ways(comparison: ComparisonResult, site: str) -> tuple[InPatients, InPatients] | None:
    """Alone and together at one site, where both were measured."""
    ways = [
        s.sites[site].in_patients if s and site in s.sites else None
        for s in (comparison.alone, comparison.together)
    ]
    alone, together = ways
    return (alone, together) if alone and together else None


def of_100(alone: InPatients, together: InPatients) -> str:
    """«missed 12 → 7, false alarms 4 → 4»."""
    missed = f"missed {round(100 * alone.missed)} → {round(100 * together.missed)}"
    return f"{missed}, false alarms {round(100 * alone.false_alarms)} → {round(100 * together.false_alarms)}"


def _with_changes(alone: InPatients, together: InPatients) -> str:
    """«missed 12 → 7, false alarms 4 → 4 (95 % intervals of the change: missed −6 to −1, false alarms −2 to +2)»."""
    intervals = _intervals(together)
    return of_100(alone, together) + (f" ({intervals})" if intervals else "")


def changes(together: InPatients, name: str) -> str:
    """«95 % intervals of the change: missed −6 to −1, false alarms −15 to −4. The verdict goes by log loss, not …»"""
    intervals = _intervals(together)
    metric = words.metric(name)
    meaning = f" {words.capital(metric.label)}: {metric.meaning}." if metric.meaning else ""
    return f"{intervals}. The verdict goes by {metric.label}, not by these.{meaning}" if intervals else ""


def _intervals(together: InPatients) -> str:
    if together.missed_change is None or together.false_alarms_change is None:
        return ""
    missed, alarms = (
        words.interval_of_100(together.missed_change),
        words.interval_of_100(together.false_alarms_change),
    )
    return f"95 % intervals of the change: missed {missed}, false alarms {alarms}"


def pooling(comparison: ComparisonResult, name: str) -> str | None:
    """How far pooling every record would have come, in a paragraph."""
    closed = gap_closed(comparison, name)
    if closed is None:
        return None
    label, pooled = words.metric(name).label, "one model trained on the records of all sites without noise"
    if closed.share is not None:
        return (
            f"Compared with pooling all records: {words.share_closed(closed)} of the gap closed, between alone and {pooled}, "
            f"by {label}; pooling is {words.compared(name, closed.gap)}{on_all(comparison)}."
        )
    rest = {
        "better": "how much of that gap was closed is too uncertain to state",
        "worse": "so there is no gap to close",
        "too few to judge": "which may be chance",
        EARLIER: EARLIER,
    }.get(closed.gap.word, "so there is no clear gap to close")
    gap = f"{words.compared(name, closed.gap)}{on_all(comparison)}"
    return f"Compared with pooling all records: {pooled}, against alone by {label}: {gap}; {rest}."


def smallest(gains: Mapping[str, Gain]) -> tuple[str, str]:
    """The site with the smallest gain, and how it fares: it gains or loses only where that is clear."""
    worse = [s for s, g in gains.items() if g.word == "worse"]
    site = min(worse or _judged(gains), key=lambda s: gains[s].mean)
    word = gains[site].word
    fares = {"better": "gains least", "worse": "loses most"}.get(word, "has the smallest figure")
    return site, fares


def largest(gains: Mapping[str, Gain]) -> tuple[str, str]:
    """The site with the largest gain, and how it fares: it gains only where that is clear."""
    better = [s for s, g in gains.items() if g.word == "better"]
    site = max(better or _judged(gains), key=lambda s: gains[s].mean)
    return site, "gains most" if better else "has the largest figure"


def _judged(gains: Mapping[str, Gain]) -> list[str]:
    """The sites that can be judged; all of them where none can."""
    return [s for s, g in gains.items() if g.judged] or list(gains)


def based_on(comparison: ComparisonResult, counts: Tested | None) -> str:
    """«60 patients, 14 of them «abnormal», first seen on 2025-01-01 or later»; nothing where it was not recorded."""
    day = later_than(comparison)
    return words.tested(counts) + (f", first seen on {day} or later" if day else "") if counts else ""


def on_all(comparison: ComparisonResult) -> str:
    """«, on 9 168 patients, 2 400 of them «abnormal»»: what a mean over all sites rests on."""
    counts = based_on(comparison, all_tested(comparison))
    return f", on {counts}" if counts else ""


def later_than(comparison: ComparisonResult) -> str | None:
    """The day from which on patients are test patients, where the study splits by date."""
    day = (comparison.facts.get("split") or {}).get("by_date")
    return None if day is None else str(day)


def all_tested(comparison: ComparisonResult) -> Tested | None:
    """The test patients of all sites; those of class 1 where there are two classes."""
    return tested_at(comparison, comparison.sites)


def _over_all(comparison: ComparisonResult) -> tuple[InPatients, InPatients] | None:
    """Alone and together over all sites, each weighted by its test patients; results that do not state it have no interval."""
    alone, together = (_mean_of(s) if s else None for s in (comparison.alone, comparison.together))
    return (alone, together) if alone and together else None


def _mean_of(way: StrategyResult) -> InPatients | None:
    if way.in_patients is not None:
        return way.in_patients
    found = {s: r.in_patients for s, r in way.sites.items() if r.in_patients}
    weights = {s: float(t.patients) for s, r in way.sites.items() if (t := r.tested)}
    return over_sites(found, weights) if weights and found.keys() == weights.keys() else None
