"""Report section: site by site: alone, together and pooled on one line, for every metric; and how fair the gain is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from confrere.core.metrics import in_order
from confrere.core.results import CommonResult, ComparisonResult, Measured, StrategyResult
from confrere.report import words
from confrere.report.gains import gap_closed, mean_gain, site_gain, stated_gain, tested_at
from confrere.report.page import charts
from confrere.report.page.axes import Scale, around
from confrere.report.page.by_how_much import largest, on_all, smallest
from confrere.report.page.markup import Child, Markup, section, table, tag
from confrere.report.page.sections import of_comparison
from confrere.report.page.site_table import CLASSES, MANY, rows_of, word
from confrere.statistics.verdict import Gain


def site_by_site(comparison: ComparisonResult) -> Markup | None:
    """A dumbbell chart for each metric."""
    if comparison.together is None or comparison.alone is None or len(comparison.sites) > MANY:
        return None
    kinds = [
        ("alone", "alone, without noise"),
        ("together", f"together ({comparison.together.label})"),
    ]
    if comparison.pooled:
        kinds.append(("pooled", "all records pooled, without noise"))
    several = len(comparison.seeds) > 1
    lead = (
        f"Dots are means over {len(comparison.seeds)} seeds, bars one standard deviation to each side. "
        "The word is judged in pairs, patient by patient, so it can be clear although bars overlap. "
        f"It goes by {words.metric(comparison.headline or '').label} alone; other metrics are shown."
        if several
        else "One seed, so there is no spread to show."
    )
    ordered = words.primary_first(comparison.metrics, comparison.headline)
    charted = [_dumbbell(comparison, m, comparison.sites) for m in ordered]
    return section("Site by site", charts.legend(*kinds), *charted, lead=lead)


def all_sites(comparison: ComparisonResult) -> Markup | None:
    """The table of every site, where there are too many for the first screen."""
    name = comparison.headline
    if name is None or len(comparison.sites) <= MANY:
        return None
    judged = {s: g for s in comparison.sites if (g := site_gain(comparison, s, name))}
    chance = f"The words of all {len(judged)} sites are corrected together for their number."
    return section("All sites", rows_of(comparison, name, judged, list(judged)), lead=chance)


def ways_compared(comparison: ComparisonResult) -> Markup:
    """One row for each strategy: what it reaches, what it gains, what it costs."""
    names = words.primary_first(comparison.metrics, comparison.headline)[:4]
    head: list[Child] = ["Way to learn", *(words.capital(words.metric(m).label) for m in names)]
    rows: list[list[Child]] = []
    for strategy in comparison.strategies.values():
        label = tag("div", strategy.label, tag("small", guarantee(strategy)), class_="way")
        cost = tag(
            "span", words.size(strategy.bytes_sent), tag("br"), tag("small", words.duration(strategy.seconds))
        )
        figures = (words.measured(m, strategy.mean.get(m)) for m in names)
        rows.append([label, *figures, _against(comparison, strategy), cost])
    spread = "± one standard deviation over seeds" if len(comparison.seeds) > 1 else "one seed, so no spread"
    against = f"Gain over alone, {words.metric(comparison.headline or '').label} (+ is better)"
    lead = f"Means over sites{on_all(comparison)}; {spread}. Bytes are those of all sites in one run; time is that of all seeds."
    return section("Every way that was tried", table([*head, against, "Cost"], rows), lead=lead)


def guarantee(strategy: StrategyResult) -> str:
    """What protects the records under this strategy, in words."""
    stem = strategy.name.split("-")[0]
    spent = [s.privacy for s in strategy.sites.values() if s.privacy] or [p for p in (strategy.privacy,) if p]
    if spent:
        return "Privacy spent: " + words.privacy(max(spent, key=lambda p: p.epsilon))
    if stem == "pooled":
        return "All records in one place, which is what the sites may not do; " + words.NO_NOISE
    if stem == "local":
        return "Nothing leaves the site; trained without noise"
    return words.capital(words.NO_NOISE)


def fairness(comparison: ComparisonResult) -> Markup | None:
    """Who gains how much, against how many records they have."""
    name = comparison.headline
    if name is None or comparison.together is None or comparison.alone is None:
        return None
    gains = {s: g for s in comparison.sites if (g := site_gain(comparison, s, name))}
    sized = {s: n for s in gains if (n := comparison.alone.sites[s].records)}
    if len(sized) < 2:
        return None
    unit = " points" if words.metric(name).percent else ""
    means = {s: gains[s].mean for s in sized}
    (best, most), (worst, least) = (extreme({s: gains[s] for s in sized}) for extreme in (largest, smallest))
    over = statistics.stdev(means.values())
    lead = (
        f"By {words.metric(name).label}, «{best}» {most}: {_on_its_patients(comparison, best, gains[best])}. "
        + (
            f"«{worst}» {least}: {_on_its_patients(comparison, worst, gains[worst])}. "
            if worst != best
            else ""
        )
        + f"Over sites the gain has a standard deviation of {words.signed(name, over).lstrip('+')}{unit}."
    )
    low, high = min(sized.values()), max(sized.values())
    x = Scale(low / 1.3, high * 1.3, log=True)
    y = around(
        [v for s in sized for v in (gains[s].low, gains[s].high, gains[s].mean) if v is not None], zero=True
    )
    dots = [
        charts.Dot(
            CLASSES[gains[s].word],
            n,
            gains[s].mean,
            gains[s].low,
            gains[s].high,
            s if len(s) <= 18 else s[:17] + "…",
            f"{s}, {words.count(n, 'training record')}: {_on_its_patients(comparison, s, gains[s])}",
        )
        for s, n in sized.items()
    ]
    chart = charts.scatter(
        dots,
        charts.Axes(x, y, lambda v: f"{v:,.0f}".replace(",", "\u2009"), lambda v: words.signed(name, v)),
        label=f"Gain in {words.metric(name).label} by number of records",
        names=len(dots) <= MANY,
    )
    caption = (
        f"Upwards is better: gain in {words.metric(name).label}{' in points' if unit else ''} over alone"
        f"{f', with its {words.interval_label(gains[best])}' if len(comparison.seeds) > 1 else ', one seed'}. "
        "To the right: training records of the site, on a logarithmic scale."
    )
    return section("Who gains", tag("figure", chart, tag("figcaption", caption)), lead=lead)


def gap(comparison: ComparisonResult) -> Markup | None:
    """How much of the way from alone to pooled was made."""
    if comparison.pooled is None or comparison.together is None:
        return None
    rows: list[list[Child]] = []
    for name in words.primary_first(comparison.metrics, comparison.headline):
        closed = gap_closed(comparison, name)
        if closed is None:
            continue
        rows.append(
            [
                words.capital(words.metric(name).label),
                words.gained(name, closed.gap),
                words.gained(name, closed.gained),
                words.share_closed(closed) if name == comparison.headline else "",
            ]
        )
    if not rows:
        return None
    lead = (
        "Pooled training puts all records in one place, without noise: it is what the sites may not do, and "
        "what they would get if they could. The gap is what pooling would gain over alone, "
        f"averaged over the sites{on_all(comparison)}."
    )
    head = [
        "Metric", "Gap: gain of pooled over alone (+ is better)", "Gain of together over alone", "Share of the gap closed",
    ]  # fmt: skip
    return section("How much of the gap was closed", table(head, rows), lead=lead)


def on_common(comparison: ComparisonResult) -> Markup | None:
    """The same question on records that are common to all sites, where the study has them."""
    alone, together, pooled = comparison.alone, comparison.together, comparison.pooled
    if alone is None or together is None or alone.common is None or together.common is None:
        return None
    rows: list[list[Child]] = []
    for name in words.primary_first(in_order(together.common.mean), comparison.headline):
        found = stated_gain(together.common.gains.get(name))
        groups = (alone.common, together.common, pooled.common if pooled else None)
        means: list[Child] = [words.measured(name, g.mean.get(name)) if g else "–" for g in groups]
        judged: list[Child] = (
            [words.gained(name, found), word(found) if name == comparison.headline else ""]
            if found
            else ["–", "–"]
        )
        rows.append([words.capital(words.metric(name).label), *means, *judged])
    lead = (
        "Every site's model on the same test records, which have the classes in the study's own shares, averaged over the "
        f"sites: what a model knows of patients that its own site rarely sees.{_common_counts(alone.common)}"
    )
    head = ["Metric", "Alone", "Together", "Pooled", "Together over alone", "In a word"]
    return section("On common test records", table(head, rows), lead=lead)


def _on_its_patients(comparison: ComparisonResult, site: str, gain: Gain) -> str:
    """The gain of a site, and the patients that it rests on."""
    counts = words.tested(tested_at(comparison, [site]))
    return words.compared(comparison.headline or "", gain) + (f", on {counts}" if counts else "")


def _common_counts(common: CommonResult) -> str:
    counts = next((words.tested(s.tested) for s in common.by_site.values() if s.tested), "")
    return f" All figures rest on {counts}." if counts else ""


def _dumbbell(comparison: ComparisonResult, name: str, sites: Sequence[str]) -> Markup:
    alone, together, pooled = comparison.alone, comparison.together, comparison.pooled
    assert alone is not None
    assert together is not None
    shown = [("alone", alone), ("together", together)] + ([("pooled", pooled)] if pooled else [])
    within = words.metric(name).within
    found = {
        (site, kind): m
        for site in sites
        for kind, strategy in shown
        if site in strategy.sites and (m := strategy.sites[site].metrics.get(name))
    }
    ends = [v for m in found.values() for v in (within(m.mean - (m.std or 0)), within(m.mean + (m.std or 0)))]
    scale = around(ends)
    judged = name == comparison.headline

    def axis(kind: str = "") -> Markup:
        return charts.axis(scale, lambda v: words.figure(name, v), kind=kind)

    rows = []
    for site in sites:
        marks = [_mark(kind, s.label, name, found[site, kind]) for kind, s in shown if (site, kind) in found]
        gain = site_gain(comparison, site, name)
        rows.append(
            tag(
                "tr",
                tag("th", site, _counts(alone, site), scope="row"),
                tag("td", axis("own"), charts.row(marks, scale), class_="picture"),
                tag(
                    "td",
                    _change(name, found.get((site, "alone")), found.get((site, "together"))),
                    class_="figure",
                    data_label="Alone → together",
                ),
                tag("td", word(gain) if gain else "–", class_="verdict") if judged else None,
            )
        )
    label = words.metric(name).label
    head = tag(
        "tr",
        tag("th", "Site", scope="col"),
        tag("th", axis(), scope="col", class_="picture"),
        tag("th", "Alone → together", scope="col", class_="figure"),
        tag("th", "In a word", scope="col") if judged else None,
    )
    return tag(
        "figure",
        tag(
            "h3",
            words.capital(label),
            tag("small", " – lower is better") if not words.metric(name).higher_is_better else None,
        ),
        tag("table", tag("thead", head), tag("tbody", *rows), class_="wide"),
    )


def _counts(alone: StrategyResult, site: str) -> Markup | None:
    """The patients that a site's figures rest on, beneath its name."""
    counts = words.tested(alone.sites[site].tested) if site in alone.sites else ""
    return tag("small", counts) if counts else None


def _mark(kind: str, label: str, name: str, m: Measured) -> charts.Mark:
    within = words.metric(name).within
    low, high = (None, None) if m.std is None else (within(m.mean - m.std), within(m.mean + m.std))
    return charts.Mark(kind, m.mean, low, high, f"{label}: {words.measured(name, m)}")


def _change(name: str, alone: Measured | None, together: Measured | None) -> Markup:
    both = (tag("span", words.measured(name, m), class_="whole") for m in (alone, together))
    return tag("span", next(both), " → ", next(both))


def _against(comparison: ComparisonResult, strategy: StrategyResult) -> Child:
    name = comparison.headline
    if name is None or strategy.name == comparison.reference:
        return "the reference"
    gain = mean_gain(comparison, name, strategy)
    if gain is None:
        return "not comparable"
    interval = ""
    if gain.low is not None and gain.high is not None:
        interval = f"{words.signed(name, gain.low)} to {words.signed(name, gain.high)}"
    return tag(
        "span",
        word(gain),
        tag("br"),
        words.signed(name, gain.mean),
        tag("small", f" ({interval})") if interval else None,
    )


of_comparison("site by site", order=20)(site_by_site)
of_comparison("ways compared", order=30)(ways_compared)
of_comparison("fairness", order=40)(fairness)
of_comparison("gap", order=50)(gap)
of_comparison("common test", order=60)(on_common)
of_comparison("all sites", order=130)(all_sites)
