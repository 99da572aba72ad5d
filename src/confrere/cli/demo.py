"""`confrere demo`: a whole federation on real patients in about two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import AsJson
from confrere.cli.output import command_line, console, print_json, run_folder


def demo(
    seeds: Annotated[int, typer.Option(help="How many seeds; more seeds, more certainty, more time.")] = 30,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs.", show_default="runs/demo-<time>")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train five real referral centres together and alone, and write a report.

    Thyroid patients by referral source, the task «abnormal thyroid», a proven ε ≤ 3 per record.

    Example: `confrere demo --seeds 5`
    """
    from confrere.evaluate.demo import STRATEGIES, demo_study
    from confrere.evaluate.demo import demo as run_demo
    from confrere.report.progress import progress
    from confrere.report.result_tables import comparison_table

    study = demo_study()
    with progress(study.rounds * max(1, seeds) * len(STRATEGIES), study.title) as listener:
        place = run_folder("demo", out)
        result = run_demo(seeds, out=place, listeners=(listener,), command=command_line())
    path = result.report().resolve()
    if as_json:
        print_json(result.result.as_json() | {"report": str(path)})
        return
    console.print(comparison_table(result.result))
    console.print(f"\nReport (open it in a browser): {path}", soft_wrap=True)
