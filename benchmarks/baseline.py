"""Record how fast the hot paths are, or compare them with the record.

    python benchmarks/baseline.py [--repeats 5] [--out benchmarks/baseline.json]
    python benchmarks/baseline.py --compare [--repeats 5]

Runs `simulation.py`, `proxyfl_round.py` and `dp_step.py` one after another with one thread each and keeps their rows: our
own code, the bare loop, and Opacus where it is installed. Ratios can be compared between machines, seconds cannot. Run it
on a machine that does nothing else; the load average before each benchmark is in the record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE / "baseline.json"
KEPT = ("case", "unit", "ours", "peer", "ratio", "spread", "unavailable")


def commands(repeats: int) -> dict[str, list[str]]:
    return {
        "simulation": ["--no-peers", "--repeats", str(repeats)],
        "proxyfl_round": ["--repeats", str(repeats)],
        "dp_step": ["--models", "mlp,lenet5,lstm", "--no-memory", "--repeats", str(6 * repeats)],
    }


def run(name: str, arguments: list[str]) -> dict[str, Any]:
    """The rows of one benchmark, with few digits, and the load of the machine before it."""
    load = os.getloadavg()[0]
    print(f"{name} {' '.join(arguments)}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), "--json", *arguments], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{name}.py ended with code {done.returncode}; nothing was recorded")
    found = json.loads(done.stdout)
    rows = [{k: rounded(row[k]) for k in KEPT if k in row} for row in found["rows"]]
    return {"arguments": arguments, "load": round(load, 2), "machine": found["machine"], "rows": rows}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return [rounded(v) for v in value] if isinstance(value, list) else value


def compared(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A line for each case: its ratio in the record and today."""
    lines = []
    for name, found in now.items():
        old = {row["case"]: row for row in before.get(name, {}).get("rows", [])}
        for row in found["rows"]:
            was, ratio = old.get(row["case"], {}).get("ratio"), row["ratio"]
            shown = ["-" if r is None else f"{r:.2f}" for r in (was, ratio)]
            change = f"   {ratio / was - 1:+.0%}" if was and ratio else ""
            lines.append(f"{name:14} {row['case']:40} recorded {shown[0]:>8}   now {shown[1]:>8}{change}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RECORD, help="where the record is")
    parser.add_argument("--compare", action="store_true", help="show changes and leave the record as it is")
    options = parser.parse_args()
    if options.compare and not options.out.exists():
        raise SystemExit(f"{options.out}: there is no record to compare with; leave --compare out")
    found = {name: run(name, arguments) for name, arguments in commands(options.repeats).items()}
    if options.compare:
        print("\n".join(compared(json.loads(options.out.read_text(encoding="utf-8"))["benchmarks"], found)))
        return
    record = {"recorded": time.strftime("%Y-%m-%d"), "benchmarks": found}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(options.out)


if __name__ == "__main__":
    main()
