"""How time and memory grow with the number of sites: private logistic regression on a small table.

    python benchmarks/growth.py [--json] [--sites 8,64,512,4096] [--rounds 20]

Each site has 60 records of 20 columns; sites gossip (AvgPush on the exponential graph, one parcel per site and round),
train with DP-SGD in one full batch per round, and are evaluated once at the end. Each number of sites runs in a process
of its own: wall and CPU seconds of the rounds, start-up apart, and the peak of its memory over what the libraries
alone take. `ratio` is the cost per site over that of the smallest number. The last row is the goal: 1,000 sites and
20 rounds, start-up included, within a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import torch  # noqa: E402
from machine import machine  # noqa: E402

RECORDS, COLUMNS = 60, 20
MINUTE = 60.0


def peak() -> float:
    """Megabytes at the peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(sites: int, rounds: int) -> dict[str, float]:
    """Run a study with so many sites; what it took."""
    import confrere
    from confrere.study import Evaluation

    libraries = peak()
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(sites, RECORDS, COLUMNS, generator=draw)
    y = (x[..., :4].sum(-1) + torch.randn(sites, RECORDS, generator=draw) > 0).long()
    data: Any = {f"s{k:05d}": (x[k].numpy(), y[k].numpy()) for k in range(sites)}
    study = confrere.Study(
        name="growth",
        rounds=rounds,
        strategy="avgpush",
        models=confrere.Models("linear", "linear"),
        training=confrere.Training(tune=False, protected={"optimiser": "sgd", "learning_rate": 1.0}),
        privacy=confrere.Privacy(epsilon=8.0, delta=1e-4),
        evaluation=Evaluation(every=rounds + 1),
    )
    marks: list[tuple[float, float]] = []

    def listen(event: Any) -> None:
        if event.kind == "round-started":
            marks.append((time.perf_counter(), time.process_time()))

    began = time.perf_counter()
    run = confrere.simulate(study, data, listeners=(listen,))
    whole = time.perf_counter() - began
    (wall, cpu), (last_wall, last_cpu) = marks[0], marks[-1]
    scale = rounds / (rounds - 1)
    return {
        "wall": (last_wall - wall) * scale, "cpu": (last_cpu - cpu) * scale, "whole": whole,
        "memory_mb": peak() - libraries, "accuracy": run.mean["accuracy"],
    }  # fmt: skip


def apart(sites: int, rounds: int) -> dict[str, float]:
    command = [sys.executable, os.path.abspath(__file__), "--one", str(sites), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--sites", default="8,64,512,4096")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(one(options.one, options.rounds)))
        return
    rows: list[dict[str, Any]] = []
    least = 0.0
    for sites in map(int, options.sites.split(",")):
        found = apart(sites, options.rounds)
        each = found["cpu"] / sites / options.rounds
        least = least or each
        rows.append(
            {
                "case": f"{sites} sites", "ours": each * 1e3, "peer": None, "unit": "CPU ms per site and round",
                "ratio": each / least, "spread": [], **found, "kb_per_site": found["memory_mb"] * 1024 / sites,
            }
        )  # fmt: skip
        _show(rows[-1], options.json)
    found = apart(1000, 20)
    rows.append(
        {
            "case": "1000 sites, 20 rounds, start-up included", "ours": found["whole"], "peer": MINUTE, "unit": "s",
            "ratio": found["whole"] / MINUTE, "spread": [], **found, "kb_per_site": found["memory_mb"] * 1.024,
        }
    )  # fmt: skip
    _show(rows[-1], options.json)
    if options.json:
        print(json.dumps({"benchmark": "growth", "machine": machine(), "rows": rows}, indent=2))


def _show(row: dict[str, Any], quietly: bool) -> None:
    print(
        f"{row['case']:42} {row['ours']:8.2f} {row['unit']}   ratio {row['ratio']:5.2f}   rounds {row['wall']:6.1f} s"
        f" ({row['cpu']:.1f} CPU)   memory {row['memory_mb']:6.0f} MB, {row['kb_per_site']:6.0f} KB per site"
        f"   accuracy {row['accuracy']:.3f}",
        file=sys.stderr if quietly else sys.stdout,
        flush=True,
    )


if __name__ == "__main__":
    main()
