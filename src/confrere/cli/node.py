"""`confrere node`: run this site's node, or send a command to a running one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confrere.cli import status as status_command
from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json
from confrere.core.custody import may_leave
from confrere.core.errors import StudyError
from confrere.core.terminal import printable

if TYPE_CHECKING:
    from confrere.core.events import Event

COMMANDS = ("stop", "pause", "resume", "leave", "status")
QUIET = ("sent", "round-started", "charged")
LONGEST_LINE = 2000


def node(
    what: Annotated[
        str, typer.Argument(metavar="STUDY.toml|WORD", help="A study; or stop, pause, resume, leave, status.")
    ],
    where: Annotated[
        Path, typer.Argument(metavar="SITE.toml|DIR", help="The site's own file; or the node's folder.")
    ],
    until_done: Annotated[
        bool,
        typer.Option("--until-done", help="Exit when all rounds are done and every parcel is delivered."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Leave without asking for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take part in a study with this site's records. A node can be killed at any time; started again, it continues.

    Example: `confrere node study.toml site.toml`, and from another terminal `confrere node pause node`
    """
    if what == "status":
        status_command.status(where, as_json)
    elif what in COMMANDS:
        if what == "leave" and not yes:
            typer.confirm("Leaving is signed and final: this site cannot come back. Leave?", abort=True)
        from confrere.node.control import ask

        text = ask(where, what)["text"]
        print_json({"text": text}) if as_json else console.print(text, markup=False)
    elif not what.endswith(".toml"):
        raise StudyError(f"«{what}» is neither a study (STUDY.toml) nor one of {', '.join(COMMANDS)}")
    else:
        from confrere.node.service import run_node

        chosen: list[str] = []

        def note_choice(event: Event) -> None:
            if event.kind == "deployed":
                chosen.append(event.data["model"])

        run_node(Path(what), where, until_done=until_done, listeners=(_print_event, note_choice))
        if chosen[-1:] == ["own"]:
            console.print(
                "This site deploys its own model, which had the lower loss on its own held-out records"
                " (private; see model/card.md).",
                markup=False, soft_wrap=True,
            )  # fmt: skip


def _print_event(event: Event) -> None:
    """A line for the operator; never a number from records."""
    if not may_leave(event.custody, consent=True) or event.kind in QUIET:
        return
    text = event.data.get("text") or {
        "missing": lambda d: f"went on without {', '.join(d['senders'])}",
        "run-started": lambda d: (
            f"takes part in «{d['title']}», {d['rounds']} rounds, with {', '.join(d['members'])}"
        ),
        "connected": lambda d: f"connected to {d['peer']}",
        "resumed": lambda d: f"continues with round {d['round'] + 1}",
    }.get(event.kind, lambda d: event.kind)(event.data)
    number = f"round {event.round + 1}: " if event.round is not None else ""
    line = printable(f"{event.site or ''} {number}{text}", LONGEST_LINE)
    console.print(line, markup=False, soft_wrap=True)
