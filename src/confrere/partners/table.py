"""Possible partners in the terminal: a table for each method, what the choice would bring, and the choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from confrere.core.metrics import in_order
from confrere.report import words

Renderable = Table | Text


def partners_tables(found: Mapping[str, Any]) -> list[Renderable]:
    """From what `confrere partners --json` prints."""
    out: list[Renderable] = []
    for method in found["methods"].values():
        out += [_ranking(method), Text("")]
    if found["test"]:
        out += [_worth(found["test"], found["site"]), Text("")]
    if found["privacy"]:
        out.append(Text(spent_on_choosing(found["privacy"])))
    out += [Text(f"Note: {note}") for note in found["notes"]]
    out.append(Text(found["reason"], style="bold"))
    if found["chosen"]:
        out.append(Text(f"Choice for {found['site']}: {words.listing(found['chosen'], 20)}", style="bold"))
    return out


def _ranking(method: Mapping[str, Any]) -> Table:
    mark = " (simulation only)" if method["simulation_only"] else f" (a peer sends {method['sends']})"
    table = Table(
        title=f"{method['title']}{mark}: {method['measures']}",
        title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0),
    )  # fmt: skip
    table.add_column("")
    table.add_column("Site")
    table.add_column("Value ± error", justify="right", no_wrap=True)
    table.add_column("In words", overflow="fold")
    for row in method["ranking"]:
        mark = "✓" if row["chosen"] else ""
        table.add_row(mark, row["site"], _value(row["value"], row["standard_error"]), row["sentence"])
    return table


def _worth(test: Mapping[str, Any], site: str) -> Table:
    table = Table(
        title=f"On the test records of {site}, which no choice has looked at",
        title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0),
    )  # fmt: skip
    measured = in_order(m for way in test.values() for m in way["metrics"])
    shown = [m for m in measured if not words.metric(m).detail]
    table.add_column("Way of learning")
    for metric in shown:
        table.add_column(words.capital(words.metric(metric).label), justify="right")
    table.add_column("Loss less than alone", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for name, way in test.items():
        figures = [words.figure(m, way["metrics"][m]) if m in way["metrics"] else "–" for m in shown]
        gain = "–" if name == "alone" else _value(way["loss_less_than_alone"], way["standard_error"])
        note = way["note"] + (" (simulation only)" if way["simulation_only"] else "")
        table.add_row(name, *figures, gain, note.strip())
    return table


def _value(value: float, error: float | None) -> str:
    if error is None or not math.isfinite(error):
        return f"{value:+.3f} ± ?"
    return f"{value:+.3f} ± {error:.3f}"


def spent_on_choosing(privacy: Mapping[str, Any]) -> str:
    """What choosing has cost, in words."""
    most = max(privacy["spent"].values(), default=0.0)
    proven = "" if privacy["proven"] else ", as published, not proven"
    proven += ", above a site's ceiling" if privacy.get("above_ceiling") else ""
    return (
        f"Privacy spent on choosing, at most at any site: {words.epsilon(most)} of {words.epsilon(privacy['epsilon'])}"
        f" (ε, δ = {privacy['delta']:g}, per {privacy['unit']}, accountant {privacy['accountant']}{proven}), which is"
        f" {100 * privacy['share']:g} % of the study's budget; training has the rest."
    )
