"""`confrere strategies`: the ways to collaborate."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from rich.table import Table

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json


def strategies(
    as_json: AsJson = False,
) -> None:
    """List the ways to collaborate, with their options.

    Example: `confrere strategies --json`
    """
    from confrere.strategies import discover

    rows = [describe(name) for name in discover()]
    if as_json:
        print_json(rows)
        return
    table = Table(title="Ways to collaborate", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "what it does", "options", "topology"):
        table.add_column(column, overflow="fold")
    for row in rows:
        options = ", ".join(f"{o['name']} = {o['default']}" for o in row["options"])
        table.add_row(row["name"], row["summary"], options, row["topology"])
    console.print(table)
    console.print('In a study: strategy = "proxyfl", or [strategy] with name = "proxyfl" and options.')


def describe(name: str) -> dict[str, Any]:
    """A strategy in words, from its docstring and fields."""
    from confrere.strategies import strategies as known

    kind = known[name]
    text = inspect.getdoc(kind) or ""
    first = text.split("\n\n")[0].replace("\n", " ")
    summary, _, source = first.partition(" (")
    return {
        "name": name,
        "summary": summary.rstrip("."),
        "source": source.rstrip(").") if source else "",
        "options": [
            {"name": f.name, "default": f.default, "type": str(f.type)}
            for f in dataclasses.fields(kind)
            if f.init
        ],
        "topology": getattr(kind, "topology", "none"),
    }
