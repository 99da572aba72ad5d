"""How commands speak: JSON alone on standard output, or tables; progress on standard error."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

console = Console(highlight=False)


def print_json(document: Any) -> None:
    """One JSON document and nothing else on standard output; a number that is none becomes null."""
    json.dump(_finite(document), sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def run_folder(name: str, out: Path | None) -> Path:
    """Where a run goes: what the user says, or runs/<name>-<time>."""
    if out is not None:
        return out
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder, number = Path("runs") / f"{name}-{stamp}", 2
    while folder.exists():
        folder, number = Path("runs") / f"{name}-{stamp}-{number}", number + 1
    return folder


def command_line() -> str:
    return " ".join(["confrere", *sys.argv[1:]])
