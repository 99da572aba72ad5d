"""A partner search in the terminal: the answer, the matrix of sites and methods, and what the choice would bring."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from confrere.core.metrics import in_order
from confrere.partners.approaches import ALL_SITES, ApproachResult
from confrere.partners.choice import TRIALS
from confrere.partners.ranking import Finding
from confrere.partners.search import PartnerSearch, SelectionCost
from confrere.report import words

Renderable = Table | Text

SHOWN: dict[Finding, str] = {"yes": "yes", "no": "no", "unclear": "?", "too few": "few", "noise": "noise"}
LABELS = {ALL_SITES: "with all sites"}
"""Ways of learning whose label differs from their key in JSON."""


def partners_tables(found: PartnerSearch) -> list[Renderable]:
    """Everything to print, from top to bottom."""
    out: list[Renderable] = [Text(found.answer, style="bold"), Text(found.reason), Text("")]
    head, rows = matrix_table(found)
    narrow = [column.replace(" ", "\n") for column in head]
    out += [_table(f"Should {found.site} learn from them?", narrow, rows), Text(legend(found)), Text("")]
    if found.approaches:
        head, rows = approaches_table(found)
        without_notes = [row[:-1] for row in rows]
        figures = range(2, len(head) - 1)
        out += [_table(approaches_lead(found), head[:-1], without_notes, figures), Text("")]
    if found.privacy:
        out.append(Text(cost_text(found.privacy)))
    out += [Text(f"Note: {note}") for note in found.notes]
    return out


def matrix_table(found: PartnerSearch) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the matrix: a row for each peer, a column for each method; an asterisk marks simulation only."""
    head = [f"{r.method.replace('-', ' ')}{' *' if r.simulation_only else ''}" for r in found.rankings]
    rows = [
        [f"{'✓ ' if peer in found.chosen else ''}{peer}", *(SHOWN[f] for f in by_method.values())]
        for peer, by_method in found.matrix.items()
    ]
    return ["Site", *head], rows


def legend(found: PartnerSearch) -> str:
    """How to read the matrix."""
    tried = words.listing([r.method.replace("-", " ") for r in found.rankings if r.method in TRIALS])
    marks = "✓: chosen; yes: clearly; no: clearly not; ?: not clear; few: too few patients to judge; noise: hidden by noise."
    simulated = any(r.simulation_only for r in found.rankings)
    star = " *: simulation only, needs what no site would send." if simulated else ""
    return (
        f"{marks}{star} Trials ({tried}) measure what a site does to predictions for held-out patients of {found.site};"
        " they decide. The others compare records or gradients; they only propose."
    )


def approaches_lead(found: PartnerSearch) -> str:
    """What the figures of the ways of learning rest on."""
    return (
        f"On {words.tested(found.outcome.tested)}, which no choice has used (test patients of {found.site}). All but alone"
        " pool records: simulation only. Words are about these models, corrected together."
    )


def approaches_table(found: PartnerSearch) -> tuple[list[str], list[list[str]]]:
    """Head and rows of what each way of learning brings; the second column is the verdict, the last a note."""
    metric = found.outcome.metric
    measured = in_order(m for way in found.approaches for m in way.metrics)
    shown = [m for m in measured if not words.metric(m).detail]
    label = words.metric(metric).label if metric else "gain"
    labels = [words.capital(words.metric(m).label) for m in shown]
    head = ["Way of learning", "Against alone", f"Gain in {label}", *labels, "Note"]
    rows = []
    for way in found.approaches:
        figures = [words.figure(m, way.metrics[m]) if m in way.metrics else "–" for m in shown]
        word = way.gain_over_alone.word if way.gain_over_alone else "–"
        rows.append([LABELS.get(way.name, way.name), word, _gain(metric, way), *figures, way.note])
    return head, rows


def _gain(metric: str | None, way: ApproachResult) -> str:
    gain = way.gain_over_alone
    if gain is None or metric is None:
        return "–"
    if gain.interval is None:
        return words.signed(metric, gain.mean)
    low, high = (words.signed(metric, end) for end in gain.interval)
    return f"{words.signed(metric, gain.mean)} ({low} to {high})"


def _table(title: str, head: list[str], rows: list[list[str]], figures: range = range(0)) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    for index, column in enumerate(head):
        figure = index in figures
        table.add_column(column, justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


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
