"""Possible partners on a page: for each method where every site stands, how sure that is, and what it means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confrere.core.metrics import in_order
from confrere.partners.table import spent_on_choosing
from confrere.report import words
from confrere.report.page import charts, page
from confrere.report.page.markup import Child, Markup, section, table, tag
from confrere.report.page.scale import Scale, around


def write_partners(found: Mapping[str, Any], path: Path) -> Path:
    """Write the page of what `confrere partners --json` prints."""
    title, body = partners_page(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(title, body), encoding="utf-8")
    return path


def partners_page(found: Mapping[str, Any]) -> tuple[str, list[Child]]:
    """Title and body."""
    site, chosen = found["site"], found["chosen"]
    title = f"Whom should {site} learn from?"
    answer = f"From {words.listing(chosen, 20)}. " if chosen else ""
    privacy = spent_on_choosing(found["privacy"]) if found["privacy"] else None
    body: list[Child] = [
        tag(
            "header",
            tag("p", tag("b", "Confrère"), f" · partners for {site} · seed {found['seed']}", class_="kicker"),
            tag("h1", title),
            tag("p", tag("strong", answer) if answer else None, found["reason"], class_="answer"),
            tag("p", privacy) if privacy else None,
            *(tag("p", note) for note in found["notes"]),
        ),
        _worth(found["test"], site) if found["test"] else None,
        *(_method(method) for method in found["methods"].values()),
    ]
    return title, body


def _method(method: Mapping[str, Any]) -> Markup:
    rows, mark = method["ranking"], "simulation only" if method["simulation_only"] else "released with noise"
    ends = [v + s * e for r in rows for v, e in [(r["value"], _error(r))] for s in (-1, 1)]
    scale = around(ends, zero=True)
    made: list[list[Child]] = [
        [_name(r["site"]), tag("span", "✓ " if r["chosen"] else "", r["sentence"]), _mark(r, scale)]
        for r in rows
    ]
    head: list[Child] = ["Site", "In words", charts.axis(scale, lambda v: f"{v:g}")]
    return section(
        f"{method['title']} ({mark})",
        table(head, made, text=2),
        lead=f"Shown: {method['measures']}. Bars are one standard error. A peer sends {method['sends']}.",
    )


def _name(site: str) -> Child:
    """A short name stays in one piece."""
    return tag("span", site, class_="whole") if len(site) <= 24 else site


def _mark(row: Mapping[str, Any], scale: Scale) -> Markup:
    value, error = row["value"], _error(row)
    kind = "better" if row["chosen"] else "unclear"
    title = f"{row['site']}: {value:.4f} ± {error:.4f}"
    return charts.row([charts.Mark(kind, value, value - error, value + error, title)], scale, zero=True)


def _error(row: Mapping[str, Any]) -> float:
    """An unknown error is not drawn; the sentence says so."""
    error = row["standard_error"]
    return error if error is not None and math.isfinite(error) else 0.0


def _worth(test: Mapping[str, Any], site: str) -> Markup:
    measured = in_order(m for way in test.values() for m in way["metrics"])
    shown = [m for m in measured if not words.metric(m).detail]
    made: list[list[Child]] = []
    for name, way in test.items():
        note = way["note"] + (" (simulation only)" if way["simulation_only"] else "")
        gain = f"{way['loss_less_than_alone']:+.3f} ± {way['standard_error']:.3f}" if name != "alone" else "–"
        figures = [words.figure(m, way["metrics"][m]) if m in way["metrics"] else "–" for m in shown]
        made.append([name, note.strip(), *figures, gain])
    head: list[Child] = [
        "Way of learning", "", *(words.capital(words.metric(m).label) for m in shown), "Loss less than alone",
    ]  # fmt: skip
    return section(
        "What it would bring",
        table(head, made, text=2),
        lead=f"On the test records of {site}, which no choice has looked at; ± is one standard error.",
    )
