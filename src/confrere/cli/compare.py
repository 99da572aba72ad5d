"""`confrere compare`: several ways to collaborate, side by side with training alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confrere.cli.options import AsJson, Attack, Attackers, Changes, Device, Out, Scale
from confrere.cli.output import command_line, console, print_json, run_folder
from confrere.core.errors import StudyError

if TYPE_CHECKING:
    from confrere.core.results import ComparisonResult
    from confrere.evaluate.compare import Comparison
    from confrere.study import Study


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
        int | None, typer.Option(help="How many seeds: 0, 1, 2 …", show_default="the study's, or 5")
    ] = None,
    scale: Scale = None,
    change: Changes = None,
    out: Out = None,
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
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Compare ways to collaborate over several seeds, beside training alone without noise and all records pooled.

    Several studies give one table with a line for each. With --attack, every way is run with all sites honest and with
    some of them dishonest, and all figures are of the sites that stay honest.

    Example: `confrere compare studies/quickstart.toml --strategies proxyfl,fedavg --seeds 5`
    """
    from confrere.study import FULL, load, scaled
    from confrere.study.reading import attacked

    if seeds is not None and seeds < 1:
        raise StudyError(f"--seeds is {seeds}; a comparison needs at least one")
    chosen = [n.strip() for n in (strategies or "").split(",") if n.strip()]
    found = [
        attacked(scaled(load(path, change or []), scale or FULL), attack, attackers) for path in study
    ]  # a mistake in the last is reported before the first is run
    results = []
    for number, one in enumerate(found):
        place = out if out is None or len(found) == 1 else out / f"{number:02d}-{one.name}"
        comparison = _compare(one, chosen, seeds, pooled, place, device)
        results.append((one.name, comparison.result, comparison.report()))
    _show(results, as_json)


def _compare(
    study: Study, chosen: list[str], seeds: int | None, pooled: bool | None, out: Path | None, device: str
) -> Comparison:
    """One study; what the command line leaves open is the study's own choice."""
    from confrere.evaluate.compare import arms, default_arms
    from confrere.evaluate.compare import compare as compare_study
    from confrere.report.progress import progress
    from confrere.report.words import listing

    names = chosen or default_arms(study)
    many = seeds or study.comparison.seeds
    with_pooled = study.comparison.pooled if pooled is None else pooled
    total = sum(arm.rounds for arm in arms(study, names, with_pooled).values()) * many
    with progress(total, f"{study.name}: comparing {listing(names, 6)}") as listener:
        return compare_study(
            study, names, range(study.seed, study.seed + many), out=run_folder(study.name, out),
            device=device, listeners=(listener,), command=command_line(), pooled=with_pooled,
        )  # fmt: skip


def _show(results: list[tuple[str, ComparisonResult, Path]], as_json: bool) -> None:
    from confrere.report.result_tables import comparison_table, studies_table

    first = results[0][1]
    if as_json:
        several = [{"name": name, **found.as_json()} for name, found, _ in results]
        print_json({"studies": several} if len(results) > 1 else first.as_json())
        return
    if len(results) > 1:
        console.print(studies_table({name: found for name, found, _ in results}))
    else:
        console.print(comparison_table(first))
    for _, _, path in results:
        console.print(f"Report: {path}", soft_wrap=True)
