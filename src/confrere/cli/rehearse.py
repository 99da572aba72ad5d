"""`confrere rehearse`: all sites of a study as real nodes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import AsJson, Changes, OptionalStudyFile, Out, Seed
from confrere.cli.output import command_line, console, print_json, print_notes, run_folder, with_seed
from confrere.core.errors import StudyError


def rehearse(
    study: OptionalStudyFile = None,
    change: Changes = None,
    out: Out = None,
    seed: Seed = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the interrupted rehearsal in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start all sites of a study as real nodes on this machine: the step before deployment. Not private.

    Example: `confrere rehearse studies/quickstart.toml --set rounds=5`
    """
    from confrere.core.seeds import NOT_PRIVATE
    from confrere.report.progress import progress
    from confrere.report.result_tables import run_table
    from confrere.simulation.rehearsal import rehearse as rehearse_study
    from confrere.simulation.rehearsal import resume_rehearsal
    from confrere.study import load

    if (study is None) == (resume is None):
        raise StudyError(
            "name the study to rehearse (STUDY.toml), or the rehearsal to continue (--resume FOLDER)"
        )
    if resume is not None:
        if change or out is not None or seed is not None:
            raise StudyError("--resume continues the study as it was; leave out --set, --out and --seed")
        with progress(None, f"Continuing {resume}") as listener:
            run = resume_rehearsal(resume, listeners=(listener,))
    else:
        assert study is not None
        found = load(study, with_seed(change, seed))
        with progress(found.rounds, f"{found.title or found.name} (rehearsal)") as listener:
            run = rehearse_study(
                found, out=run_folder(found.name, out), listeners=(listener,), command=command_line()
            )
    if as_json:
        print_json({**run.result.as_json(), "private": False, "note": NOT_PRIVATE})
        return
    console.print(run_table(run.result))
    print_notes(run.events, but=NOT_PRIVATE)
    console.print(f"Run folder: {run.folder}   Each site's files: {run.folder}/sites/NAME")
