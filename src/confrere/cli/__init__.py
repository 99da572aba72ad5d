"""The command `confrere`: one file per command."""

from __future__ import annotations

import os
import sys

import typer
from rich.console import Console

from confrere.core.errors import ConfrereError
from confrere.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
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
        False, "--version", callback=_version, is_eager=True, help="Show the version and leave."
    ),
) -> None:
    pass


def wire() -> None:
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

    run, field, privacy, look = "Run", "In the field", "Privacy", "Look up"
    app.command("demo", rich_help_panel=run)(demo.demo)
    app.command("simulate", rich_help_panel=run)(simulate.simulate)
    app.command("compare", rich_help_panel=run)(compare.compare)
    app.command("report", rich_help_panel=run)(report.report)
    app.command("check", rich_help_panel=run)(check.check)
    app.command("partners", rich_help_panel=run)(partners.partners)
    app.command("traffic", rich_help_panel=run)(traffic.traffic)
    app.command("rehearse", rich_help_panel=field)(rehearse.rehearse)
    app.command("enroll", rich_help_panel=field)(enroll.enroll)
    app.add_typer(roster.app, name="roster", rich_help_panel=field)
    app.command("node", rich_help_panel=field)(node.node)
    app.command("status", rich_help_panel=field)(status.status)
    app.add_typer(journal.app, name="journal", rich_help_panel=field)
    app.command("predict", rich_help_panel=field)(predict.predict)
    app.command("plan", rich_help_panel=privacy)(plan.plan)
    app.command("epsilon", rich_help_panel=privacy)(epsilon.epsilon)
    app.command("calibrate", rich_help_panel=privacy)(calibrate.calibrate)
    app.command("audit", rich_help_panel=privacy)(audit.audit)
    app.command("strategies", rich_help_panel=look)(strategies.strategies)
    app.add_typer(datasets.app, name="datasets", rich_help_panel=look)
    app.add_typer(schema.app, name="schema", rich_help_panel=look)


def main() -> None:
    """Run the command; what a person can put right is said in a line or two, with exit code 2."""
    # The networks here are small: a second thread would mostly wait for the first. This must be said before
    # PyTorch is loaded; who has large networks sets OMP_NUM_THREADS.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wire()
    try:
        app(standalone_mode=True)
    except ConfrereError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]confrere:[/] {_plain(error)}")
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("\nconfrere: stopped")
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[bold red]confrere:[/] {_plain(error.strerror or error)}: {_plain(error.filename or '')}"
        )
        sys.exit(2)


def _plain(text: object) -> str:
    return str(text).replace("[", r"\[")
