"""`confrere journal`: check that a journal is complete and unaltered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json

app = typer.Typer(no_args_is_help=True, help="The hash-chained journal of a run or a node.")


@app.callback()
def _group() -> None:
    pass


@app.command("verify")
def verify(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A journal, or the folder of a run or a node.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check that every line of a journal follows from the one before; an edited or removed line is named.

    Example: `confrere journal verify node`
    """
    from confrere.report.journal_check import verify_journal

    found = verify_journal(path)
    if as_json:
        print_json(found.as_json())
        return
    console.print(f"{found.path}: {found.events:,} events, all in place; the last has the hash {found.head}")
    console.print(
        "Lines cut off at the end leave no trace in the file: compare this hash with one noted before.",
        markup=False,
    )
