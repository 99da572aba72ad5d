"""`confrere audit`: attack a study, and measure the largest ε that an attacker can demonstrate."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from confrere.cli.options import AsJson, Changes, StudyFile
from confrere.cli.output import console, print_json
from confrere.report.console import Console

BROKEN = 4
"""The exit code where more was detected than is claimed."""


def audit(
    study: StudyFile,
    quick: Annotated[
        bool, typer.Option("--quick", help="About a minute: the bound on ε alone, from fewer runs.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(help="Seconds to spend on canaries.")] = None,
    runs: Annotated[
        int | None, typer.Option(help="Number of runs with canaries, instead of --seconds; reproducible.")
    ] = None,
    canaries: Annotated[int | None, typer.Option(help="Canaries in each run.")] = None,
    change: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Attack a study and report how large an ε an attacker detects, beside the ε that is claimed.

    Canaries, each included with probability 1/2, go through the study's real training and its gate. If more ε
    is detected than claimed, the guarantee is broken (exit code 4); a low value proves nothing.

    Example: `confrere audit studies/quickstart.toml --quick`
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from confrere.evaluate.audit import QUICK, AuditEffort
    from confrere.evaluate.audit import audit as audit_study
    from confrere.study import load

    wanted: dict[str, Any] = {"seconds": seconds, "runs": runs, "canaries": canaries}
    effort = replace(QUICK if quick else AuditEffort(), **{k: v for k, v in wanted.items() if v is not None})
    found = load(study, change or [])
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Attacking", total=1.0)
        result = audit_study(
            found,
            effort=effort,
            tick=lambda done, what: bar.update(task, completed=done, description=f"Attacking: {what}"),
        )
    if as_json:
        print_json(result.as_json())
    else:
        for line in result.sentences():
            console.print(line, soft_wrap=True, markup=False)
    if result.broken:
        raise typer.Exit(BROKEN)
