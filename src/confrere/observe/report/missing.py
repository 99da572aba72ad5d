"""Sites that lack columns, and whether they do worse for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confrere.observe import words
from confrere.observe.report.answer import word
from confrere.observe.report.markup import Child, Markup, section, table, tag
from confrere.observe.results import Comparison, Group, Run, SiteResult
from confrere.observe.verdict import gain, site_gain

HANDLED = "«Imputed»: every value counts as missing there, and the model is told so. «Left out»: no site uses the column."
CAUTION = "The two kinds of sites have different patients too, so a difference between them need not come from the columns."


def missing_in_run(run: Run, sites: Sequence[str]) -> Markup | None:
    """Which columns each site of a run lacks, beside what it reached."""
    lacking = [run.sites[s] for s in sites if s in run.sites and run.sites[s].lacks]
    if not lacking:
        return None
    metrics = tuple(dict.fromkeys(m for r in lacking for m in r.metrics))
    head = ["Site", "It lacks", *(words.capital(words.metric(m).label) for m in metrics)]
    rows: list[list[Child]] = [
        [r.name, words.lacks(r.lacks), *(words.measured(m, r.metrics.get(m)) for m in metrics)]
        for r in lacking
    ]
    for kind, group in run.by_columns.items():
        figures = (words.measured(m, group.mean.get(m)) for m in metrics)
        rows.append([tag("b", f"mean over {words.of_kind(kind, len(group.sites))}"), "", *figures])
    return section(
        "Missing columns",
        table(head, rows, text=2),
        lead=f"{HANDLED} {CAUTION}" if run.by_columns else HANDLED,
    )


def missing_in_comparison(comparison: Comparison) -> Markup | None:
    """The same for a comparison, and for each way to learn the mean over sites of either kind."""
    alone, together, name = comparison.alone, comparison.together, comparison.headline
    if alone is None or name is None:
        return None
    lacking = [alone.sites[s] for s in comparison.sites if alone.sites[s].lacks]
    if not lacking:
        return None
    label = words.metric(name).label
    head = ["Site", "It lacks", f"Alone, {label}", "Together", "In a word"]
    rows: list[list[Child]] = []
    for site in lacking:
        other = together.sites.get(site.name, SiteResult(site.name)) if together else SiteResult(site.name)
        judged = site_gain(comparison, site.name, name)
        figures = (words.measured(name, r.metrics.get(name)) for r in (site, other))
        rows.append([site.name, words.lacks(site.lacks), *figures, word(judged) if judged else "–"])
    return section(
        "Missing columns",
        table(head, rows, text=2),
        _means(comparison, name),
        lead=f"{HANDLED} {CAUTION}" if _both(comparison) else HANDLED,
    )


def _both(comparison: Comparison) -> Mapping[str, Group]:
    return comparison.alone.by_columns if comparison.alone else {}


def _means(comparison: Comparison, name: str) -> Markup | None:
    kinds = _both(comparison)
    if not kinds:
        return None
    head = ["Way to learn"]
    for kind, group in kinds.items():
        head += [words.capital(words.of_kind(kind, len(group.sites))), "Against alone"]
    rows: list[list[Child]] = []
    for strategy in comparison.strategies.values():
        row: list[Child] = [words.strategy(strategy.name)]
        for kind in kinds:
            own = strategy.by_columns.get(kind)
            row.append(words.measured(name, own.mean.get(name)) if own else "–")
            row.append(_against(comparison, strategy.name, own, name))
        rows.append(row)
    caption = f"{words.capital(words.metric(name).label)}, mean over sites"
    return table(head, rows, caption=caption)


def _against(comparison: Comparison, strategy: str, group: Group | None, name: str) -> Child:
    if strategy == comparison.reference:
        return "the yardstick"
    stated = group.gains.get(name) if group else None
    judged = gain(d for d in stated.values if d is not None) if stated else None
    return "–" if judged is None else tag("span", word(judged), f" {words.signed(name, judged.mean)}")
