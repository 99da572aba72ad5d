"""`confrere audit`: what an attacker really detects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from confrere.cli.output import console, print_json
from confrere.runtime.audit import QUICK, Effort
from confrere.runtime.audit import audit as audit_study
from confrere.study import load


def audit(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study to attack.")],
    runs: Annotated[
        int | None, typer.Option(help="Trainings with one constructed record, and as many without it.")
    ] = None,
    canaries: Annotated[int | None, typer.Option(help="Made-up records in a single training.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Try less hard: a first look.")] = False,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Attack a study and say what an attacker detects, beside what is claimed.

    Example: `confrere audit studies/quickstart.toml --quick`
    """
    effort = QUICK if quick else Effort()
    wanted = {"runs": runs, "canaries": canaries}
    effort = replace(effort, **{name: value for name, value in wanted.items() if value is not None})
    found = load(study, change or [])
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Attacking", total=effort.steps)
        result = audit_study(
            found,
            effort=effort,
            tick=lambda done, total, what: bar.update(task, completed=done, description=f"Attacking: {what}"),
        )
    if as_json:
        print_json(result.result)
        return
    for line in result.sentences():
        console.print(line, soft_wrap=True, markup=False)
