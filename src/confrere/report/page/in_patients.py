"""Report section: what the gain means in patients, site by site: missed, false alarms, calibration and net benefit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from confrere.core.results import ComparisonResult, InPatients, SiteResult, Tested
from confrere.report import words
from confrere.report.page import charts
from confrere.report.page.axes import Scale, around
from confrere.report.page.by_how_much import based_on, both_ways, changes, condition, of_100
from confrere.report.page.markup import Child, Markup, folded, section, table, tag
from confrere.report.page.sections import Page, report_section
from confrere.report.page.site_table import MANY
from confrere.statistics.verdict import LEAST_RARER

SHOWN = 6
"""Sites with pictures; the table has all."""
CERTAIN = 20
"""With fewer patients of the rarer class a calibration slope is marked as uncertain."""
CELL, COLUMNS = 11, 10
COMPUTED = (
    "A model warns where the probability that it states reaches the threshold. Unless the study or the site sets one, the "
    "threshold is the share of patients with the condition among the training records of the site; the table has its mean over "
    "seeds.",
    "Missed and false alarms are shares of all test records of a seed, averaged over the seeds. The interval of the change is "
    "over patients and seeds; it decides no verdict.",
    "Slope and intercept of the calibration are one fit to the test records of all seeds: 1 and 0 are perfect, and a slope "
    f"below 1 means that stated probabilities are too extreme. They are left out, with both curves, below {LEAST_RARER} patients "
    f"of the rarer class, and marked «uncertain» below {CERTAIN}.",
    "Net benefit is the share of patients found, less the share of false alarms weighted by the odds of the threshold.",
)
KINDS = (
    ("found", "has it, and found"),
    ("missed", "has it, and missed"),
    ("alarm", "does not have it: false alarm"),
    ("well", "does not have it, and left alone"),
)


def sentence(comparison: ComparisonResult, site: str, whose: str = "") -> str | None:
    """«Of 100 patients like yours, 27 are «abnormal»: missed 12 → 7, false alarms 4 → 4; based on …»; None where unknown."""
    both = _both(comparison, site)
    if both is None:
        return None
    alone, together, result = both
    counts = result.tested
    based = f"; based on {based_on(comparison, counts)}" if counts else ""
    few = " Too few to judge." if counts and counts.rarer < LEAST_RARER else ""
    whose = whose or f"those of {site}"
    name = condition(comparison)
    ill = f"Of 100 patients like {whose}, {round(100 * alone.ill)} have the condition"
    ill += f" («{name}»)" if name else ""
    interval = f" {changes(together, comparison.headline or '')}" if together.missed_change else ""
    return f"{ill}: {of_100(alone, together)}{based}.{interval}{few}"


def hundred_patients(whose: str, both: tuple[InPatients, InPatients], name: str | None) -> Markup:
    """The picture of the first screen: a hundred patients like those of `whose`, alone and together."""
    alone, together = both
    ill = f"«{name}»" if name else "ill"
    return tag(
        "figure",
        tag("figcaption", f"100 patients like {whose}"),
        tag(
            "div",
            tag("div", icons(alone, f"{whose}, alone"), tag("p", "alone")),
            tag("div", icons(together, f"{whose}, together"), tag("p", "together")),
            class_="pair",
        ),
        _icon_legend(
            {
                "found": f"{ill}, found",
                "missed": f"{ill}, missed",
                "alarm": "false alarm",
                "well": f"not {ill}" if name else "well",
            }
        ),
        class_="hundred",
    )


def in_patients(comparison: ComparisonResult) -> Markup | None:
    """A table of all sites, and pictures of the first."""
    found = {s: both for s in comparison.sites if (both := _both(comparison, s))}
    if not found or len(found) > MANY:
        return None
    rows: list[list[Child]] = [
        [
            site,
            words.tested(result.tested) or "–",
            f"{100 * alone.threshold:.0f} %",
            _changed(alone.missed, together.missed, together.missed_change),
            _changed(alone.false_alarms, together.false_alarms, together.false_alarms_change),
            _fitted(alone.slope, together.slope, result.tested),
            _fitted(alone.intercept, together.intercept, result.tested),
        ]
        for site, (alone, together, result) in found.items()
    ]
    head = [
        "Site", "Tested on", "Threshold", "Missed of 100", "False alarms of 100", "Calibration slope", "Intercept",
    ]  # fmt: skip
    lead = (
        "Alone → together, of 100 patients of each site: how many with the condition the model would miss, and how many "
        "without it would raise a false alarm. In brackets is the 95 % interval of the change."
    )
    pictures = [_pictures(site, *found[site]) for site in list(found)[:SHOWN]]
    more = len(found) - len(pictures)
    return section(
        "In patients",
        table(head, rows, text=2),
        folded("How this is computed", *COMPUTED),
        _icon_legend(),
        charts.legend(
            ("alone", "alone"), ("together", "together"), ("ideal", "perfect calibration; warning everyone")
        ),
        *pictures,
        tag("p", f"{words.count(more, 'more site')} without a picture.", class_="under") if more else None,
        lead=lead,
        id_="in-patients",
    )


def _pictures(site: str, alone: InPatients, together: InPatients, result: SiteResult[object]) -> Markup:
    enough = result.tested is None or result.tested.rarer >= LEAST_RARER
    return tag(
        "figure",
        tag("h3", site, tag("small", f" – {words.tested(result.tested)}") if result.tested else None),
        tag(
            "div",
            tag("div", tag("h4", "100 patients, alone"), icons(alone, f"{site}, alone")),
            tag("div", tag("h4", "100 patients, together"), icons(together, f"{site}, together")),
            tag(
                "div",
                tag("h4", "Observed by stated, in %"),
                _calibration(site, alone, together) if enough else _too_few(),
            ),
            tag(
                "div",
                tag("h4", "Net benefit by threshold"),
                _net_benefit(site, alone, together) if enough else _too_few(),
            ),
            class_="quarters",
        ),
    )


def _too_few() -> Markup:
    return tag(
        "p", f"Too few to judge: fewer than {LEAST_RARER} patients of the rarer class.", class_="under"
    )


def icons(found: InPatients, label: str) -> Markup:
    """A hundred squares, one for each patient; each kind has its own shape, so colour is not needed."""
    ill, missed, alarms = (round(100 * v) for v in (found.ill, found.missed, found.false_alarms))
    missed, alarms = min(missed, ill), min(alarms, 100 - ill)
    kinds = ["found"] * (ill - missed) + ["missed"] * missed + ["alarm"] * alarms
    kinds += ["well"] * (100 - len(kinds))
    counts = "; ".join(f"{kinds.count(kind)} {text}" for kind, text in KINDS)
    squares = [_icon(kind, 13 * (n % COLUMNS), 13 * (n // COLUMNS)) for n, kind in enumerate(kinds)]
    return tag(
        "svg", tag("title", counts), *squares, viewBox=f"0 0 {13 * COLUMNS} {13 * (100 // COLUMNS)}", class_="icons",
        role="img", aria_label=f"{label}: {counts}",
    )  # fmt: skip


def _icon_legend(texts: Mapping[str, str] = MappingProxyType(dict(KINDS))) -> Markup:
    """The shapes of the hundred patients."""
    keys = (
        tag("li", tag("svg", _icon(kind, 1, 1), width=14, height=14, aria_hidden="true"), text)
        for kind, text in texts.items()
    )
    return tag("ul", *keys, class_="legend")


def _changed(alone: float, together: float, change: tuple[float, float] | None) -> Markup:
    interval = tag("small", f" ({words.interval_of_100(change)})", class_="whole") if change else None
    both = f"{round(100 * alone)} → {round(100 * together)}"
    return tag("span", tag("span", both, class_="whole"), interval)


def _icon(kind: str, x: int, y: int) -> Markup:
    middle = CELL / 2
    if kind == "missed":
        d = f"M{x + 1} {y + 1}L{x + CELL - 1} {y + CELL - 1}M{x + CELL - 1} {y + 1}L{x + 1} {y + CELL - 1}"
        return tag("path", d=d, class_="icon missed")
    if kind == "alarm":
        d = f"M{x + middle} {y + 0.5}L{x + CELL - 0.5} {y + CELL - 0.5}L{x + 0.5} {y + CELL - 0.5}Z"
        return tag("path", d=d, class_="icon alarm")
    return tag(
        "circle", cx=x + middle, cy=y + middle, r=4.5 if kind == "found" else 2.0, class_=f"icon {kind}"
    )


def _calibration(site: str, alone: InPatients, together: InPatients) -> Markup:
    whole = Scale(0, 1)
    series = [
        charts.ChartLine("ideal", [(0.0, 0.0), (1.0, 1.0)], title="perfect calibration"),
        charts.ChartLine("alone", alone.calibration, title="alone"),
        charts.ChartLine("together", together.calibration, title="together"),
    ]
    axes = charts.Axes(whole, whole, _percent, _percent)
    return charts.lines(series, axes, height=190, label=f"{site}: calibration curve, alone and together")


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value == 1 else f"{100 * value:.0f}"


def _net_benefit(site: str, alone: InPatients, together: InPatients) -> Markup:
    share = alone.ill
    treat_all = [(t, share - t / (1 - t) * (1 - share)) for t, _ in alone.net_benefit]
    treat_all = [(t, v) for t, v in treat_all if v > -0.05]
    series = [
        charts.ChartLine("ideal", treat_all, title="warn for everyone"),
        charts.ChartLine("alone", alone.net_benefit, title="alone"),
        charts.ChartLine("together", together.net_benefit, title="together"),
    ]
    y = around([v for s in series for _, v in s.points if v > -0.05], zero=True)
    axes = charts.Axes(
        Scale(0, 1),
        y,
        _percent,
        lambda v: f"{v:.2f}",
    )
    return charts.lines(
        series, axes, height=190, label=f"{site}: net benefit by threshold, alone and together"
    )


def _both(
    comparison: ComparisonResult, site: str
) -> tuple[InPatients, InPatients, SiteResult[object]] | None:
    found = both_ways(comparison, site)
    if found is None or comparison.alone is None:
        return None
    return (*found, comparison.alone.sites[site])


def _fitted(alone: float | None, together: float | None, counts: Tested | None) -> str:
    """«0.90 → 0.95», «0.90 → 0.95, uncertain» or «too few», by the patients of the rarer class."""
    if counts is not None and counts.rarer < LEAST_RARER:
        return "too few"
    note = ", uncertain" if counts is not None and counts.rarer < CERTAIN else ""
    return f"{_plain(alone)} → {_plain(together)}{note}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


@report_section("in patients", order=15)
def _section(page: Page) -> Markup | None:
    return in_patients(page.comparison) if page.comparison is not None else None
