"""The HTML page of a partner search: the answer, the matrix, what the choice would bring, and every ranking."""

from __future__ import annotations

from pathlib import Path

from confrere.partners.ranking import PartnerScore, Ranking
from confrere.partners.search import PartnerSearch
from confrere.partners.table import approaches_lead, approaches_table, cost_text, legend, matrix_table
from confrere.report import words
from confrere.report.page import charts, page
from confrere.report.page.axes import Scale, around
from confrere.report.page.markup import Child, Markup, section, table, tag


def write_partners(found: PartnerSearch, path: Path) -> Path:
    """Write the page of a partner search."""
    title = f"Whom should {found.site} learn from?"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(title, _body(title, found)), encoding="utf-8")
    return path


def _body(title: str, found: PartnerSearch) -> list[Child]:
    kicker = f" · partners for {found.site} · seed {found.study.seed}"
    return [
        tag(
            "header",
            tag("p", tag("b", "Confrère"), kicker, class_="kicker"),
            tag("h1", title),
            tag("p", tag("strong", found.answer), " ", found.reason, class_="answer"),
            tag("p", cost_text(found.privacy)) if found.privacy else None,
            *(tag("p", note) for note in found.notes),
        ),
        _matrix(found),
        _approaches(found) if found.approaches else None,
        *(_ranking(ranking) for ranking in found.rankings),
    ]


def _matrix(found: PartnerSearch) -> Markup:
    head, rows = matrix_table(found)
    named: list[list[Child]] = [[_name(name), *cells] for name, *cells in rows]
    return section("All sites by all methods", table([*head], named), lead=legend(found))


def _approaches(found: PartnerSearch) -> Markup:
    head, rows = approaches_table(found)
    named: list[list[Child]] = [[_name(name), *cells] for name, *cells, _ in rows]
    notes = "; ".join(f"{name}: {note}" for name, *_, note in rows if note)
    lead = approaches_lead(found)
    return section("What it would bring", table([*head[:-1]], named), tag("p", f"{notes}."), lead=lead)


def _ranking(ranking: Ranking) -> Markup:
    mark = "simulation only" if ranking.simulation_only else "released with noise"
    scale = around([end for s in ranking.scores for end in _ends(s)], zero=True)
    rows: list[list[Child]] = [
        [_name(s.peer), tag("span", "✓ " if s.chosen else "", s.sentence), _mark(s, scale)]
        for s in ranking.scores
    ]
    head: list[Child] = ["Site", "In words", charts.axis(scale, _tick)]
    return section(
        f"{ranking.title} ({mark})",
        table(head, rows, text=2),
        lead=f"Shown: {ranking.measures}. Bar: {words.CORRECTED_INTERVAL}, for the number of sites; ± in words is one"
        f" standard error. A peer sends {ranking.sends}.",
    )


def _name(site: str) -> Child:
    """A short name is not broken over lines."""
    return tag("span", site, class_="whole") if len(site) <= 24 else site


def _mark(score: PartnerScore, scale: Scale) -> Markup:
    low, high = _ends(score)
    kind = {"yes": "better", "no": "worse"}.get(score.finding, "unclear")
    title = f"{score.peer}: {score.value:.4f} ({low:.4f} to {high:.4f})"
    row = charts.row([charts.Mark(kind, score.value, low, high, title)], scale, zero=True)
    return tag("div", charts.axis(scale, _tick, kind="own"), row, class_="picture")


def _tick(value: float) -> str:
    return f"{value:g}"


def _ends(score: PartnerScore) -> tuple[float, float]:
    """An unknown interval is not drawn; the sentence says so."""
    return score.interval or (score.value, score.value)
