"""A partner search in the terminal: a table for each method, what the choice would bring, and the choice."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from confrere.core.metrics import in_order
from confrere.partners.approaches import ApproachResult
from confrere.partners.ranking import Ranking
from confrere.partners.search import PartnerSearch, SelectionCost
from confrere.report import words

Renderable = Table | Text


def partners_tables(found: PartnerSearch) -> list[Renderable]:
    """Everything to print, from top to bottom."""
    out: list[Renderable] = []
    for ranking in found.rankings:
        out += [_ranking(ranking), Text("")]
    if found.approaches:
        out += [_approaches(found.approaches, found.site), Text("")]
    if found.privacy:
        out.append(Text(cost_text(found.privacy)))
    out += [Text(f"Note: {note}") for note in found.notes]
    out.append(Text(found.reason, style="bold"))
    if found.chosen:
        out.append(Text(f"Choice for {found.site}: {words.listing(found.chosen, 20)}", style="bold"))
    return out


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))


def _ranking(ranking: Ranking) -> Table:
    mark = "simulation only" if ranking.simulation_only else f"a peer sends {ranking.sends}"
    table = _table(f"{ranking.title} ({mark}): {ranking.measures}")
    table.add_column("")
    table.add_column("Site")
    table.add_column("Value ± error", justify="right", no_wrap=True)
    table.add_column("In words", overflow="fold")
    for score in ranking.scores:
        table.add_row(
            "✓" if score.chosen else "", score.peer, _value(score.value, score.error), score.sentence
        )
    return table


def _approaches(approaches: tuple[ApproachResult, ...], site: str) -> Table:
    tested = words.count(approaches[0].tested, "test record") if approaches else "no test records"
    table = _table(f"On {tested} of {site}, which no choice has used; the word is about these models")
    measured = in_order(m for way in approaches for m in way.metrics)
    shown = [m for m in measured if not words.metric(m).detail]
    table.add_column("Way of learning")
    for metric in shown:
        table.add_column(words.capital(words.metric(metric).label), justify="right")
    table.add_column("Loss less than alone", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for way in approaches:
        figures = [words.figure(m, way.metrics[m]) if m in way.metrics else "–" for m in shown]
        gain = "–" if way.name == "alone" else _value(way.gain, way.error)
        note = way.note + (" (simulation only)" if way.simulation_only else "")
        said = f"{way.word}; {note.strip()}" if way.word else note.strip()
        table.add_row(way.name, *figures, gain, said)
    return table


def _value(value: float, error: float) -> str:
    return f"{value:+.3f} ± {error:.3f}" if math.isfinite(error) else f"{value:+.3f} ± ?"


def cost_text(cost: SelectionCost) -> str:
    """What choosing partners cost, in words."""
    most = max(cost.spent.values(), default=0.0)
    doubt = "" if cost.proven else ", as published, not proven"
    doubt += ", above a site's ceiling" if cost.above_ceiling else ""
    return (
        f"Privacy spent on choosing, at most at any site: {words.epsilon(most)} of {words.epsilon(cost.epsilon)}"
        f" (ε, δ = {cost.delta:g}, per {cost.unit}, accountant {cost.accountant}{doubt}), which is"
        f" {100 * cost.share:g} % of the study's budget; training has the rest."
    )
