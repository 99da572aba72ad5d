"""`confrere report`: the HTML page of a run or a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run or of a comparison.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the report to this file.", show_default="RUN_DIR/report.html")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="SITE",
            help="Write the report for one site of a comparison. It has figures of other sites only if the data set is public.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run: one HTML file that needs no network.

    Example: `confrere report runs/quickstart-20260101-120000`
    """
    from confrere.report.page import write_report

    path = write_report(folder, out, site)
    if as_json:
        print_json({"report": str(path)})
    else:
        console.print(f"Report: {path}")
