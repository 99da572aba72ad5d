"""`confrere status`: show the state of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder (home in site.toml).")],
    as_json: AsJson = False,
) -> None:
    """Show the round, peers, budget, bytes and model quality of a node. What it shows about records stays at the site.

    Example: `confrere status node`
    """
    from confrere.node.node_status import status_document
    from confrere.node.status import ago

    found = status_document(folder)
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
    from confrere.core.results import ModelVerdict, Tested
    from confrere.core.seeds import NOT_PRIVATE
    from confrere.report import words

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
        out.append(NOT_PRIVATE.capitalize())
    for site, number in found["left"].items():
        out.append(f"{site} leaves for good before round {number}")
    for site, count in found["equivocations"].items():
        out.append(
            f"Warning: {site} has signed two different parcels under one number ({words.count(count, 'time')});"
            " both signatures are in the journal (equivocated)"
        )
    for site, peer in found["peers"].items():
        if conduct := conduct_text(peer.get("conduct", {})):
            out.append(f"Warning: {site} {conduct} since the start")
    quality = ", ".join(
        f"{words.metric(name).label} {words.figure(name, value)}"
        for name, value in found["quality_private"].items()
    )
    if found.get("deployed_private", {}).get("text"):
        out.append(f"Model (private, never sent): {found['deployed_private']['text']}")
    verdict = found.get("verdict_private")
    judged = ModelVerdict.from_json(verdict) if verdict else None
    if quality:
        counts = Tested.from_json(found.get("tested_private")) or (judged.tested if judged else None)
        counted = f", {words.tested(counts)}" if counts else ""
        out.append(f"On this site's own test records{counted} (private, never sent): {quality}")
    if verdict:
        out.append(f"Verdict (private, never sent): {verdict['text']}")
        if judged and (errors := words.errors_of_100(judged)):
            out.append(words.capital(errors))
    return out


def conduct_text(counts: dict[str, float]) -> str:
    """What a peer has sent that it should not have; nothing of an honest one."""
    from confrere.report import words

    parts = [
        f"{words.count(int(counts[name]), 'parcel')} {what}"
        for name, what in (
            ("refused", "that no honest site sends"),
            ("left_aside", "with numbers out of the study's bounds"),
        )
        if counts.get(name)
    ]
    return f"has sent {' and '.join(parts)}" if parts else ""


def privacy_line(spent: dict[str, Any] | None) -> str:
    """«Privacy spent: 1.8 of 3.0 (ε, δ = 1e-6 …), about 12 more rounds»."""
    from confrere.core.results import PrivacySpent
    from confrere.report import words

    if spent is None:
        return "Privacy spent: nothing was trained with noise yet"
    text = words.privacy(PrivacySpent.from_json(spent))
    more = ""
    if spent.get("training_ended"):
        more = "; the budget is spent: the proxy is trained no more, what arrives is still taken in"
    elif spent.get("rounds_left") is not None:
        more = f", about {spent['rounds_left']} more rounds"
    return f"Privacy spent: {text}{more}"
