"""`confrere simulate`: run a whole study in simulation on this machine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confrere.cli.options import (
    AsJson,
    Attack,
    Attackers,
    Changes,
    Device,
    OptionalStudyFile,
    Out,
    Scale,
    Seed,
)
from confrere.cli.output import command_line, console, print_json, print_notes, run_folder, with_seed
from confrere.core.errors import StudyError

if TYPE_CHECKING:
    from confrere.simulation.finished_run import Run
    from confrere.simulation.profiling import Profile

PROCESSES = (
    "--processes was removed; use --workers N to spread the sites over processes, or `confrere rehearse STUDY.toml` for"
    " one process per site"
)


def simulate(
    study: OptionalStudyFile = None,
    change: Changes = None,
    out: Out = None,
    scale: Scale = None,
    seed: Seed = None,
    attack: Attack = None,
    attackers: Attackers = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the interrupted run in this folder.")] = None,
    processes: Annotated[bool, typer.Option("--processes", hidden=True)] = False,
    workers: Annotated[
        int | None,
        typer.Option(help="Spread the sites over N processes; the result is the same.", show_default="1"),
    ] = None,
    engine: Annotated[
        str, typer.Option(help='Run the workers on this machine ("memory") or on a cluster ("ray").')
    ] = "memory",
    device: Device = "cpu",
    trainer: Annotated[
        str,
        typer.Option(
            help='Train sites together ("cohort") or one at a time ("one"); the result is the same.'
        ),
    ] = "cohort",
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a study on this machine.

    How models are combined and compressed on their way are keys of the study: combiner = "median",
    compression = "int8" (docs/robustness.md).

    Example: `confrere simulate studies/quickstart.toml --set privacy.epsilon=1`
    """
    from confrere.report.progress import progress
    from confrere.simulation.backends import resume as resume_run
    from confrere.simulation.backends import simulate as simulate_study
    from confrere.simulation.profiling import profiled
    from confrere.study import FULL, load, scaled
    from confrere.study.reading import attacked

    if processes:
        raise StudyError(PROCESSES)
    if profile and (workers not in (None, 1) or engine != "memory"):
        raise StudyError("--profile works with a single process; leave out --workers and --engine")
    how: dict[str, Any] = {"device": device, "workers": workers, "engine": engine, "trainer": trainer}
    watched = profiled() if profile else nullcontext()
    if study is not None and resume is None:
        found = attacked(scaled(load(study, with_seed(change, seed)), scale or FULL), attack, attackers)
        place = run_folder(found.name, out)
        with progress(found.rounds, found.title or found.name) as listener, watched as seen:
            run = simulate_study(found, out=place, listeners=(listener,), command=command_line(), **how)
    elif resume is not None and study is None:
        with progress(None, f"Continuing {resume}") as listener, watched as seen:
            run = resume_run(resume, listeners=(listener,), **how)
    else:
        raise StudyError("name the study to run (STUDY.toml), or the run to continue (--resume FOLDER)")
    _show(run, seen, as_json)


def _show(run: Run, profile: Profile | None, as_json: bool) -> None:
    from confrere.report.result_tables import profile_table, run_table

    if as_json:
        more = {} if profile is None else {"profile": profile.as_json()}
        print_json({**run.result.as_json(), **more})
        return
    console.print(run_table(run.result))
    print_notes(run.events)
    if profile is not None:
        console.print(profile_table(profile.as_json()))
    console.print(f"Run folder: {run.folder}   Report: confrere report {run.folder}")
