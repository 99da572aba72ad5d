"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.core.registry import names_in_source

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study.")]
OptionalStudyFile = Annotated[Path | None, typer.Argument(metavar="STUDY.toml", help="The study.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Out = Annotated[
    Path | None, typer.Option(help="Write the run to this folder.", show_default="runs/<name>-<time>")
]
Seed = Annotated[int | None, typer.Option(help="Set the seed; the same seed gives the same result.")]
Device = Annotated[str, typer.Option(help="The device to compute on: cpu, cuda, cuda:1 …")]
Attack = Annotated[
    str | None,
    typer.Option(
        help=f"Make some sites dishonest: {', '.join(names_in_source('confrere.exchange', 'attack'))}."
        " A comparison runs everything with and without them."
    ),
]
Attackers = Annotated[
    str | None,
    typer.Option(
        help="How many sites attack (the last ones in the order of names), or which: a,b.", show_default="1"
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        help="Run a smaller version of the study: one of its [scales].", metavar="NAME", show_default="full"
    ),
]
Records = Annotated[
    int | None, typer.Option(help="The declared number of records (of patients, with --unit patient).")
]
Batch = Annotated[int | None, typer.Option(help="The expected batch size.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data, in all rounds together.")]
Delta = Annotated[float, typer.Option(help="δ, at most 1/records.")]
AccountantName = Annotated[str, typer.Option(help="pld (tight) or rdp (as in most papers).")]
UnitName = Annotated[str, typer.Option(help="What is sampled and protected: record or patient.")]
