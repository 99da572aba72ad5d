"""`confrere status`: show the state of a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json

if TYPE_CHECKING:
    from confrere.node.node_status import NodeStatus


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder (home in site.toml).")],
    as_json: AsJson = False,
) -> None:
    """Show the round, peers, budget, bytes and model quality of a node. What it shows about records stays at the site.

    Example: `confrere status node`
    """
    from confrere.node.node_status import node_status
    from confrere.node.status import ago

    found = node_status(folder)
    if as_json:
        print_json(found.as_json())
        return
    for line in lines(found):
        console.print(line, markup=False, soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("peer", "connected", "last contact", "parcels waiting", "missing in rounds", ""):
        table.add_column(column)
    for name, peer in found.peers.items():
        table.add_row(
            name, "yes" if peer.connected else "no", ago(peer.last_contact), str(peer.parcels_waiting),
            spans(peer.missing_in_rounds) or "none", peer.reason,
        )  # fmt: skip
    console.print(table)


def spans(rounds: Sequence[int]) -> str:
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


def lines(found: NodeStatus) -> list[str]:
    """The state of a node in sentences."""
    from confrere.core.seeds import NOT_PRIVATE
    from confrere.report import words

    why = f": {found.reason}" if found.reason else ""
    out = [
        f"{found.site}, {found.study} (hash {found.study_hash}): {found.doing}{why}",
        f"Rounds done: {found.round} of {found.rounds}",
        privacy_line(found),
        f"In parcels for peers: {words.size(found.bytes_in_parcels)}",
    ]
    if found.bytes_sent is not None and found.bytes_received is not None:
        sent, received = words.size(found.bytes_sent), words.size(found.bytes_received)
        out.append(f"Sent {sent}, received {received} since the start")
    if found.rehearsal:
        out.append(NOT_PRIVATE.capitalize())
    out += [f"{site} leaves for good before round {number}" for site, number in found.left.items()]
    return [*out, *_warnings(found), *_model_lines(found)]


def _warnings(found: NodeStatus) -> list[str]:
    from confrere.report import words

    out = [
        f"Warning: {site} has signed two different parcels under one number ({words.count(count, 'time')});"
        " both signatures are in the journal (equivocated)"
        for site, count in found.equivocations.items()
    ]
    for site, peer in found.peers.items():
        parts = [
            f"{words.count(count, 'parcel')} {what}"
            for count, what in (
                (peer.refused, "that no honest site sends"),
                (peer.left_aside, "with numbers out of the study's bounds"),
            )
            if count
        ]
        if parts:
            out.append(f"Warning: {site} has sent {' and '.join(parts)} since the start")
    return out


def _model_lines(found: NodeStatus) -> list[str]:
    """How good the site's model is; PRIVATE."""
    from confrere.report import words

    out = [f"Model (private, never sent): {found.deployed}"] if found.deployed else []
    quality = ", ".join(
        f"{words.metric(name).label} {words.figure(name, value)}" for name, value in found.metrics.items()
    )
    if quality:
        counted = f", {words.tested(found.tested)}" if found.tested else ""
        out.append(f"On this site's own test records{counted} (private, never sent): {quality}")
    if found.verdict is not None:
        out.append(f"Verdict (private, never sent): {found.verdict_text}")
        if errors := words.errors_of_100(found.verdict):
            out.append(words.capital(errors))
    return out


def privacy_line(found: NodeStatus) -> str:
    """«Privacy spent: 1.8 of 3.0 (ε, δ = 1e-6 …), about 12 more rounds»."""
    from confrere.report import words

    if found.privacy is None:
        return "Privacy spent: nothing was trained with noise yet"
    more = ""
    if found.training_ended:
        more = "; the budget is spent: the proxy is trained no more, what arrives is still taken in"
    elif found.rounds_left is not None:
        more = f", about {found.rounds_left} more rounds"
    return f"Privacy spent: {words.privacy(found.privacy)}{more}"
