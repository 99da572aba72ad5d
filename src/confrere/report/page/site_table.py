"""The table of the first screen: for each site alone, together, the difference as a picture, bytes sent, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confrere.core.results import ComparisonResult, InPatients
from confrere.report import words
from confrere.report.page import charts
from confrere.report.page.axes import Scale, around
from confrere.report.page.by_how_much import based_on, both_ways, of_100
from confrere.report.page.markup import Child, Markup, tag
from confrere.statistics.verdict import EARLIER, Gain, Word

CLASSES: dict[Word, str] = {
    "better": "better",
    "worse": "worse",
    "no clear difference": "unclear",
    "too few to judge": "unclear",
    "not judged": "unclear",
    EARLIER: "unclear",
}
SIGNS: dict[Word, str] = {
    "better": "▲", "worse": "▼", "no clear difference": "=", "too few to judge": "·", "not judged": "·",
    EARLIER: "·",
}  # fmt: skip
MANY = 16
"""More sites than this are summed up; the table of all of them comes at the end."""


def word(gain: Gain) -> Markup:
    return tag("span", f"{SIGNS[gain.word]} {gain.word}", class_=f"word {CLASSES[gain.word]}")


def site_table(comparison: ComparisonResult, name: str, judged: dict[str, Gain]) -> Markup:
    """All sites, or the first and the last where there are many."""
    shown, note = list(judged), None
    if len(judged) > MANY:
        ranked = sorted(judged, key=lambda s: judged[s].mean)
        shown = [*reversed(ranked[-4:]), *reversed(ranked[:4])]
        note = tag(
            "p",
            f"The four sites with the largest figures and the four with the smallest; all {len(judged)} are at the end.",
            class_="under",
        )
    return tag("div", note, rows_of(comparison, name, judged, shown))


def rows_of(comparison: ComparisonResult, name: str, judged: dict[str, Gain], shown: Sequence[str]) -> Markup:
    """A row for each of these sites, all on one scale and with bytes in one unit."""
    ends = [v for g in judged.values() for v in (g.low, g.high, g.mean) if v is not None]
    scale = around(ends, zero=True)
    metric = words.metric(name)
    unit = " in points" if metric.percent else ""
    lower = " (lower is better)" if not metric.higher_is_better else ""
    sides = tag("span", tag("span", "← worse"), tag("span", "better →"), class_="sides")
    heads: list[tuple[str, Child]] = [
        ("figure", f"{words.capital(metric.label)}, alone → together{lower}"),
        ("picture", tag("span", f"Together against alone{unit}", sides, _axis(scale, name))),
    ]
    patients = any(both_ways(comparison, s) for s in shown)
    if patients:
        heads.append(("patients", "Of 100 patients, alone → together (95 % interval of the change)"))
    heads += [("figure", "Left the site"), ("", "In a word")]
    head = tag(
        "tr",
        tag("th", "Site", scope="col"),
        *(tag("th", text, scope="col", class_=kind or None) for kind, text in heads),
    )
    sent = _sent(comparison, shown)
    form = _Rows(comparison, name, scale, patients)
    rows = (form.row(s, judged[s], sent.get(s, "–")) for s in shown)
    return tag("table", tag("thead", head), tag("tbody", *rows), class_="answers")


def _axis(scale: Scale, name: str, kind: str = "") -> Markup:
    return charts.axis(scale, lambda v: words.signed(name, v), kind=kind)


@dataclass(frozen=True)
class _Rows:
    """What the rows of one table have in common."""

    comparison: ComparisonResult
    metric: str
    scale: Scale
    patients: bool
    """Whether there is a column «Of 100 patients»."""

    def row(self, site: str, gain: Gain, sent: str) -> Markup:
        comparison, name = self.comparison, self.metric
        alone, together = comparison.alone, comparison.together
        assert alone is not None
        assert together is not None
        before, after = (s.sites[site].metrics.get(name) for s in (alone, together))
        mark = charts.Mark(
            CLASSES[gain.word], gain.mean, gain.low, gain.high, f"{site}: {words.compared(name, gain)}"
        )
        both = both_ways(comparison, site)
        patients = tag("td", _of_100(*both) if both else "–", class_="patients", data_label="Of 100 patients")
        return tag(
            "tr",
            tag("th", site, tag("small", basis(comparison, site)), scope="row"),
            tag(
                "td",
                tag("span", words.measured(name, before), " →", class_="whole"),
                " ",
                tag("span", words.measured(name, after), class_="whole"),
                class_="figure",
                data_label=f"{words.capital(words.metric(name).label)}, alone → together",
            ),
            tag(
                "td",
                _axis(self.scale, name, "own"),
                charts.row([mark], self.scale, zero=True),
                class_="picture",
                data_label="Together against alone (to the right is better)",
            ),
            patients if self.patients else None,
            tag("td", tag("span", sent, class_="whole"), class_="figure", data_label="Left the site"),
            tag("td", word(gain), class_="verdict"),
        )


def basis(comparison: ComparisonResult, site: str) -> str:
    """«240 training records per seed; tested on 60 patients, 14 of them «abnormal», over 5 seeds»."""
    result = comparison.alone.sites[site] if comparison.alone else None
    if result is None:
        return ""
    records = words.count(result.records, "training record") if result.records is not None else ""
    splits = f", over {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""
    records += " per seed" if records and splits else ""
    tested = f"tested on {based_on(comparison, result.tested)}{splits}" if result.tested else ""
    return "; ".join(part for part in (records, tested) if part)


def _sent(comparison: ComparisonResult, sites: Sequence[str]) -> dict[str, str]:
    """What left each site in one run, all in one unit."""
    together = comparison.together
    assert together is not None
    found = {s: b for s in sites if s in together.sites and (b := together.sites[s].bytes_sent) is not None}
    return dict(zip(found, words.in_one_unit(list(found.values())), strict=True))


def _of_100(alone: InPatients, together: InPatients) -> Markup:
    """Missed and false alarms, each on a line of its own, with the interval of its change."""
    found = zip(
        of_100(alone, together).split(", "),
        (together.missed_change, together.false_alarms_change),
        strict=True,
    )
    return tag(
        "span",
        *(
            tag(
                "span",
                tag("span", text, class_="whole"),
                tag("small", f" ({words.interval_of_100(ends)})", class_="whole") if ends else None,
                class_="line-of",
            )
            for text, ends in found
        ),
    )
