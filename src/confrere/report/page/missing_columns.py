"""Report section: sites that lack columns, and whether they do worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confrere.core.results import ComparisonResult, Group, Measured, SiteResult
from confrere.report import words
from confrere.report.gains import site_gain, stated_gain, tested_at
from confrere.report.page.markup import Child, Markup, section, table, tag
from confrere.report.page.sections import Page, report_section
from confrere.report.page.site_table import word
from confrere.report.results_folder import RunRecord

HANDLED = "«Imputed»: every value counts as missing there, and is marked so for the model. «Left out»: no site uses the column."
CAUTION = "The two kinds of sites have different patients too, so a difference between them need not come from the columns."


def missing_in_run(run: RunRecord, sites: Sequence[str]) -> Markup | None:
    """Which columns each site of a run lacks, beside what it reached."""
    lacking = [run.sites[s] for s in sites if s in run.sites and run.sites[s].missing_columns]
    if not lacking:
        return None
    metrics = words.primary_first(dict.fromkeys(m for r in lacking for m in r.metrics), run.primary)
    head = ["Site", "It lacks", *(words.capital(words.metric(m).label) for m in metrics)]
    rows: list[list[Child]] = [
        [_named(r), words.lacks(r.missing_columns), *(words.measured(m, r.metrics.get(m)) for m in metrics)]
        for r in lacking
    ]
    for kind, group in run.result.by_columns.items():
        figures = (words.measured(m, group.mean.get(m)) for m in metrics)
        rows.append([tag("b", f"mean over {words.of_kind(kind, len(group.sites))}"), "", *figures])
    return section(
        "Missing columns",
        table(head, rows, text=2),
        lead=f"{HANDLED} {CAUTION}" if run.result.by_columns else HANDLED,
    )


def missing_in_comparison(comparison: ComparisonResult) -> Markup | None:
    """The same for a comparison, and for each way to learn the mean over sites of either kind."""
    alone, together, name = comparison.alone, comparison.together, comparison.headline
    if alone is None or name is None:
        return None
    lacking = [alone.sites[s] for s in comparison.sites if alone.sites[s].missing_columns]
    if not lacking:
        return None
    label = words.metric(name).label
    head = ["Site", "It lacks", f"Alone, {label}", "Together", "In a word"]
    rows: list[list[Child]] = []
    for site in lacking:
        other = together.sites.get(site.name, SiteResult(site.name)) if together else SiteResult(site.name)
        judged = site_gain(comparison, site.name, name)
        figures = (words.measured(name, r.metrics.get(name)) for r in (site, other))
        rows.append(
            [
                _named(site),
                words.lacks(site.missing_columns),
                *figures,
                word(judged) if judged else "–",
            ]
        )
    return section(
        "Missing columns",
        table(head, rows, text=2),
        _means(comparison, name),
        lead=f"{HANDLED} {CAUTION}" if _both(comparison) else HANDLED,
    )


def _named(site: SiteResult[object]) -> Markup:
    """The site, and the patients that its figures rest on."""
    counts = words.tested(site.tested)
    return tag("span", site.name, tag("small", counts) if counts else None)


def _both(comparison: ComparisonResult) -> Mapping[str, Group[Measured]]:
    return comparison.alone.by_columns if comparison.alone else {}


def _means(comparison: ComparisonResult, name: str) -> Markup | None:
    kinds = _both(comparison)
    if not kinds:
        return None
    head = ["Way to learn"]
    for kind, group in kinds.items():
        counts = words.tested(tested_at(comparison, group.sites))
        kind_of = words.capital(words.of_kind(kind, len(group.sites)))
        head += [f"{kind_of} ({counts})" if counts else kind_of, "Against alone"]
    rows: list[list[Child]] = []
    for strategy in comparison.strategies.values():
        row: list[Child] = [strategy.label]
        for kind in kinds:
            own = strategy.by_columns.get(kind)
            row.append(words.measured(name, own.mean.get(name)) if own else "–")
            row.append(_against(comparison, strategy.name, own, name))
        rows.append(row)
    caption = f"{words.capital(words.metric(name).label)}, mean over sites"
    return table(head, rows, caption=caption)


def _against(comparison: ComparisonResult, strategy: str, group: Group[Measured] | None, name: str) -> Child:
    if strategy == comparison.reference:
        return "the reference"
    stated = group.gains.get(name) if group else None
    judged = stated_gain(stated)
    if judged is None:
        return "–"
    featured = comparison.together is not None and strategy == comparison.together.name
    return tag(
        "span",
        word(judged) if featured else None,
        tag("br") if featured else None,
        words.gained(name, judged),
    )


@report_section("missing columns", order=70)
def _missing(page: Page) -> Markup | None:
    if page.comparison is not None:
        return missing_in_comparison(page.comparison)
    return missing_in_run(page.run, page.sites) if page.run is not None else None
