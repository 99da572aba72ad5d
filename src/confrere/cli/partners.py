"""`confrere partners`: whom should this site learn from?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confrere.cli.options import AsJson, Changes, StudyFile
from confrere.cli.output import console, print_json
from confrere.partners import METHODS
from confrere.report.console import Console

if TYPE_CHECKING:
    from confrere.partners.search import PartnerSearch


def partners(
    study: StudyFile,
    site: Annotated[str, typer.Option(metavar="NAME", help="The site that asks.")],
    by: Annotated[
        str, typer.Option(metavar="METHOD", help=f"The method that decides: {', '.join(METHODS)}.")
    ] = "influence",
    top: Annotated[
        int | None, typer.Option(metavar="K", help="Choose the first K, even if no benefit is shown.")
    ] = None,
    z: Annotated[float | None, typer.Option(hidden=True)] = None,
    groups: Annotated[int, typer.Option(help="Number of clusters, for the method clusters.")] = 2,
    write: Annotated[
        bool | None,
        typer.Option(
            "--write/--dry-run",
            help="Put the choice into the study without asking, or leave it alone.",
            show_default="ask",
        ),
    ] = None,
    change: Changes = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page for the browser.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank possible partners by every method and add the choice to the study.

    A site is chosen if an interval shows that it helps and no trial on held-out patients finds it harmful. The
    answer states what the choice brings on test patients, against training alone and against all sites. --json and
    --report have the values.

    The choice is a line `partners = ["NAME", …]` that you may change; a run then has these sites only.

    «Simulation only» marks what needs records or unprotected models of peers: it is not available on nodes. With
    privacy.selection_share in the study, peers send gradients and models with noise for the other methods; that share of
    ε pays for it, and training has the rest.

    Example: `confrere partners studies/quickstart.toml --site SVHD`
    """
    from confrere.partners.page import write_partners
    from confrere.partners.search import RETIRED, find_partners
    from confrere.study import load

    progress = Console(stderr=True, highlight=False, markup=False)
    quiet = as_json or not progress.is_terminal
    if z is not None:
        progress.print(f"Warning: --{RETIRED}", soft_wrap=True)
    found = find_partners(
        load(study, change or []), site, by=by, top=top, groups=groups,
        listener=lambda text: None if quiet else progress.print(f"… {text}"),
    )  # fmt: skip
    if report is not None:
        write_partners(found, report)
    if as_json:
        _print_json(study, found, write)
    else:
        _show(found, report)
        _offer(study, found, write)


def _print_json(study: Path, found: PartnerSearch, write: bool | None) -> None:
    written = bool(write and found.chosen)
    if written:
        _write(study, found)
    print_json({**found.as_json(), "written": written})


def _show(found: PartnerSearch, report: Path | None) -> None:
    from confrere.partners.table import partners_tables

    for table in partners_tables(found):
        console.print(table)
    if report is not None:
        console.print(f"Report: {report}", soft_wrap=True)


def _offer(study: Path, found: PartnerSearch, write: bool | None) -> None:
    """Put the choice into the study's file, where --write or an answer says so."""
    if not found.chosen:
        console.print(f"{study} is left as it is.", soft_wrap=True)
        return
    if write is None and sys.stdin.isatty() and sys.stdout.isatty():
        write = typer.confirm(f"Put this choice into {study}?")
    if write:
        _write(study, found)
        console.print(f"Written into {study}; change the line as you like.", soft_wrap=True)
    else:
        console.print(f"To use it, add --write, or put this into {study}:", soft_wrap=True)
        line = f"partners = {[found.site, *found.chosen]}"
        console.print(line.replace("'", '"'), markup=False, soft_wrap=True)


def _write(study: Path, found: PartnerSearch) -> None:
    from confrere.study.editing import write_list

    why = f"chosen for {found.site} by {found.by} (confrere partners)"
    write_list(study, "partners", [found.site, *found.chosen], why)
