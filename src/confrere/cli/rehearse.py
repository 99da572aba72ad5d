"""`confrere rehearse`: all sites of a study as real nodes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.output import command_line, console, print_json, run_folder
from confrere.observe.progress import progress
from confrere.observe.tables import run_table
from confrere.study import load


def rehearse(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study to rehearse.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run.", show_default="runs/<name>-<time>")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the same seed gives the same result.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Start all sites of a study as real nodes on this machine: the step before the field. Not private.

    Example: `confrere rehearse studies/quickstart.toml --set rounds=5`
    """
    from confrere.node.rehearsal import LABEL  # gRPC takes its time to load, and only this needs it
    from confrere.node.rehearsal import rehearse as rehearse_study

    found = load(study, [*(change or []), *([f"seed={seed}"] if seed is not None else [])])
    with progress(found.rounds, f"{found.title or found.name} (rehearsal)") as listener:
        run = rehearse_study(
            found, out=run_folder(found.name, out), listeners=(listener,), command=command_line()
        )
    if as_json:
        print_json({**run.result, "private": False, "note": LABEL})
        return
    console.print(run_table(run.result))
    console.print(f"Not private: {LABEL}.", markup=False)
    console.print(f"Run folder: {run.folder}   Each site's files: {run.folder}/sites/NAME", markup=False)
