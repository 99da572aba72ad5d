"""The report of a comparison: is together better than alone, for whom, and at what price."""

from __future__ import annotations

from pathlib import Path

from confrere.observe import words
from confrere.observe.report import answer, course, exchange, missing, provenance, published, sites, weights
from confrere.observe.report.markup import Child
from confrere.observe.results import Comparison, read_facts, read_run, runs_of


def comparison_page(comparison: Comparison, folder: Path) -> tuple[str, list[Child]]:
    """Title and body."""
    lines = {"alone": comparison.alone, "together": comparison.together, "pooled": comparison.pooled}
    drawn = {kind: s for kind, s in lines.items() if s is not None}
    runs = {
        kind: [read_run(p) for p in runs_of(folder, s.name) if (p / "journal.jsonl").exists()]
        for kind, s in drawn.items()
    }
    histories = {kind: [r.history for r in found] for kind, found in runs.items() if found}
    legend = [(kind, words.strategy(drawn[kind].name)) for kind in histories]
    first = next(iter(runs.get("together", ())), None)
    history = first.history if first else None
    what = f"seed {first.facts['seed']}" if first and "seed" in first.facts else "the first seed"
    if comparison.together:
        what = f"{words.strategy(comparison.together.name)}, {what}"
    stated = [read_facts(p) for name in comparison.strategies for p in runs_of(folder, name)]
    facts = [f for f in (comparison.facts, *stated) if f]
    named = comparison.sites
    body: list[Child] = [
        answer.answer(comparison, history),
        published.published_section(comparison.reported) if comparison.reported else None,
        sites.site_by_site(comparison),
        sites.ways_compared(comparison),
        sites.fairness(comparison),
        sites.gap(comparison),
        sites.on_common(comparison),
        missing.missing_in_comparison(comparison),
        course.learning_curves(histories, named, comparison.headline, legend) if histories else None,
        weights.who_counted(history, named, what),
        exchange.who_sent_what(history, named, what),
        course.privacy_over_rounds(history, named, what),
        exchange.who_was_missing(history, named, what),
        sites.all_sites(comparison),
        provenance.notes(comparison.notes, [h for found in histories.values() for h in found]),
        provenance.reproduce(facts, comparison.seeds),
        provenance.how_to_read(comparison.metrics, len(comparison.seeds)),
    ]
    return comparison.title or comparison.question or "A comparison", body
