"""`confrere compare`: several ways to collaborate, side by side with training alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.output import command_line, console, print_json, run_folder
from confrere.core.errors import StudyError
from confrere.observe.progress import progress
from confrere.observe.tables import comparison_table
from confrere.runtime.compare import ALONE
from confrere.runtime.compare import compare as compare_study
from confrere.study import load


def compare(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study to compare on.")],
    strategies: Annotated[
        str | None, typer.Option(help="Comma-separated strategies or [variants]; «local» always takes part.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, 2 …")] = 3,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs.", show_default="runs/<name>-<time>")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 …")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare ways to collaborate over several seeds, beside training alone without noise.

    Example: `confrere compare studies/quickstart.toml --strategies proxyfl,fedavg,pooled --seeds 5`
    """
    if seeds < 1:
        raise StudyError(f"--seeds is {seeds}; a comparison needs at least one")
    found = load(study, change or [])
    names = [n.strip() for n in strategies.split(",") if n.strip()] if strategies else [found.strategy_name]
    total = found.rounds * seeds * len({ALONE, *names})
    with progress(total, f"Comparing {', '.join(names)}") as listener:
        result = compare_study(
            found, names, range(found.seed, found.seed + seeds),
            out=run_folder(found.name, out), device=device, listeners=(listener,), command=command_line(),
        )  # fmt: skip
    path = result.report()
    if as_json:
        print_json(result.result)
        return
    console.print(comparison_table(result.result))
    console.print(f"Report: {path}")
