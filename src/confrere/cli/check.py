"""`confrere check`: what a study would do, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from confrere.cli.options import AsJson, Changes, StudyFile
from confrere.cli.output import console, print_json

if TYPE_CHECKING:
    from confrere.evaluate.study_check import SiteCheck, StudyCheck


def check(
    study: StudyFile,
    change: Changes = None,
    roster: Annotated[
        Path | None,
        typer.Option(metavar="ROSTER.toml", help="The members.", show_default="roster.toml beside the study"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a study and its records, and show what each site would do; nothing is trained or written.

    Example: `confrere check studies/quickstart.toml`
    """
    from confrere.evaluate.study_check import check as check_study
    from confrere.node.roster import load_roster
    from confrere.study import load

    found, beside = load(study, change or []), study.parent / "roster.toml"
    members = roster or (beside if beside.exists() else None)
    result = check_study(found, roster=load_roster(members) if members else None)
    if as_json:
        print_json(result.as_json())
    else:
        _show(result)


def _show(found: StudyCheck) -> None:
    from confrere.evaluate.privacy_cost import in_words

    table = Table(title=found.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("site", "records", "private model", "proxy", "noise", "steps", "ε in the end"):
        table.add_column(column, justify="right" if column in ("records", "noise", "steps") else "left")
    for name, site in found.sites.items():
        table.add_row(name, *_row(site))
    console.print(table)
    console.print(found.sentence)
    if found.privacy is not None:
        console.print(in_words(found.privacy))
    for text in found.warnings:
        console.print(f"Note: {text}")


def _row(site: SiteCheck) -> list[str]:
    return [
        f"{site.records:,}",
        f"{site.private} ({site.private_parameters:,})",
        f"{site.proxy} ({site.proxy_parameters:,})",
        f"{site.noise_multiplier:.2f}" if site.noise_multiplier else "none",
        f"{site.steps:,}" if site.steps else "–",
        "no round fits" if site.rounds_left == 0 else site.guarantee or "no guarantee",
    ]
