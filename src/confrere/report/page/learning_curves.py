"""Report section: learning curves and privacy spent, round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from confrere.core.events import Json
from confrere.core.metrics import proper
from confrere.core.results import PrivacySpent
from confrere.report import words
from confrere.report.history import History, Spending
from confrere.report.page import charts
from confrere.report.page.axes import Scale, around
from confrere.report.page.markup import Markup, section, table, tag
from confrere.report.page.sections import Page, report_section
from confrere.statistics.verdict import LEAST_RARER

PANELS = 12
"""More sites than this share one panel."""

Histories = Mapping[str, Sequence[History]]
"""For each kind of line («alone», «together» …) its runs, one per seed."""


def learning_curves(
    histories: Histories, sites: Sequence[str], metric: str | None, legend: Sequence[tuple[str, str]]
) -> Markup | None:
    """A panel per site; with many sites, one panel with the spread over sites."""
    found = _choose(histories, metric)
    if found is None:
        return None
    name, split = found
    curves = {
        (site, kind): _values(runs, site, name, split) for site in sites for kind, runs in histories.items()
    }
    curves = {key: c for key, c in curves.items() if c}
    last = max(turn for c in curves.values() for turn in c)
    if last == 0:
        return None
    based = {site: _based_on(histories, [site], split) for site in sites}
    if len(sites) > PANELS:
        panels = {"All sites": {kind: _over_sites(curves, sites, kind) for kind in histories}}
        based = {"All sites": _based_on(histories, sites, split)}
        spread = f"Lines are means over {len(sites)} sites, bands one standard deviation over them."
    else:
        panels = {s: {k: curves[s, k] for k in histories if (s, k) in curves} for s in sites}
        several = max(len(runs) for runs in histories.values()) > 1
        spread = (
            "Bands are one standard deviation over seeds." if several else "One seed, so there are no bands."
        )
    drawn, cut = _panels({title: found for title, found in panels.items() if found}, name, last, based)
    records = {"validation": "records that it holds back for validation", "test": "its test records"}
    lead = (
        f"{words.capital(words.metric(name).label)} of the model that a site would use, on "
        f"{records.get(split, 'the common test records')}, round by round. {spread}"
    )
    if split == "validation":
        lead += (
            " These are other and fewer records than the test records of the tables, so the figures differ."
        )
    if cut:
        lead += " The first rounds lie outside of the axis and are cut off."
    return section(
        "How they learned",
        charts.legend(*legend),
        tag("div", *drawn, class_="panels" if len(drawn) > 1 else None),
        lead=lead,
    )


def _panels(
    panels: Mapping[str, Mapping[str, dict[int, list[float]]]],
    metric: str,
    last: int,
    based: Mapping[str, str],
) -> tuple[list[Markup], bool]:
    """A chart for each title, all on the same axes; whether early rounds fall outside of them."""
    y, cut = _heights([line for found in panels.values() for line in found.values()], metric, last)
    axes = charts.over_rounds(Scale(0, last + 1), y, lambda v: words.figure(metric, v))
    height = 280 if len(panels) == 1 else 170
    label = words.metric(metric).label
    drawn = []
    for title, found in panels.items():
        series = [_line(kind, values, metric) for kind, values in found.items()]
        chart = charts.lines(series, axes, height=height, label=f"{title}: {label} over rounds")
        counts = based.get(title)
        drawn.append(
            tag("div", tag("h3", title), tag("p", counts, class_="under") if counts else None, chart)
        )
    return drawn, cut


def _based_on(histories: Histories, sites: Sequence[str], split: str) -> str:
    """«9 to 13 patients, 2 to 4 of them «abnormal», in each seed; too few to judge»; nothing where journals do not state it."""
    runs = [h for found in histories.values() for h in found]
    counted = [[c for s in sites if (c := h.patients.get((s, split)))] for h in runs]
    seeds = [c for c in counted if c]
    if not seeds:
        return ""
    patients = _range([sum(c.patients for c in found) for found in seeds])
    first, text = seeds[0][0], f"{patients} patient{'' if patients == '1' else 's'}"
    ill = [sum(c.positive for c in found if c.positive is not None) for found in seeds]
    if first.positive is not None:
        text += f", {_range(ill)} of them «{first.positive_class}»"
    elif any(c.rarer < c.patients for found in seeds for c in found):
        text += (
            f", {_range([sum(c.rarer for c in found) for found in seeds])} outside the most frequent class"
        )
    text += ", in each seed" if max(len(found) for found in histories.values()) > 1 else ""
    few = min(sum(c.rarer for c in found) for found in seeds) < LEAST_RARER
    return text + ("; too few to judge" if few else "")


def _range(counts: Sequence[int]) -> str:
    low, high = words.plain_number(min(counts)), words.plain_number(max(counts))
    return low if low == high else f"{low} to {high}"


def privacy_over_rounds(history: History | None, sites: Sequence[str], seed: str) -> Markup | None:
    """ε over rounds against the budget; sites that spend alike share a panel."""
    if history is None or not history.spendings:
        return None
    alike: dict[Spending, list[str]] = {}
    spent = {site: history.epsilon(site) for site in sites}
    spent = {site: course for site, course in spent.items() if course}
    for site, course in spent.items():
        end = replace(course[-1], site="", round=0, epsilon=round(course[-1].epsilon, 3))
        alike.setdefault(end, []).append(site)
    every = [s for course in spent.values() for s in course if math.isfinite(s.epsilon)]
    if not every:
        return None
    x = Scale(0, max(s.round for s in every) + 1)
    y = Scale(0, 1.12 * max(max(s.epsilon, s.budget or 0.0) for s in every))
    groups = sorted(alike.values(), key=lambda names: -len(names))
    shown, rest = groups[:PANELS], groups[PANELS:]
    panels = [
        _spent_panel(names, spent, x, y, len(sites), 230 if len(shown) == 1 else 170) for names in shown
    ]
    lead = (
        f"What each site had spent after each round ({seed}). ε bounds how much more likely anything that "
        "left the site became because one record was in the data; smaller is more private. It never falls, "
        "and the step that would pass the budget is refused."
    )
    if not all(s.proven for s in every):
        why = history.started.get("unproven")
        lead += f" Here ε is as published, not proven{f' ({why})' if why else ''}: do not rely on it."
    if any(s.ceiling is not None for s in every):
        lead += " Above the ceiling that a site has set, noise is not taken for protection: what left then is marked UNPROVEN."
    more = (
        f"Not drawn: {words.count(sum(map(len, rest)), 'more site')} with courses of their own."
        if rest
        else None
    )
    return section(
        "Privacy spent",
        tag("div", *panels, class_="panels" if len(panels) > 1 else None),
        tag("p", more, class_="under") if more else None,
        _meaning(history),
        lead=lead,
    )


def _meaning(history: History) -> Markup | None:
    """What the largest ε means: for whom it holds, and the trade-off curve behind it."""
    result = (history.finished or {}).get("result") or {}
    found = result.get("privacy")
    if not found:
        return None
    rows = [
        ("one record", found["readings"]["record"]),
        ("one patient with all records", found["readings"]["patient"]),
        (f"one {found['unit']} of the whole file, held-out parts included", found["readings"]["file"]),
    ]
    shown = [[who, "no bound" if value is None else words.epsilon(value)] for who, value in rows]
    why = (
        f" The split lets one {found['unit']} move {found['file_group'] - 1} others in or out of the training part."
        if found["file_group"] > 1
        else ""
    )
    return tag(
        "div",
        tag("h3", f"What ε means at {found['site']}, which spent most"),
        tag("p", f"{found['sentence']}{why}"),
        table(["ε for", "spent"], shown),
        _trade_off(found["trade_off"]) if found["trade_off"] else None,
    )


def _trade_off(curve: Mapping[str, Json]) -> Markup:
    """The least share of members that a test misses, by the share of others that it takes for members."""
    whole = Scale(0, 1)
    points = [(float(at), float(missed)) for at, missed in curve["points"]]
    caption = (
        "Upwards: false negatives, the members that a test misses. "
        "No test that looks at all that left the site lies below the curve; one that guesses without looking lies on"
        " the straight line."
    )
    if curve["mu"] is not None:
        caption += f" The curve is exactly that of two Gaussians, μ = {curve['mu']:.3g} apart."
    return tag(
        "div",
        charts.legend(("together", "least that a test misses"), ("alone", "guessing")),
        charts.lines(
            [
                charts.ChartLine("alone", [(0.0, 1.0), (1.0, 0.0)], title="guessing without looking"),
                charts.ChartLine("together", points, title="trade-off curve"),
            ],
            charts.Axes(
                whole,
                whole,
                lambda v: f"{100 * v:.0f} %" + (" false positives" if v == whole.ticks(6)[-1] else ""),
                lambda v: f"{100 * v:.0f} %",
            ),
            height=240,
            width=charts.NARROWEST,
            label="Trade-off curve: false negatives that no test can go below, by false positives",
        ),
        tag("p", caption, class_="under"),
    )


def _spent_panel(
    names: Sequence[str],
    spent: Mapping[str, tuple[Spending, ...]],
    x: Scale,
    y: Scale,
    total: int,
    height: int,
) -> Markup:
    """The courses of sites that ended alike."""
    courses = {tuple((s.round + 1.0, s.epsilon) for s in spent[name]): name for name in names}
    title = words.listing(names, 4) if len(names) < total else f"Every site ({len(names)})"
    end = spent[names[0]][-1]
    series = [
        charts.ChartLine("together", [(0.0, 0.0), *course], title=name) for course, name in courses.items()
    ]
    return tag(
        "div",
        tag("h3", title if total > 1 else names[0]),
        charts.lines(
            series,
            replace(charts.over_rounds(x, y, lambda v: f"{v:g}"), y_labels=4),
            limit=None if end.budget is None else (end.budget, f"budget {words.epsilon(end.budget)}"),
            height=height,
            label=f"{title}: privacy spent over rounds",
        ),
        tag("p", f"{'Spent' if end.proven else 'Claimed'}: {_terms(end)}", class_="under"),
    )


def _terms(s: Spending) -> str:
    above = s.ceiling is not None
    return words.privacy(
        PrivacySpent(
            s.epsilon,
            s.delta,
            s.unit,
            s.proven,
            s.accountant,
            s.budget,
            dict(s.others),
            s.ceiling,
            above,
            s.condition,
        )
    )


def _choose(histories: Histories, metric: str | None) -> tuple[str, str] | None:
    """The metric and the records to draw: the asked one on validation records, else what there is."""
    found = {(c.metric, c.split) for runs in histories.values() for h in runs for c in h.curves}
    wanted = [
        (m, s)
        for s in ("validation", "test", "common_test")
        for m in (metric, proper({m for m, _ in found}), *sorted({m for m, _ in found}))
        if m
    ]
    return next((w for w in wanted if w in found), None)


def _values(runs: Sequence[History], site: str, metric: str, split: str) -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for run in runs:
        curve = run.deployed(site, metric, split)
        for point in curve.points if curve else ():
            values.setdefault(point.round, []).append(point.value)
    return values


def _over_sites(
    curves: Mapping[tuple[str, str], dict[int, list[float]]], sites: Sequence[str], kind: str
) -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for site in sites:
        for turn, seeds in curves.get((site, kind), {}).items():
            values.setdefault(turn, []).append(statistics.fmean(seeds))
    return values


def _line(kind: str, values: Mapping[int, Sequence[float]], metric: str) -> charts.ChartLine:
    means = [(turn + 1.0, statistics.fmean(v)) for turn, v in sorted(values.items())]
    band = [(turn + 1.0, *_band(v, metric)) for turn, v in sorted(values.items()) if len(v) > 1]
    return charts.ChartLine(kind, means, band, kind)


def _band(values: Sequence[float], metric: str) -> tuple[float, float]:
    """One standard deviation to each side of the mean, as far as the metric has values: no band passes an AUC of 1."""
    mean, std = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    within = words.metric(metric).within
    return within(mean - std), within(mean + std)


def _heights(lines: Sequence[Mapping[int, Sequence[float]]], metric: str, last: int) -> tuple[Scale, bool]:
    """One height for all panels, chosen for where the curves end; whether early rounds fall outside of it."""
    means = [(turn, statistics.fmean(v)) for line in lines for turn, v in line.items()]
    ends = [(turn, edge) for line in lines for turn, v in line.items() for edge in _band(v, metric)]
    late = [v for turn, v in ends if turn >= 0.4 * last] or [v for _, v in ends]
    scale = around(late, room=0.12)
    return scale, any(not 0 <= scale(v) <= 1 for _, v in means)


@report_section("learning curves", order=80)
def _curves(page: Page) -> Markup | None:
    if not page.histories:
        return None
    return learning_curves(page.histories, page.sites, page.headline, page.legend)


@report_section("privacy over rounds", order=110)
def _spent(page: Page) -> Markup | None:
    return privacy_over_rounds(page.history, page.sites, page.shown)
