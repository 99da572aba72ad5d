"""Helpers shared by the commands: print JSON and notes, choose the run folder, apply a seed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confrere.core.terminal import json_text
from confrere.report.console import Console

if TYPE_CHECKING:
    from confrere.core.events import Event

console = Console(highlight=False, markup=False)  # texts contain [privacy] and file names


def print_json(document: Any) -> None:
    """One JSON document and nothing else on standard output; NaN and infinity become null."""
    sys.stdout.write(json_text(_finite(document), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def notes_of(events: Iterable[Event]) -> list[str]:
    """The notices of a run that concern all sites; what several sites report is listed once."""
    notices = (e for e in events if e.kind == "notice" and (e.site is None or e.data.get("told")))
    return list(dict.fromkeys(str(e.data["text"]) for e in notices))


def print_notes(events: Iterable[Event], but: str = "") -> None:
    """The notices of a run, a line each."""
    events = list(events)
    for text in [*notes_of(events), *deployed_note(events)]:
        if text != but:
            console.print(f"Note: {text}")


def deployed_note(events: Iterable[Event]) -> list[str]:
    """Which sites deploy their own model by the choice of `site.deployment`, which is not a verdict."""
    chosen = {str(e.site): e.data["model"] for e in events if e.kind == "deployed"}
    own = sorted(site for site, model in chosen.items() if model == "own")
    if not own:
        return []
    shown = ", ".join(own[:10]) + (" …" if len(own) > 10 else "")
    return [
        f"{len(own)} of {len(chosen)} sites deploy their own model, because it had the lower loss on their own"
        f" held-out records, by more than one standard error: {shown}. The table shows the collaborative model."
    ]


def with_seed(changes: list[str] | None, seed: int | None) -> list[str]:
    """The changes to a study that --set and --seed ask for."""
    return [*(changes or []), *([] if seed is None else [f"seed={seed}"])]


def run_folder(name: str, out: Path | None) -> Path:
    """The folder for a run: `out`, or runs/<name>-<time>."""
    if out is not None:
        return out
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder, number = Path("runs") / f"{name}-{stamp}", 2
    while folder.exists():
        folder, number = Path("runs") / f"{name}-{stamp}-{number}", number + 1
    return folder


def command_line() -> str:
    return " ".join(["confrere", *sys.argv[1:]])
