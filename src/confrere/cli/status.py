"""`confrere status`: how a node stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from confrere.cli.output import console, print_json
from confrere.node.control import NotRunning, ask
from confrere.node.status import ago, resting_status
from confrere.observe import words
from confrere.observe.results import Privacy


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder (home in site.toml).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Round, peers, budget, bytes and model quality of a node. What is said of its records stays at the site.

    Example: `confrere status node`
    """
    try:
        found = ask(folder, "status")
    except NotRunning:
        found = resting_status(folder)
    if as_json:
        print_json(found)
        return
    for line in lines(found):
        console.print(line, markup=False, soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("peer", "connected", "last contact", "parcels waiting", "missing in rounds", ""):
        table.add_column(column)
    for name, peer in found["peers"].items():
        missing = spans(peer["missing_in_rounds"]) or "none"
        table.add_row(
            name, "yes" if peer["connected"] else "no", ago(peer["last_contact"]),
            str(peer["parcels_waiting"]), missing, peer["reason"],
        )  # fmt: skip
    console.print(table)


def spans(rounds: list[int]) -> str:
    """Rounds in few words.

    >>> spans([3, 4, 5, 9])
    '3–5, 9'
    """
    groups: list[list[int]] = []
    for number in rounds:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(f"{g[0]}–{g[-1]}" if len(g) > 1 else str(g[0]) for g in groups)


def lines(found: dict[str, Any]) -> list[str]:
    """The state of a node in sentences."""
    why = f": {found['reason']}" if found["reason"] else ""
    out = [
        f"{found['site']}, {found['study']['name']} (hash {found['study']['hash']}): {found['doing']}{why}",
        f"Rounds done: {found['round']} of {found['rounds']}",
        privacy_line(found["privacy"]),
    ]
    out.append(f"In parcels for peers: {words.size(found['bytes']['in_parcels'])}")
    if "sent" in found["bytes"]:
        sent, received = words.size(found["bytes"]["sent"]), words.size(found["bytes"]["received"])
        out.append(f"Sent {sent}, received {received} since the start")
    if found["rehearsal"]:
        out.append("A rehearsal with seeded noise: not private")
    for site, number in found["left"].items():
        out.append(f"{site} leaves for good before round {number}")
    quality = ", ".join(
        f"{words.metric(name).label} {words.figure(name, value)}"
        for name, value in found["quality_private"].items()
    )
    if quality:
        out.append(f"On this site's own test records (private, never sent): {quality}")
    return out


def privacy_line(spent: dict[str, Any] | None) -> str:
    """«Privacy spent: 1.8 of 3.0 (ε, δ = 1e-6 …), about 12 more rounds»."""
    if spent is None:
        return "Privacy spent: nothing was trained with noise yet"
    keys = ("epsilon", "delta", "unit", "proven", "accountant", "budget")
    text = words.privacy(Privacy(**{k: spent[k] for k in keys}))
    more = ""
    if spent.get("training_ended"):
        more = "; the budget is spent: the proxy is trained no more, what arrives is still taken in"
    elif spent.get("rounds_left") is not None:
        more = f", about {spent['rounds_left']} more rounds"
    return f"Privacy spent: {text}{more}"
