"""`confrere simulate`: rehearse one collaboration on this machine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import Attack, Attackers
from confrere.cli.output import command_line, console, print_json, run_folder
from confrere.core.errors import StudyError
from confrere.observe.progress import progress
from confrere.observe.tables import profile_table, run_table
from confrere.runtime.processes import simulate_processes
from confrere.runtime.profile import profiled
from confrere.runtime.simulate import resume as resume_run
from confrere.runtime.simulate import simulate as simulate_study
from confrere.study import FULL, load, scaled
from confrere.study.exchanged import attacked


def simulate(
    study: Annotated[Path | None, typer.Argument(metavar="STUDY.toml", help="The study to run.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run.", show_default="runs/<name>-<time>")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Run a smaller version of the study: one of its [scales].", metavar="NAME")
    ] = FULL,
    seed: Annotated[int | None, typer.Option(help="Seed; the same seed gives the same result.")] = None,
    attack: Attack = None,
    attackers: Attackers = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the interrupted run in this folder.")
    ] = None,
    processes: Annotated[bool, typer.Option("--processes", help="One process per site.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Spread the sites over so many processes; the result is the same.", show_default="1"
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help='Where workers are: "memory" (this machine) or "ray" (a cluster).')
    ] = "memory",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 …")] = "cpu",
    trainer: Annotated[
        str,
        typer.Option(
            help='Train sites together ("cohort") or one at a time ("one"); the result is the same.'
        ),
    ] = "cohort",
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Rehearse one collaboration on this machine.

    How models are combined and compressed on their way are keys of the study: combiner = "median",
    compression = "int8" (docs/robustness.md).

    Example: `confrere simulate studies/quickstart.toml --set privacy.epsilon=1`
    """
    if (study is None) == (resume is None):
        raise StudyError("say which study to run (STUDY.toml), or which run to go on with (--resume FOLDER)")
    if profile and (processes or workers not in (None, 1) or engine != "memory"):
        raise StudyError("--profile looks at one process; leave --processes, --workers and --engine out")
    watched = profiled() if profile else nullcontext()
    if resume is not None:
        with progress(None, f"Going on with {resume}") as listener, watched as seen:
            run = resume_run(
                resume, device=device, listeners=(listener,), workers=workers, engine=engine, trainer=trainer
            )
    else:
        assert study is not None
        changes = [*(change or []), *([f"seed={seed}"] if seed is not None else [])]
        found = attacked(scaled(load(study, changes), scale), attack, attackers)
        place = run_folder(found.name, out)
        if processes and (workers is not None or engine != "memory"):
            raise StudyError(
                "--processes is one process per site; it goes with neither --workers nor --engine"
            )
        with progress(found.rounds, found.title or found.name) as listener, watched as seen:
            if processes:
                run = simulate_processes(
                    found, out=place, device=device, listeners=(listener,), command=command_line()
                )
            else:
                run = simulate_study(
                    found, out=place, device=device, listeners=(listener,), command=command_line(),
                    workers=workers, engine=engine, trainer=trainer,
                )  # fmt: skip
    if as_json:
        print_json({**run.result, **({"profile": seen.as_json()} if seen is not None else {})})
        return
    console.print(run_table(run.result))
    notices = [e for e in run.events if e.kind == "notice" and (e.site is None or e.data.get("told"))]
    for text in dict.fromkeys(e.data["text"] for e in notices):  # what all sites say is said once
        console.print(f"Note: {text}", markup=False)
    if seen is not None:
        console.print(profile_table(seen.as_json()))
    console.print(f"Run folder: {run.folder}   Report: confrere report {run.folder}")
