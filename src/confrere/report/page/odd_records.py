"""Report section and answer: how the records of each site differ from those of the other sites.

These are the numbers that `confrere datasets show` draws. The page for one site has its own numbers only, because a distance
from the other sites would disclose theirs; of a public data set it has the distances too.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence

from confrere.core.results import SiteRecords, SiteResult
from confrere.report import words
from confrere.report.history import History
from confrere.report.page import charts
from confrere.report.page.answers import Answer, sentences
from confrere.report.page.axes import Scale
from confrere.report.page.markup import Child, Markup, breakable, section, table, tag
from confrere.report.page.sections import Page, report_section
from confrere.report.page.site_table import MANY

QUESTION = "Is any site's data odd?"
FAR = 0.5
"""A column's mean is odd from this many standard deviations on …"""
SHARE = 0.1
"""… the share of a class or of missing values from this difference on …"""
CHANCE = 0.05
"""… and only beyond what any site reaches in any column by chance, in this share of data sets (Bonferroni's correction)."""
LISTED = 3
"""Sites of which the first screen says what is odd."""
COLUMNS = 6
"""Columns in the picture."""
_NOTHING_ODD = (
    f"No column's mean lies {FAR:g} standard deviations from that of all records, and neither the share of a class "
    f"nor that of missing values is {100 * SHARE:.0f} points from the median site, beyond chance."
)


def odd_records(records: Mapping[str, SiteRecords]) -> Answer:
    """Which sites stand out, and in what."""
    if len(records) < 2:
        return Answer(
            QUESTION,
            "Not known",
            ("These results hold no profile of the records.",),
            commands=(("A profile of each site's records", "confrere compare STUDY.toml"),),
        )
    errors = standard_errors(records)
    odd = {s: facts for s, own in records.items() if (facts := _odd(own, records, errors))}
    stated = [
        tag("span", tag("b", f"«{s}»"), f": {facts[0]}.", class_="line-of")
        for s, facts in list(odd.items())[:LISTED]
    ]
    more = [f"«{s}» also: {words.listing(facts[1:], 3)}." for s, facts in odd.items() if len(facts) > 1]
    if len(odd) > LISTED:
        stated.append(tag("span", f"And {len(odd) - LISTED} more.", class_="line-of"))
    if not odd:
        return Answer(QUESTION, "No site stands out", (_NOTHING_ODD, " ", _link()))
    names = (
        words.listing([f"«{s}»" for s in odd], 3)
        if len(odd) <= 3
        else f"{len(odd)} of {len(records)} sites stand out"
    )
    short = f"{names} stand{'s' if len(odd) == 1 else ''} out" if len(odd) <= 3 else names
    return Answer(QUESTION, words.capital(short), (*stated, _link()), tuple(more[:LISTED]))


def own_records(site: SiteResult[object], records: Mapping[str, SiteRecords], question: str) -> Answer:
    """For one site: what its own records show. They are compared with those of others if `records` has these too."""
    facts, own = [], records.get(site.name)
    if own is not None and len(records) > 1:
        odd = _odd(own, records, standard_errors(records))
        short = "Yes, in part" if odd else "No: nothing stands out"
        seen = "The data set is public, so this page may compare your records with those of the other sites."
        missing = f"They lack {words.lacks(site.missing_columns)}." if site.missing_columns else None
        stated = f"{words.capital(words.listing(odd, 3))}." if odd else _NOTHING_ODD
        return Answer(
            question, short, (sentences(stated, missing, seen), " ", _link("Your records in a picture"))
        )
    if own is not None:
        facts.append(f"{words.count(own.records, 'record')}: {labels_in_words(own.labels)}.")
        worst = sorted(own.missing, key=lambda c: -own.missing[c])[:3]
        if worst:
            facts.append(
                f"Most often missing: {words.listing([f'{c} ({100 * own.missing[c]:.0f} %)' for c in worst])}."
            )
    elif site.in_patients is not None:
        facts.append(f"{100 * site.in_patients.ill:.0f} % of your test patients have the condition.")
    if site.missing_columns:
        facts.append(f"They lack {words.lacks(site.missing_columns)}.")
    facts.append("The records of other sites are private to them, so this page cannot tell how yours differ.")
    short = "Your own records only" if len(facts) > 1 else "Not known"
    link = (" ", _link("Your records in a picture")) if own is not None else ()
    what = (
        "How the site's profile compares with others, with noise where the study sets privacy.selection_share"
    )
    command = f"confrere partners STUDY.toml --site {shlex.quote(site.name)} --by profiles"
    return Answer(question, short, (sentences(*facts), *link), commands=((what, command),))


def of_a_run(sites: Sequence[SiteResult[object]], history: History) -> Answer:
    """What the journal of a single run knows of records: the most frequent class, and columns that sites lack."""
    usual = {s: v for (s, split), v in history.majority.items() if split == "test"}
    facts = []
    if len(usual) > 1:
        low, high = min(usual, key=lambda s: usual[s]), max(usual, key=lambda s: usual[s])
        facts.append(
            f"The class that is most frequent in a site's training records makes up {100 * usual[low]:.0f} % ({low}) to "
            f"{100 * usual[high]:.0f} % ({high}) of its test records."
        )
    lacking = [f"{s.name} lacks {words.lacks(s.missing_columns)}" for s in sites if s.missing_columns]
    facts += [f"{words.listing(lacking, 3)}."] if lacking else []
    facts.append("A single run holds no profile of the records; a comparison does.")
    return Answer(QUESTION, "Known in part" if len(facts) > 1 else "Not known", (sentences(*facts),))


def labels_in_words(labels: Mapping[str, float]) -> str:
    """«25 % «abnormal», 75 % «well»», the rarest last; a number by its mean and spread."""
    if set(labels) == {"mean", "spread"}:
        return f"mean {labels['mean']:.3g}, standard deviation {labels['spread']:.3g}"
    ranked = sorted(labels, key=lambda c: -labels[c])
    return words.listing([f"{100 * labels[c]:.0f} % «{c}»" for c in ranked], 5) or "no labels"


def standard_errors(records: Mapping[str, SiteRecords]) -> float:
    """Beyond how many standard errors a difference is not chance, at any site and column, labels and gaps included."""
    columns = max(max(own.columns, len(own.apart)) for own in records.values())
    return statistics.NormalDist().inv_cdf(1 - CHANCE / 2 / (len(records) * (columns + 2)))


def _odd(own: SiteRecords, every: Mapping[str, SiteRecords], errors: float) -> list[str]:
    """What is odd about a site: the column whose mean lies furthest off, its labels, and its gaps."""
    facts: list[str] = []
    measured = [
        c for c in own.apart if own.missing.get(c) != 1
    ]  # the mean of a missing column is only imputed
    furthest = max(measured, key=lambda c: abs(own.apart[c]), default=None)
    if furthest is not None:
        distance = own.apart[furthest]
        if abs(distance) >= FAR and abs(distance) * math.sqrt(own.records) >= errors:
            side = "above" if distance > 0 else "below"
            if furthest in own.shares:
                mine, theirs = (_percent(share) for share in own.shares[furthest])
                facts.append(f"«{furthest}» in {mine} of the records (other sites: {theirs})")
            else:
                facts.append(
                    f"mean of «{furthest}» {abs(distance):.1f} standard deviations {side} that of all records"
                )
    facts += _labels(own, every, errors)
    gaps = {site: _gap_share(r, every) for site, r in every.items()}
    here, usual = _gap_share(own, every), statistics.median(gaps.values())
    if here - usual >= max(SHARE, errors * _error(usual, own.records)):  # as if gaps came in whole records
        facts.append(
            f"{_percent(here)} of values missing in columns with gaps (median site: {_percent(usual)})"
        )
    return facts


def _labels(own: SiteRecords, every: Mapping[str, SiteRecords], errors: float) -> list[str]:
    """The class whose share differs most from that of the median site, if it is odd."""
    if set(own.labels) == {"mean", "spread"} or not own.labels:
        return []
    names = dict.fromkeys(n for r in every.values() for n in r.labels)
    usual = {n: statistics.median(r.labels.get(n, 0.0) for r in every.values()) for n in names}
    apart = {n: abs(own.labels.get(n, 0.0) - share) for n, share in usual.items()}
    name = max(reversed(list(apart)), key=lambda n: round(apart[n], 9))  # of two classes the second
    if apart[name] < max(SHARE, errors * _error(usual[name], own.records)):
        return []
    share = own.labels.get(name, 0.0)
    return [f"{_percent(share)} of the records «{name}» (median site: {_percent(usual[name])})"]


def _gap_share(own: SiteRecords, every: Mapping[str, SiteRecords]) -> float:
    """The share of missing values over all columns that have gaps anywhere."""
    columns = {c for r in every.values() for c in r.missing}
    return sum(own.missing.get(c, 0.0) for c in columns) / len(columns) if columns else 0.0


def _error(share: float, records: int) -> float:
    """The standard error of a share."""
    return math.sqrt(share * (1 - share) / max(records, 1))


def _percent(share: float) -> str:
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _link(text: str = "How the records differ") -> Markup:
    return tag("a", text, href="#records")


def own_picture(site: str, records: Mapping[str, SiteRecords]) -> Markup | None:
    """For one site: its classes, its gaps, and, if `records` has the other sites too, its columns beside theirs."""
    own = records.get(site)
    if own is None:
        return None
    rows: list[Markup] = []
    whole = Scale(0, 1)
    if "spread" not in own.labels:
        for name, share in list(own.labels.items())[-1:] if len(own.labels) == 2 else own.labels.items():
            low, high = _wilson(share, own.records)
            mark = charts.Mark("together", share, low, high, f"«{name}»: {_percent(share)} of the records")
            rows.append(_strip(f"«{name}»", [mark], whole, _tick, _percent(share)))
    for column in sorted(own.missing, key=lambda c: -own.missing[c])[:COLUMNS]:
        share = own.missing[column]
        mark = charts.Mark("alone", share, None, None, f"{column}: {_percent(share)} missing")
        rows.append(_strip(f"{column}, missing", [mark], whole, _tick, _percent(share)))
    parts = (
        [_strips(["Class or column", charts.axis(whole, _tick), "Share of records"], rows)] if rows else []
    )
    if len(records) > 1 and own.apart:
        parts += _beside_others(own)
    count = words.count(own.records, "record")
    lead = f"{count}, those for training, validation and test together. Bars are 95 % intervals."
    return section("Your records", *parts, lead=lead, id_="records") if parts else None


def _beside_others(own: SiteRecords) -> list[Markup]:
    """The columns in which sites differ most: the share of the site beside that of the others, or the distance of its mean."""
    columns = [c for c in own.apart if own.missing.get(c) != 1][:COLUMNS]
    furthest = max((abs(own.apart[c]) for c in columns), default=1.0)
    scale = Scale(-1.1 * max(furthest, 2 * FAR), 1.1 * max(furthest, 2 * FAR))
    rows = []
    for column in columns:
        distance = own.apart[column]
        text = f"{distance:+.1f}".replace("-", "−") if abs(distance) >= 0.05 else "0"
        if column in own.shares:
            mine, theirs = (_percent(share) for share in own.shares[column])
            text = f"{mine} (other sites: {theirs})"
        kind = "together" if abs(distance) >= FAR else "alone"
        mark = charts.Mark(kind, distance, None, None, f"{column}: {distance:+.1f} standard deviations")
        rows.append(_strip(column, [mark], scale, _deviations, text, zero=True))
    head = [
        tag("span", "Column"),
        tag(
            "span",
            "Your mean, in standard deviations from that of all records",
            charts.axis(scale, _deviations),
        ),
        tag("span", "Distance, or your share"),
    ]
    explained = (
        f"The {len(columns)} columns in which sites differ most; beyond {FAR:g} standard deviations the dot is blue. "
        "This data set is public: of real sites, such a picture needs profiles that are released with noise."
    )
    return [_strips(head, rows), tag("p", explained, class_="under")]


def _strips(head: Sequence[Child], rows: Sequence[Markup]) -> Markup:
    kinds = (None, "picture", "figure")
    cells = (tag("th", text, scope="col", class_=kind) for text, kind in zip(head, kinds, strict=True))
    return tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *rows), class_="wide strips")


def _strip(
    name: str,
    marks: Sequence[charts.Mark],
    scale: Scale,
    tick: charts.Format,
    text: str,
    *,
    zero: bool = False,
) -> Markup:
    return tag(
        "tr",
        tag("th", breakable(name), scope="row"),
        tag(
            "td", charts.axis(scale, tick, kind="own"), charts.row(marks, scale, zero=zero), class_="picture"
        ),
        tag("td", text, class_="figure verdict"),
    )


def _deviations(value: float) -> str:
    return f"{value:+g}".replace("-", "−") if value else "0"


def picture(records: Mapping[str, SiteRecords], sites: Sequence[str]) -> Markup | None:
    """Site by site: how many records, their labels, their gaps, and the columns in which sites differ most."""
    shown = [s for s in sites if s in records]
    if len(shown) < 2:
        return None
    more = len(shown) - MANY
    shown = shown[:MANY]
    columns = list(records[shown[0]].apart)[:COLUMNS]
    two = all(len(records[s].labels) == 2 and "spread" not in records[s].labels for s in shown)
    gaps = any(records[s].missing for s in shown)
    positive = list(records[shown[0]].labels)[-1] if two else ""
    ends = (
        {s: _wilson(records[s].labels.get(positive, 0.0), records[s].records) for s in shown} if two else {}
    )
    scale = Scale(0, min(1.0, 1.1 * max((high for _, high in ends.values()), default=1.0)))
    head: list[Child] = ["Site", "Records", "Labels"]
    if two:
        head[-1] = tag("span", f"Share of «{positive}», 95 % interval", charts.axis(scale, _tick))
    rows: list[list[Child]] = []
    for s in shown:
        own = records[s]
        labels: Child = labels_in_words(own.labels)
        if two:
            share, (low, high) = own.labels.get(positive, 0.0), ends[s]
            mark = charts.Mark("together", share, low, high, f"{s}: {_percent(share)} «{positive}»")
            labels = tag(
                "div", charts.axis(scale, _tick, kind="own"), charts.row([mark], scale), class_="picture"
            )
        rows.append([s, f"{own.records:,}".replace(",", "\u202f"), labels, *([_gaps(own)] if gaps else [])])
    if gaps:
        head.append("Missing values")
    lead = "From the records of all sites, which this run holds: private to each site, unless the data set is public."
    return section(
        "How the records differ",
        table(head, rows, text=len(head)),
        _distances(records, shown, columns) if columns else None,
        tag("p", f"{words.count(more, 'more site')} not shown.", class_="under") if more > 0 else None,
        lead=lead,
        id_="records",
    )


def _gaps(own: SiteRecords) -> str:
    worst = sorted(own.missing, key=lambda c: -own.missing[c])
    listed = [f"{c} ({_percent(own.missing[c])})" for c in worst if own.missing[c] >= 0.005]
    return words.listing(listed, 4) or "none"


def _distances(records: Mapping[str, SiteRecords], shown: Sequence[str], columns: Sequence[str]) -> Markup:
    """Sites by columns; a cell is filled by how far the site's mean lies from that of all records."""
    rows: list[list[Child]] = [[s, *(_cell(records[s], c) for c in columns)] for s in shown]
    shares = any(c in records[shown[0]].shares for c in columns)
    explained = (
        f"The {len(columns)} columns that differ most. ▲ and ▼ mark {FAR:g} standard deviations or more."
        + (" Columns with two values show the share of the site's records instead." if shares else "")
    )
    return tag(
        "div",
        tag("h3", "How far a site's mean lies from that of all records, in standard deviations"),
        tag("p", explained, class_="under"),
        table(["Site", *map(breakable, columns)], rows, kind="heat"),
    )


def _cell(own: SiteRecords, column: str) -> Markup:
    distance = own.apart.get(column, 0.0)
    sign = "▲ " if distance >= FAR else "▼ " if distance <= -FAR else ""
    kind = "plain" if not sign else "above" if distance > 0 else "below"
    text = f"{distance:+.1f}".replace("-", "−") if abs(distance) >= 0.05 else "0"
    if own.missing.get(column) == 1:
        return tag("span", "–", class_="cell plain")
    if column in own.shares:
        share = own.shares[column][0]
        text = "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
    return tag("span", f"{sign}{text}", class_=f"cell {kind}")


def _tick(value: float) -> str:
    return f"{100 * value:.0f} %"


def _wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z, n = 1.96, max(count, 1)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


@report_section("records", order=12)
def _records(page: Page) -> Markup | None:
    return picture(page.comparison.records, page.sites) if page.comparison is not None else None
