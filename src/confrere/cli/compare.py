"""`confrere compare`: several ways to collaborate, side by side with training alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import Attack, Attackers
from confrere.cli.output import command_line, console, print_json, run_folder
from confrere.core.errors import StudyError
from confrere.observe.progress import progress
from confrere.observe.studies import studies_table
from confrere.observe.tables import comparison_table
from confrere.observe.words import listing
from confrere.runtime.compare import arms, default_arms
from confrere.runtime.compare import compare as compare_study
from confrere.study import FULL, load, scaled
from confrere.study.exchanged import attacked


def compare(
    study: Annotated[
        list[Path], typer.Argument(metavar="STUDY.toml…", help="The study, or studies, to compare on.")
    ],
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated strategies or [variants]; «local» always takes part.",
            show_default="the study's",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds: 0, 1, 2 …", show_default="the study's, or 3")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Run a smaller version of the study: one of its [scales].", metavar="NAME")
    ] = FULL,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs.", show_default="runs/<name>-<time>")
    ] = None,
    pooled: Annotated[
        bool | None,
        typer.Option(
            "--pooled/--no-pooled",
            help="Also train on all records pooled, without noise: how much there is to gain.",
            show_default="the study's, or --pooled",
        ),
    ] = None,
    attack: Attack = None,
    attackers: Attackers = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 …")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare ways to collaborate over several seeds, beside training alone without noise and all records pooled.

    Several studies give one table with a line for each. With --attack, every way is run with all sites honest and with
    some of them dishonest, and all figures are of the sites that stay honest.

    Example: `confrere compare studies/quickstart.toml --strategies proxyfl,fedavg --seeds 5`
    """
    if seeds is not None and seeds < 1:
        raise StudyError(f"--seeds is {seeds}; a comparison needs at least one")
    found = [
        attacked(scaled(load(path, change or []), scale), attack, attackers) for path in study
    ]  # a mistake in the last is told before the first is run
    results = []
    for number, one in enumerate(found):
        names = default_arms(one)
        if strategies:
            names = [n.strip() for n in strategies.split(",") if n.strip()]
        many = seeds or one.comparison.seeds
        with_pooled = one.comparison.pooled if pooled is None else pooled
        total = sum(arm.rounds for arm in arms(one, names, with_pooled).values()) * many
        label = f"{one.name}: comparing {listing(names, 6)}"
        place = run_folder(
            one.name, out if out is None or len(found) == 1 else out / f"{number:02d}-{one.name}"
        )
        with progress(total, label) as listener:
            result = compare_study(
                one, names, range(one.seed, one.seed + many), out=place,
                device=device, listeners=(listener,), command=command_line(), pooled=with_pooled,
            )  # fmt: skip
        results.append((one.name, result.result, result.report()))
    if as_json:
        several = {"studies": [{"name": name, **result} for name, result, _ in results]}
        print_json(several if len(results) > 1 else results[0][1])
        return
    if len(results) > 1:
        console.print(studies_table({name: result for name, result, _ in results}))
    else:
        console.print(comparison_table(results[0][1]))
    for _, _, path in results:
        console.print(f"Report: {path}", soft_wrap=True)
