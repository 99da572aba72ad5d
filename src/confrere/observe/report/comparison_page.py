"""The report of a comparison: is together better than alone, for whom, and at what price."""

from __future__ import annotations

from pathlib import Path

from confrere.observe import words
from confrere.observe.journal import History
from confrere.observe.report import answer, course, exchange, provenance, sites
from confrere.observe.report.markup import Child
from confrere.observe.results import Comparison, Run, read_run, runs_of


def comparison_page(comparison: Comparison, folder: Path) -> tuple[str, list[Child]]:
    """Title and body."""
    lines = {"alone": comparison.alone, "together": comparison.together, "pooled": comparison.pooled}
    runs: dict[str, list[Run]] = {
        s.name: [read_run(p) for p in runs_of(folder, s.name) if (p / "journal.jsonl").exists()]
        for s in comparison.strategies.values()
    }
    histories = {
        kind: [r.history for r in runs[s.name]] for kind, s in lines.items() if s is not None and runs[s.name]
    }
    first: Run | None = next(iter(runs[comparison.together.name]), None) if comparison.together else None
    history: History | None = first.history if first else None
    what = f"seed {first.facts['seed']}" if first and "seed" in first.facts else "the first seed"
    if comparison.together:
        what = f"{words.strategy(comparison.together.name)}, {what}"
    legend = [
        (kind, words.strategy(s.name)) for kind, s in lines.items() if s is not None and kind in histories
    ]
    every = [r for rows in runs.values() for r in rows]
    facts = [comparison.facts, *(r.facts for r in every)] if comparison.facts else [r.facts for r in every]
    named = comparison.sites
    body: list[Child] = [
        answer.answer(comparison, history),
        sites.site_by_site(comparison),
        sites.ways_compared(comparison),
        sites.fairness(comparison),
        sites.gap(comparison),
        course.learning_curves(histories, named, comparison.headline, legend) if histories else None,
        exchange.who_sent_what(history, named, what),
        course.privacy_over_rounds(history, named, what),
        exchange.who_was_missing(history, named, what),
        sites.all_sites(comparison),
        provenance.notes(comparison.notes, [r.history for r in every]),
        provenance.reproduce(facts, comparison.seeds),
        provenance.how_to_read(comparison.metrics, len(comparison.seeds)),
    ]
    return comparison.title or comparison.question or "A comparison", body
