"""`confrere partners`: whom should this site learn from?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.observe.partners import partners_tables
from confrere.observe.report.partners_page import write_partners
from confrere.runtime.partners import METHODS, find_partners
from confrere.runtime.records import open_sites
from confrere.study import load
from confrere.study.editing import write_list


def partners(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study.")],
    site: Annotated[str, typer.Option(metavar="NAME", help="The site that asks.")],
    by: Annotated[
        str, typer.Option(metavar="METHOD", help=f"What decides: {', '.join(METHODS)}.")
    ] = "influence",
    top: Annotated[
        int | None, typer.Option(metavar="K", help="Choose the first K, whatever they are worth.")
    ] = None,
    z: Annotated[
        float, typer.Option(help="By how many standard errors a peer must help to be chosen.")
    ] = 1.0,
    groups: Annotated[int, typer.Option(help="How many groups sites are put into.")] = 2,
    write: Annotated[
        bool | None,
        typer.Option(
            "--write/--dry-run",
            help="Put the choice into the study without asking, or leave it alone.",
            show_default="ask",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page for the browser.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Rank the other sites as partners by every method, say how sure that is, and put the choice into the study.

    The choice is a line `partners = ["NAME", …]` that anybody may change; a run then has these sites only.

    «Simulation only» marks what needs records or unprotected models of peers: it cannot be asked in the field. With
    privacy.selection_share in the study, peers send gradients and models with noise for the other methods; that share of
    ε pays for it, and training has the rest.

    Example: `confrere partners studies/quickstart.toml --site SVHD`
    """
    found = load(study, change or []).with_(partners=None)
    known = next((m for m in METHODS if m == by), None)
    if known is None:
        raise StudyError(f'--by "{by}"{nearest(by, list(METHODS))}: there are {", ".join(METHODS)}')
    quiet = Console(stderr=True, highlight=False)
    tell = (
        (lambda text: None) if as_json or not quiet.is_terminal else (lambda text: quiet.print(f"… {text}"))
    )
    result = find_partners(
        found, open_sites(found), site, by=known, top=top, z=z, groups=groups, listener=tell
    )
    chosen = [site, *result.chosen] if result.chosen else []
    if report is not None:
        write_partners(result.as_json(), report)
    if as_json:
        written = bool(write and chosen)
        if written:
            _write(study, chosen, site, known)
        print_json({**result.as_json(), "written": written})
        return
    for table in partners_tables(result.as_json()):
        console.print(table)
    if report is not None:
        console.print(f"Report: {report}", soft_wrap=True)
    if not chosen:
        console.print(f"{study} is left as it is.", soft_wrap=True)
        return
    if write is None and sys.stdin.isatty() and sys.stdout.isatty():
        write = typer.confirm(f"Put this choice into {study}?")
    if write:
        _write(study, chosen, site, known)
        console.print(f"Written into {study}; change the line as you like.", soft_wrap=True)
    else:
        console.print(f"To use it, say --write, or put this into {study}:", soft_wrap=True)
        console.print(f"partners = {chosen}".replace("'", '"'), markup=False, soft_wrap=True)


def _write(study: Path, chosen: list[str], site: str, by: str) -> None:
    write_list(study, "partners", chosen, f"chosen for {site} by {by} (confrere partners)")
