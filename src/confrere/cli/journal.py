"""`confrere journal`: check that a journal is complete and unaltered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError

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
    from confrere.core.events import GENESIS, verified

    path = path / "journal.jsonl" if path.is_dir() else path
    if not path.exists():
        raise StudyError(f"{path}: no such journal")
    heads = [head for _, head in verified(path)]
    count, head = len(heads), heads[-1] if heads else GENESIS
    if as_json:
        print_json({"journal": str(path), "events": count, "head": head, "whole": True})
        return
    console.print(f"{path}: {count:,} events, all in place; the last has the hash {head}")
    console.print(
        "Lines cut off at the end leave no trace in the file: compare this hash with one noted before.",
        markup=False,
    )
