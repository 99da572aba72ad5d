"""What a site and a message cost a simulation, in time and memory; what two workers gain; and what many sites would need.

    python benchmarks/scale.py [--json] [--repeats 5] [--quick]

*Workers*: the same study with one process and with two, in turns. Time counts from the first round to the end of the
last. `ratio` is by the clock, and depends on whether both cores are free; `cores` is the processor time of one process
over the longest way through two (the busier worker, and then the parent): what a clock would show on two free cores.
*Site*: processor time of a site's round, and the memory that a further site takes, beside the estimate before a start.
*Sharing*: what a worker has of its own beside what it shares with its parent.
*Message*: processor time of a parcel in memory, between workers (in batches), and spelled for the wire.
*Needs*: 10, 1,000 and 100,000 sites, from these numbers.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from confrere.core.custody import Custody, public
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.simulation.backends import simulation_on
from confrere.simulation.memory_estimate import estimate_memory
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.study import Data, Evaluation, Models, Privacy, Study, Training
from confrere.transport import batch, wire

MLP = {"name": "mlp", "hidden": [64]}


def table(sites: int, records: int, columns: int = 32) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    out = {}
    for k in range(sites):
        x = rng.normal(size=(records, columns)).astype("float32")
        out[f"site-{k:06d}"] = (x, (x[:, 0] - x[:, 1] + rng.normal(size=records) > 0).astype(int))
    return out


def study(case: str, rounds: int) -> Study:
    """ProxyFL with privacy, or plain averaging by gossip; both over an exponential graph."""
    private = case == "proxyfl"
    return Study(
        name="scale",
        rounds=rounds,
        strategy={"name": "proxyfl", "private": "distil"} if private else "avgpush",
        models=Models(MLP, MLP),
        training=Training(tune=False, batch_size=50, learning_rate=0.05),
        privacy=Privacy(epsilon=8.0, delta=1e-5, batch_size=50) if private else None,
        evaluation=Evaluation(every=rounds),
        data=Data(one_class="allow"),
    )


def timed(found: Study, sites: dict[str, Any], workers: int) -> dict[str, float]:
    """One run; seconds from its first round to its end, and for each round after the first."""
    marks: dict[str, tuple[float, float]] = {}
    starts: list[float] = []

    def mark(event: Event) -> None:
        if event.kind in ("round-started", "run-finished"):
            marks.setdefault(event.kind, (time.perf_counter(), time.process_time()))
        if event.kind == "round-started":
            starts.append(time.perf_counter())

    simulation = simulation_on("memory", workers, found, open_sites(found, sites))
    simulation.run(None, (mark,))
    (began, cpu), (ended, cpu_after) = marks["round-started"], marks["run-finished"]
    others = getattr(simulation, "processor_seconds", [])
    return {
        "wall": ended - began,
        "round": (starts[-1] - starts[1]) / (len(starts) - 2),
        "here": cpu_after - cpu,
        "longest": cpu_after - cpu + max(others, default=0.0),
        "all": cpu_after - cpu + sum(others),
    }


def two_workers(case: str, sites: int, records: int, rounds: int, repeats: int) -> dict[str, Any]:
    found, data = study(case, rounds), table(sites, records)
    timed(found, data, 1)
    runs = [(timed(found, data, 1), timed(found, data, 2)) for _ in range(repeats)]
    wall = [one["wall"] / two["wall"] for one, two in runs]
    rates = [one["round"] / two["round"] for one, two in runs]
    cores = [one["here"] / two["longest"] for one, two in runs]
    return {
        "case": f"two workers, {case}, {sites} sites of {records} records",
        "ours": statistics.median(two["wall"] for _, two in runs),
        "peer": statistics.median(one["wall"] for one, _ in runs),
        "unit": f"seconds for {rounds} rounds and all that is done once",
        "ratio": statistics.median(wall),
        "spread": [min(wall), max(wall)],
        "rounds_ratio": statistics.median(rates),
        "rounds_spread": [min(rates), max(rates)],
        "cores": statistics.median(cores),
        "cores_spread": [min(cores), max(cores)],
        "more_processor_time": statistics.median(two["all"] / one["here"] for one, two in runs),
    }


def sharing() -> dict[str, Any]:
    """What two workers have of their own in the middle of a run, and what they share with their parent."""
    found: list[dict[str, int]] = []

    def look(event: Event) -> None:
        if event.kind == "round-started" and event.round == 1:
            for child in multiprocessing.active_children():
                with open(f"/proc/{child.pid}/smaps_rollup", encoding="ascii") as file:
                    lines = file.read().splitlines()[1:]
                found.append({line.split(":")[0]: int(line.split()[1]) for line in lines})

    plain = study("avgpush", 2).with_(training=Training(tune=False, batch_size=5000))
    data = table(8, 200_000)
    simulation_on("memory", 2, plain, open_sites(plain, data), trainer="one").run(None, (look,))
    return {
        "case": "a worker's own memory, 4 of 8 sites of 200000 records",
        "ours": statistics.mean(f["Private_Dirty"] for f in found) / 1e3,
        "unit": "MB",
        "resident_mb": statistics.mean(f["Rss"] for f in found) / 1e3,
        "records_mb": sum(x.nbytes + y.nbytes for x, y in data.values()) / 1e6,
    }


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def one_site(case: str, few: int, many: int, records: int, rounds: int) -> dict[str, Any]:
    """Time and memory of a site, from the difference between few sites and many, each in a process of its own."""
    found = {n: json.loads(subprocess.run(
        [sys.executable, __file__, "--one", case, str(n), str(records), str(rounds)],
        check=True, capture_output=True, text=True,
    ).stdout) for n in (few, many)}  # fmt: skip
    each = (found[many]["memory"] - found[few]["memory"]) / (many - few)
    return {
        "case": f"a site, {case}, {records} records",
        "ours": (found[many]["seconds"] - found[few]["seconds"]) / (many - few) / rounds * 1e3,
        "unit": "processor ms a round",
        "start_ms": (found[many]["start"] - found[few]["start"]) / (many - few) * 1e3,
        "memory_kb": each / 1e3,
        "estimated_kb": found[many]["estimated"] / many / 1e3,
        "sent_bytes": found[many]["sent"],
    }


def measure_one(case: str, sites: int, records: int, rounds: int) -> dict[str, float]:
    found, data = study(case, rounds), table(sites, records)
    before = resident()
    federation = open_sites(found, data)
    estimated = estimate_memory(found, federation)
    began = time.process_time()
    simulation = Simulation(found, federation)
    simulation.prepare()
    start = time.process_time() - began
    began = time.process_time()
    run = simulation.run()
    seconds = time.process_time() - began - start
    return {
        "memory": resident() - before,
        "estimated": estimated.total,
        "seconds": seconds,
        "start": start,
        "sent": next(e.data["bytes"] for e in run.events if e.kind == "sent"),
    }


def messages(repeats: int) -> list[dict[str, Any]]:
    """A parcel with the model of this benchmark: how long each way of handing it on takes, in processor time."""
    model = {
        "0.weight": torch.randn(64, 32),
        "0.bias": torch.randn(64),
        "2.weight": torch.randn(1, 64),
        "2.bias": torch.randn(1),
    }
    many = [
        Parcel(
            "scale-000000000000-0", 0, 3, 0, f"site-{n:06d}", f"site-{n + 1:06d}", 3,
            Model(Params(model), "mlp", Custody.PROTECTED), {"mass": public(25.0), "ledger": public(3)},
        )
        for n in range(200)
    ]  # fmt: skip
    ways = {
        "in memory (its size is worked out)": lambda: [wire.size(p) for p in many],
        "between workers": lambda: batch.decode(batch.encode(many)),
        "spelled for the wire": lambda: [wire.decode(wire.encode(p)) for p in many],
    }
    out = []
    for name, way in ways.items():
        way()
        found = []
        for _ in range(repeats):
            began = time.process_time()
            way()
            found.append((time.process_time() - began) / len(many) * 1e6)
        out.append(
            {
                "case": f"a message, {name}", "ours": statistics.median(found), "unit": "processor µs",
                "spread": [min(found), max(found)], "bytes": wire.size(many[0]),
            }
        )  # fmt: skip
    return out


def needs(site: dict[str, Any], rounds: int = 20) -> list[dict[str, Any]]:
    """What so many sites would take if each costs what one was measured to cost: a projection."""
    return [
        {
            "case": f"{count:,} sites, {rounds} rounds, {site['case'].split(', ')[1]} (projected)",
            "ours": count * (rounds * site["ours"] + site["start_ms"]) / 1e3 / 3600,
            "unit": "core hours",
            "memory_gb": count * site["memory_kb"] / 1e6,
            "gossip_gb_a_round": count * site["sent_bytes"] / 1e9,
            "complete_gb_a_round": count * (count - 1) * site["sent_bytes"] / 1e9,
            "centre_gb_a_round": 2 * (count - 1) * site["sent_bytes"] / 1e9,
        }
        for count in (10, 1_000, 100_000)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10, help="how many rounds two workers are timed over")
    parser.add_argument(
        "--only", choices=("workers", "sharing", "site", "message"), help="leave the rest out"
    )
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.one:
        case, *numbers = asked.one
        print(json.dumps(measure_one(case, *map(int, numbers))))
        return
    rows: list[dict[str, Any]] = []
    if asked.only in (None, "message"):
        rows += messages(asked.repeats)
    if asked.only in (None, "site"):
        many = 200 if asked.quick else 1000
        for case in ("proxyfl", "avgpush"):
            rows.append(one_site(case, many // 4, many, 50, 4))
        rows += needs(rows[-2])
    if asked.only in (None, "sharing"):
        rows.append(sharing())
    if asked.only in (None, "workers"):
        for case, sites, records in (("proxyfl", 32, 2000), ("avgpush", 1024, 200)):
            size = (sites // 4, records, 3) if asked.quick else (sites, records, asked.rounds)
            rows.append(two_workers(case, *size, asked.repeats))
    machine = {
        "machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count(),
        "load": os.getloadavg()[0], "python": platform.python_version(), "torch": torch.__version__,
    }  # fmt: skip
    if asked.json:
        print(
            json.dumps({"benchmark": "scale", "machine": machine, "rows": rows}, indent=1, ensure_ascii=False)
        )
        return
    print(", ".join(f"{k} {v}" for k, v in machine.items()))
    for row in rows:
        more = {k: v for k, v in row.items() if k not in ("case", "ours", "unit")}
        said = ", ".join(f"{k} {_figure(v)}" for k, v in more.items())
        print(f"{row['case']}: {_figure(row['ours'])} {row['unit']}; {said}")


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return "–".join(_figure(v) for v in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
