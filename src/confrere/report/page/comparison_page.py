"""The report of a comparison: is together better than alone, for whom, and at what price."""

from __future__ import annotations

from pathlib import Path

from confrere.core.results import ComparisonResult
from confrere.report.page.markup import Child
from confrere.report.page.sections import Page, body
from confrere.report.page.who_helped import partner_searches
from confrere.report.results_folder import read_facts, read_run, runs_of


def comparison_page(comparison: ComparisonResult, folder: Path) -> tuple[str, list[Child]]:
    """Title and body."""
    lines = {"alone": comparison.alone, "together": comparison.together, "pooled": comparison.pooled}
    drawn = {kind: s for kind, s in lines.items() if s is not None}
    runs = {
        kind: [read_run(p) for p in runs_of(folder, s.name) if (p / "journal.jsonl").exists()]
        for kind, s in drawn.items()
    }
    histories = {kind: [r.history for r in found] for kind, found in runs.items() if found}
    legend = [(kind, drawn[kind].label) for kind in histories]
    first = next(iter(runs.get("together", ())), None)
    history = first.history if first else None
    what = f"seed {first.facts['seed']}" if first and "seed" in first.facts else "the first seed"
    if comparison.together:
        what = f"{comparison.together.label}, {what}"
    stated = [read_facts(p) for name in comparison.strategies for p in runs_of(folder, name)]
    facts = [f for f in (comparison.facts, *stated) if f]
    page = Page(
        run=None,
        comparison=comparison,
        sites=comparison.sites,
        history=history,
        shown=what,
        histories=histories,
        legend=legend,
        metrics=comparison.metrics,
        headline=comparison.headline,
        notes=comparison.notes,
        facts=facts,
        seeds=comparison.seeds,
        partners=partner_searches(folder, comparison),
    )
    return comparison.title or comparison.question or "A comparison", body(page)
