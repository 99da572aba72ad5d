"""`confrere strategies`: the ways to collaborate."""

from __future__ import annotations

from rich.table import Table

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json


def strategies(
    as_json: AsJson = False,
) -> None:
    """List the ways to collaborate, with their options.

    Example: `confrere strategies --json`
    """
    from confrere.study.strategy_list import list_strategies

    rows = list_strategies()
    if as_json:
        print_json([row.as_json() for row in rows])
        return
    table = Table(title="Ways to collaborate", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "what it does", "options", "topology"):
        table.add_column(column, overflow="fold")
    for row in rows:
        options = ", ".join(f"{o.name} = {o.default}" for o in row.options)
        table.add_row(row.name, row.summary, options, row.topology)
    console.print(table)
    console.print('In a study: strategy = "proxyfl", or [strategy] with name = "proxyfl" and options.')
