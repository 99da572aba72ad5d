"""By how much? In patients where there are two classes, and in the measure that decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confrere.core.results import ComparisonResult, InPatients
from confrere.report import words
from confrere.report.gains import gap_closed, mean_gain
from confrere.report.page.questions import Answer, sentences
from confrere.statistics.verdict import EARLIER, Gain

NAMED = 3
"""More sites that gain are not named one by one."""


def by_how_much(comparison: ComparisonResult, name: str, judged: Mapping[str, Gain]) -> Answer:
    """Missed patients and false alarms where together is better, and over all sites; the mean gain with its interval."""
    alone, together = comparison.alone, comparison.together
    assert alone is not None
    assert together is not None
    gain, label = mean_gain(comparison, name), words.metric(name).label
    lower = ", where lower is better," if not words.metric(name).higher_is_better else ""
    mean = ""
    if gain and name in alone.mean and name in together.mean:
        mean = (
            f"{'Averaged over the sites' if len(judged) > 1 else 'There'}, {label}{lower} goes "
            f"from {words.measured(name, alone.mean[name])} alone "
            f"to {words.measured(name, together.mean[name])} together ({together.label}): {words.gained(name, gain)}."
        )
    least = ""
    if len(judged) > 1:
        worst = min(judged, key=lambda s: judged[s].mean)
        least = f"«{worst}» {fares(name, judged[worst].mean)}: {words.gained(name, judged[worst])}."
    better = [s for s, g in judged.items() if g.word == "better"]
    patients, there = _over_sites(comparison, comparison.sites), _over_sites(comparison, better)
    if patients is not None:
        before, after = patients
        short = of_100(before, after)
        whose = (
            f"Of 100 patients like those of the sites, {round(100 * before.ill)} with the condition; each site counts by "
            "its test patients."
        )
        if there is not None and len(better) < len(judged):
            names = (
                words.listing([f"«{s}»" for s in better]) if len(better) <= NAMED else "the sites that gain"
            )
            whose = (
                f"Of 100 patients like those of {names}, {round(100 * there[0].ill)} with the condition. Over all sites, each "
                f"by its test patients: {short}."
            )
            short = of_100(*there)
    else:
        short = f"{label} {words.signed(name, gain.mean)}" if gain else "Not measured"
        whose = ""
    return Answer("By how much?", words.capital(short), (sentences(whose, mean, least),))


def of_100(alone: InPatients, together: InPatients) -> str:
    """«missed 12 → 7, false alarms 4 → 4»."""
    missed = f"missed {round(100 * alone.missed)} → {round(100 * together.missed)}"
    return f"{missed}, false alarms {round(100 * alone.false_alarms)} → {round(100 * together.false_alarms)}"


def pooling(comparison: ComparisonResult, name: str) -> str | None:
    """How far pooling every record would have come, in a paragraph."""
    closed = gap_closed(comparison, name)
    if closed is None:
        return None
    label, pooled = words.metric(name).label, "one model trained on the records of all sites without noise"
    if closed.share is not None:
        return (
            f"Compared with pooling all records: {words.share_closed(closed)} of the gap closed, between alone and {pooled}, "
            f"by {label}; pooling gains {words.gained(name, closed.gap)}."
        )
    rest = {
        "better": "how much of that gap was closed is too uncertain to state",
        "worse": "so there is no gap to close",
        "too few to judge": "which may be chance",
        EARLIER: EARLIER,
    }.get(closed.gap.word, "so there is no clear gap to close")
    return f"Compared with pooling all records: {pooled} gains {words.gained(name, closed.gap)} in {label} over alone; {rest}."


def fares(name: str, gain: float) -> str:
    """How the site with the smallest gain does, judged by the figure as it is shown: no site «loses 0.000»."""
    return "loses most" if words.signed(name, gain).startswith("−") else "gains least"


def _over_sites(comparison: ComparisonResult, sites: Iterable[str]) -> tuple[InPatients, InPatients] | None:
    """Alone and together over these sites, each weighted by its test patients; None where a site states none."""
    alone, together = comparison.alone, comparison.together
    assert alone is not None
    assert together is not None
    weights = {s: t.patients for s in sites if (t := alone.sites[s].tested)}
    found = [{s: r.in_patients for s, r in way.sites.items() if r.in_patients} for way in (alone, together)]
    if not weights or any(s not in way for s in weights for way in found):
        return None
    before, after = (_mean(way, weights) for way in found)
    return before, after


def _mean(found: Mapping[str, InPatients], weights: Mapping[str, int]) -> InPatients:
    def mean(key: str) -> float:
        return sum(n * float(getattr(found[s], key)) for s, n in weights.items()) / sum(weights.values())

    return InPatients(mean("threshold"), mean("ill"), mean("missed"), mean("false_alarms"), (), ())
