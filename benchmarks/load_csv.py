"""How long a large CSV file takes to load, beside pandas' own parse of the same file.

    python benchmarks/load_csv.py                  1 million rows × 50 columns
    python benchmarks/load_csv.py --rows 100000 --json

`read` is ours against pandas.read_csv: the parse with all checks. `read+encode` is what a study does with a site's
file: it adds scaling, one-hot and missing-value indicators, which pandas does not do, piece by piece while the file is
read. `whole` does the same with the whole table in memory, as is needed where a rule looks at all records at once
(dates, patients with several records). `stream` encodes piece by piece into a file on the disk.
Processor time is counted, since other work may share the machine; all of it runs on one core. `user` is the
same ratio without the time that the system spends on handing out memory, which varies much between machines:
encoded records need as much memory again as the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from confrere.data.column_kinds import Column
from confrere.data.encode.encoder import encode
from confrere.data.federation import Source
from confrere.data.read.sources import LIMIT, ReadOptions, read
from confrere.data.read.streaming import encode_file, encode_stream
from confrere.data.schema import Schema
from confrere.data.tasks import Label


def write(path: Path, rows: int, columns: int) -> Schema:
    """Mostly numbers, a few categories, 5 % gaps in every fifth column."""
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(columns - 3)]
    with path.open("w", encoding="utf-8") as out:
        out.write(",".join([*names, "sex", "ward", "sick"]) + "\n")
    for start in range(0, rows, 50_000):
        count = min(50_000, rows - start)
        piece = pd.DataFrame(rng.normal(0, 10, (count, len(names))).round(3), columns=names)
        for name in names[::5]:
            piece.loc[rng.uniform(size=count) < 0.05, name] = np.nan
        piece["sex"] = rng.choice(["F", "M"], count)
        piece["ward"] = rng.choice(["north", "south", "east"], count)
        piece["sick"] = rng.integers(0, 2, count)
        piece.to_csv(path, mode="a", header=False, index=False)
    return Schema(
        label=Label(column="sick"),
        columns=(
            *(Column(name, range=(-100, 100), usual=(-20, 20)) for name in names),
            Column("sex", kind="category", categories=("F", "M")),
            Column("ward", kind="category", categories=("north", "south", "east")),
        ),
    )


def timed(work: Callable[[], object], repeats: int) -> list[tuple[float, float]]:
    out = []
    for _ in range(repeats):
        before = os.times()
        kept = work()
        after = os.times()
        out.append((after.user - before.user, after.system - before.system))
        del kept
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        schema = write(path, options.rows, options.columns)
        size = path.stat().st_size
        print(f"{options.rows:,} × {options.columns}, {size / 1e6:.0f} MB", file=sys.stderr)
        limit = max(LIMIT, size)
        cases: dict[str, Callable[[], object]] = {
            "read": lambda: read(path, ReadOptions(limit=limit)),
            "read+encode": lambda: encode_file(Source(path), schema),
            "whole": lambda: encode(read(path, ReadOptions(limit=limit)), schema),
            "stream": lambda: encode_stream(Source(path), schema),
        }
        rows = []
        for case, work in cases.items():
            peers, ours = [], []
            for _ in range(options.repeats):  # in turn, so that other work on the machine hits both
                peers += timed(lambda: pd.read_csv(path), 1)
                ours += timed(work, 1)
            ratios = sorted(sum(o) / sum(p) for o, p in zip(ours, peers, strict=True))
            user = statistics.median(o[0] / p[0] for o, p in zip(ours, peers, strict=True))
            rows.append(
                {
                    "case": case,
                    "ours": round(statistics.median(map(sum, ours)), 3),
                    "peer": round(statistics.median(map(sum, peers)), 3),
                    "unit": "CPU s",
                    "ratio": round(statistics.median(ratios), 3),
                    "user": round(user, 3),
                    "spread": [round(ratios[0], 3), round(ratios[-1], 3)],
                }
            )
    machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version(),
               "pandas": pd.__version__,
               "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}  # fmt: skip
    if options.json:
        print(json.dumps({"benchmark": "load_csv", "machine": machine, "rows": rows}))
        return
    for row in rows:
        low, high = row["spread"]  # type: ignore[misc]
        print(
            f"{row['case']:12} {row['ours']:8} s   pandas {row['peer']:8} s   ratio {row['ratio']} ({low}–{high})"
            f"   user {row['user']}"
        )


if __name__ == "__main__":
    main()
