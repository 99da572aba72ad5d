"""`confrere schema`: draft a schema from a file, and check files against one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from confrere.cli.options import AsJson
from confrere.core.errors import StudyError
from confrere.core.owner_only import write_private
from confrere.core.terminal import json_text
from confrere.report.console import Console

if TYPE_CHECKING:
    from confrere.data.schema import Schema
    from confrere.data.schema_check import Report

app = typer.Typer(
    help="Draft a schema (what columns mean) from a file, or check files against a study's.",
    no_args_is_help=True,
)
STATES = {
    "fits": "[green]fits[/]",
    "derived": "[green]can be derived[/]",
    "missing": "[yellow]missing[/]",
    "slip": "[red]wrong unit?[/]",
    "cannot": "[red]does not fit[/]",
    "unused": "[dim]not used[/]",
}


SHOWN = 40
"""How many fields are listed by name on the screen."""


@app.command("draft")
def draft_command(
    data: Annotated[
        str,
        typer.Argument(
            help="A CSV, Parquet, Excel or NumPy file, a folder of pictures, or a database address."
        ),
    ],
    label: Annotated[
        str, typer.Option(help="The column that is to be predicted; several, each yes or no: a,b.")
    ] = "",
    patient: Annotated[str, typer.Option(help="The column with the patient id.")] = "",
    site: Annotated[str, typer.Option(help="The column with the site name.")] = "",
    query: Annotated[str, typer.Option(help="For a database: the query.")] = "",
    delimiter: Annotated[str, typer.Option(help="Field delimiter; detected if left out.")] = "",
    encoding: Annotated[str, typer.Option(help="Text encoding of the file; detected if left out.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the draft here instead of to the screen.")] = None,
    as_json: AsJson = False,
) -> None:
    """Propose a schema for a file.

    Names and types come from the file; ranges from clinical reference values where the name is known.
    What was drawn from the records is marked PRIVATE: look at it before you share it.

    Example: confrere schema draft patients.csv --label outcome --patient patient_id
    """
    from confrere.data.federation import Source
    from confrere.data.read.sources import ReadOptions
    from confrere.data.schema_draft import draft
    from confrere.data.schema_toml import schema_toml

    source = Source(data, ReadOptions(query, delimiter, encoding))
    proposal = draft(source.read(), label=label, patient=patient, site=site)
    text = schema_toml(proposal.schema, proposal.comments)
    if as_json:
        document = {
            "schema": proposal.schema.to_dict(),
            "private": proposal.schema.unconfirmed,
            "warnings": list(proposal.warnings),
        }
        typer.echo(json_text(document))
    elif out is None:
        typer.echo(text, nl=False)
    if out is not None:
        if out.exists():
            raise StudyError(f"{out}: exists already; it was not overwritten")
        write_private(out, text)  # a draft is drawn from records
    screen = Console(stderr=True, highlight=False)
    for warning in proposal.warnings:
        screen.print(f"[yellow]To decide:[/] {escape(warning)}")
    if proposal.schema.unconfirmed:
        fields = proposal.schema.unconfirmed
        more = f" and {len(fields) - SHOWN:,} more" if len(fields) > SHOWN else ""
        drawn = ", ".join(fields[:SHOWN]) + more
        screen.print(f"[yellow]PRIVATE:[/] drawn from your records, look at it first: {escape(drawn)}")


@app.command("check")
def check_command(
    study: Annotated[
        Path, typer.Argument(help="A study with a [schema] table, or a file with that table only.")
    ],
    data: Annotated[list[str], typer.Argument(help="One or more files.")],
    query: Annotated[str, typer.Option(help="For a database: the query.")] = "",
    delimiter: Annotated[str, typer.Option(help="Field delimiter; detected if left out.")] = "",
    encoding: Annotated[str, typer.Option(help="Text encoding of the files; detected if left out.")] = "",
    folder: Annotated[str, typer.Option(help="Folder of the image files.")] = "",
    as_json: AsJson = False,
) -> None:
    """Check which columns of a file fit a study, which can be derived, and which cannot be used.

    The answer counts your records: it is PRIVATE. Exit code 1 means that a file does not fit yet.

    Example: confrere schema check study.toml north.csv south.csv
    """
    from confrere.data.federation import Source
    from confrere.data.read.sources import ReadOptions
    from confrere.data.schema_check import check
    from confrere.data.schema_toml import read_schema

    schema = read_schema(study)
    reading = ReadOptions(query, delimiter, encoding)
    reports = [check(Source(d, reading, folder), schema) for d in data]
    if as_json:
        typer.echo(json_text([r.as_json() for r in reports]))
    else:
        for report in reports:
            _show(report)
        if len(reports) > 1:
            _show_together(schema, reports)
    if not all(r.usable for r in reports):
        raise typer.Exit(1)


def _show(report: Report) -> None:
    table = Table(title=escape(report.name), title_justify="left", box=None, pad_edge=False)
    for heading in ("column", "", "what was found"):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        table.add_row(escape(finding.column), STATES[finding.state], escape(finding.sentence))
    screen = Console(highlight=False)
    screen.print(table)
    screen.print(f"[bold]{escape(report.summary)}[/]\n")


def _show_together(schema: Schema, reports: list[Report]) -> None:
    table = Table(title="All files", title_justify="left", box=None, pad_edge=False)
    table.add_column("column")
    for report in reports:
        table.add_column(escape(report.name))
    for column in schema.columns:
        states = [next((f.state for f in r.findings if f.column == column.name), "missing") for r in reports]
        table.add_row(escape(column.name), *(STATES[s] for s in states))
    Console(highlight=False).print(table)
