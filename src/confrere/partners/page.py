"""The HTML page of a partner search: every ranking with its errors, and what the choice would bring."""

from __future__ import annotations

import math
from pathlib import Path

from confrere.core.metrics import in_order
from confrere.partners.approaches import ApproachResult
from confrere.partners.ranking import PartnerScore, Ranking
from confrere.partners.search import PartnerSearch
from confrere.partners.table import cost_text
from confrere.report import words
from confrere.report.page import charts, page
from confrere.report.page.markup import Child, Markup, section, table, tag
from confrere.report.page.scale import Scale, around


def write_partners(found: PartnerSearch, path: Path) -> Path:
    """Write the page of a partner search."""
    title = f"Whom should {found.site} learn from?"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(title, _body(title, found)), encoding="utf-8")
    return path


def _body(title: str, found: PartnerSearch) -> list[Child]:
    answer = f"From {words.listing(found.chosen, 20)}. " if found.chosen else ""
    kicker = f" · partners for {found.site} · seed {found.study.seed}"
    return [
        tag(
            "header",
            tag("p", tag("b", "Confrère"), kicker, class_="kicker"),
            tag("h1", title),
            tag("p", tag("strong", answer) if answer else None, found.reason, class_="answer"),
            tag("p", cost_text(found.privacy)) if found.privacy else None,
            *(tag("p", note) for note in found.notes),
        ),
        _approaches(found.approaches, found.site) if found.approaches else None,
        *(_ranking(ranking) for ranking in found.rankings),
    ]


def _ranking(ranking: Ranking) -> Markup:
    mark = "simulation only" if ranking.simulation_only else "released with noise"
    scale = around([s.value + sign * _error(s) for s in ranking.scores for sign in (-1, 1)], zero=True)
    rows: list[list[Child]] = [
        [_name(s.peer), tag("span", "✓ " if s.chosen else "", s.sentence), _mark(s, scale)]
        for s in ranking.scores
    ]
    head: list[Child] = ["Site", "In words", charts.axis(scale, lambda v: f"{v:g}")]
    return section(
        f"{ranking.title} ({mark})",
        table(head, rows, text=2),
        lead=f"Shown: {ranking.measures}. Bars are one standard error. A peer sends {ranking.sends}.",
    )


def _name(site: str) -> Child:
    """A short name is not broken over lines."""
    return tag("span", site, class_="whole") if len(site) <= 24 else site


def _mark(score: PartnerScore, scale: Scale) -> Markup:
    value, error = score.value, _error(score)
    kind = "better" if score.chosen else "unclear"
    title = f"{score.peer}: {value:.4f} ± {error:.4f}"
    return charts.row([charts.Mark(kind, value, value - error, value + error, title)], scale, zero=True)


def _error(score: PartnerScore) -> float:
    """An unknown error is not drawn; the sentence says so."""
    return score.error if math.isfinite(score.error) else 0.0


def _approaches(approaches: tuple[ApproachResult, ...], site: str) -> Markup:
    measured = in_order(m for way in approaches for m in way.metrics)
    shown = [m for m in measured if not words.metric(m).detail]
    rows: list[list[Child]] = []
    for way in approaches:
        note = way.note + (" (simulation only)" if way.simulation_only else "")
        gain = f"{way.gain:+.3f} ± {way.error:.3f}: {way.word}" if way.word else "–"
        figures = [words.figure(m, way.metrics[m]) if m in way.metrics else "–" for m in shown]
        rows.append([way.name, note.strip(), *figures, gain])
    head: list[Child] = [
        "Way of learning", "", *(words.capital(words.metric(m).label) for m in shown), "Loss less than alone",
    ]  # fmt: skip
    return section(
        "What it would bring",
        table(head, rows, text=2),
        lead=f"On the test records of {site}, which no choice has used, {approaches[0].tested} of them; ± is one standard error. "
        "The word is about these models, corrected for the number of words.",
    )
