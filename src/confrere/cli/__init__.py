"""The command `confrere`: one file per command."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import typer

from confrere.core.errors import ConfrereError, Retired
from confrere.report.console import Console
from confrere.version import __version__

NO_HELP = {"default_map": {"help": False}}
"""A group's --help is off unless it is given. Without a default, Typer loads pydantic to read it."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings=NO_HELP,
    help="Institutions that may not share records learn together.\n\n"
    "Each keeps its data and its own model; what it exchanges is a small proxy trained with differential"
    " privacy. Start with `confrere demo`.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"confrere {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def add_commands() -> None:
    """Add the commands, once; each module is imported only here."""
    if app.registered_commands:
        return
    from confrere.cli import (
        audit,
        calibrate,
        check,
        compare,
        datasets,
        demo,
        enroll,
        epsilon,
        journal,
        node,
        partners,
        plan,
        predict,
        rehearse,
        report,
        roster,
        schema,
        simulate,
        status,
        strategies,
        traffic,
    )

    run, field, privacy, look = "Run", "Between sites", "Privacy", "Look up"
    app.command("demo", rich_help_panel=run)(demo.demo)
    app.command("simulate", rich_help_panel=run)(simulate.simulate)
    app.command("compare", rich_help_panel=run)(compare.compare)
    app.command("report", rich_help_panel=run)(report.report)
    app.command("check", rich_help_panel=run)(check.check)
    app.command("partners", rich_help_panel=run)(partners.partners)
    app.command("traffic", rich_help_panel=run)(traffic.traffic)
    app.command("rehearse", rich_help_panel=field)(rehearse.rehearse)
    app.command("enroll", rich_help_panel=field)(enroll.enroll)
    app.add_typer(roster.app, name="roster", rich_help_panel=field, context_settings=NO_HELP)
    app.command("node", rich_help_panel=field)(node.node)
    app.command("status", rich_help_panel=field)(status.status)
    app.add_typer(journal.app, name="journal", rich_help_panel=field, context_settings=NO_HELP)
    app.command("predict", rich_help_panel=field)(predict.predict)
    app.command("plan", rich_help_panel=privacy)(plan.plan)
    app.command("epsilon", rich_help_panel=privacy)(epsilon.epsilon)
    app.command("calibrate", rich_help_panel=privacy)(calibrate.calibrate)
    app.command("audit", rich_help_panel=privacy)(audit.audit)
    app.command("strategies", rich_help_panel=look)(strategies.strategies)
    app.add_typer(datasets.app, name="datasets", rich_help_panel=look, context_settings=NO_HELP)
    app.add_typer(schema.app, name="schema", rich_help_panel=look, context_settings=NO_HELP)


def main() -> None:
    """Run the command; a mistake of the user is reported in a line or two, with exit code 2."""
    # The networks are small: a second thread would mostly wait for the first. PyTorch reads this when it is
    # loaded; set OMP_NUM_THREADS for large networks.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.showwarning = _show_warning
    add_commands()
    try:
        app(standalone_mode=True)
    except ConfrereError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]confrere:[/] {_plain(error)}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        Console(stderr=True).print("\nconfrere: stopped")
        sys.exit(130)
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[bold red]confrere:[/] {_plain(error.strerror or error)}: {_plain(error.filename or '')}"
        )
        sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: Any = None,
) -> None:
    """Retired keys and options are reported in one line; warnings of libraries are not for the user."""
    if issubclass(category, Retired):
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]confrere:[/] {_plain(message)}")


def _plain(text: object) -> str:
    return str(text).replace("[", r"\[")
