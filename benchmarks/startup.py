"""How many CPU seconds pass before a command shows its help, or a simulation begins its first round.

    python benchmarks/startup.py [--repeats 3] [--against OTHER/src] [--json] [NAME …]

Every case is a new process; user and system time are added, and the least of all repeats is shown. With --against, the same
cases run in turn with the sources of another checkout. NAME restricts the cases: version, help, first-round, or a command
such as "roster add". Targets: 0.4 s for the version and every help text, 3 s for the first round of studies/quickstart.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import confrere.cli

ROOT = Path(__file__).parents[1]
TARGET, TARGET_FIRST_ROUND = 0.4, 3.0
COMMAND = "import sys; from confrere.cli import main; sys.argv[0] = 'confrere'; main()"
UNTIL_FIRST_ROUND = f"""
import os
from confrere.core.events import Journal

add = Journal.add

def watched(self, event):
    if event.kind == "round-started":
        os._exit(0)
    return add(self, event)

Journal.add = watched
{COMMAND}
"""


def commands(program: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and of every group but the program itself."""
    for name, inner in getattr(program, "commands", {}).items():
        yield (*path, name)
        yield from commands(inner, (*path, name))


def cases() -> dict[str, tuple[str, list[str], float]]:
    """By name, what a process runs, with which words, and its target."""
    confrere.cli.add_commands()
    found = {
        "version": (COMMAND, ["--version"], TARGET),
        "help": (COMMAND, ["--help"], TARGET),
        "first-round": (
            UNTIL_FIRST_ROUND,
            ["simulate", str(ROOT / "studies" / "quickstart.toml")],
            TARGET_FIRST_ROUND,
        ),
    }
    for words in commands(typer.main.get_command(confrere.cli.app)):
        found[" ".join(words)] = (COMMAND, [*words, "--help"], TARGET)
    return found


def cpu_seconds(code: str, words: list[str], source: Path, folder: str) -> float:
    """User and system time of one process in a folder; an exit code other than 0 ends the benchmark."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"confrere {' '.join(words)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the src folder of another checkout")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    known = cases()
    for name in given.names:
        if name not in known:
            parser.error(f'no case "{name}"; there are {", ".join(known)}')
    sources = {"ours": ROOT / "src", **({"against": given.against.resolve()} if given.against else {})}
    rows = []
    for name in given.names or known:
        code, words, target = known[name]
        measured: dict[str, list[float]] = {label: [] for label in sources}
        for _ in range(given.repeats):
            for label, source in sources.items():
                with tempfile.TemporaryDirectory() as folder:
                    measured[label].append(cpu_seconds(code, words, source, folder))
        row = {"case": name, "target": target, **{label: min(times) for label, times in measured.items()}}
        rows.append(row)
        if not given.json:
            other = f"   against {row['against']:5.2f}" if given.against else ""
            print(f"{name:20} {row['ours']:5.2f} CPU s (target {target:g}){other}", flush=True)
    if given.json:
        print(json.dumps({"load": os.getloadavg(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
