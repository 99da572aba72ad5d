"""What attackers do to each combiner, and what compression saves and costs, on data that comes along.

    python benchmarks/robustness.py attacks [--json] [--study FILE] [--attackers 3] [--seeds 5] [--rows 'mean;krum']
    python benchmarks/robustness.py stars [--json] [--study FILE] [--attackers 1] [--seeds 5]
    python benchmarks/robustness.py masked [--json] [--study FILE] [--seeds 5]
    python benchmarks/robustness.py compression [--json] [--study FILE] [--seeds 5]

`attacks` trains the study with FedAvg under every attack and combiner, and with avgpush (gossip) as it is and with self-centred
clipping; a figure is the mean over the honest sites, then over seeds, ± one standard deviation over seeds. The last sites
in the order of their names attack. `stars` does so with FedAvg without a server, and with swarm and AFL on a star whose
centre changes or is always the first site, which is honest. `masked` has one attacker among five sites, with masked sums, which
no site can look into, and with unmasked combiners; «deployed» is what sites use in the end, the common model or their own.
`compression` trains FedAvg and avgpush (gossip) with every compression and counts the bytes of the encoded parcels. Every
figure is of the model that travels, after the last round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from machine import machine

from confrere.data.records import Federation
from confrere.exchange.attacks import attacks
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.site.open_sites import open_sites
from confrere.study import Evaluation, Study, load
from confrere.study.masked_settings import Masked

STUDIES = {
    "attacks": "studies/robust-thyroid.toml",
    "stars": "studies/robust-thyroid.toml",
    "masked": "studies/robust-thyroid.toml",
    "compression": "studies/compressed-digits.toml",
}
COMPRESSIONS: dict[str, Any] = {
    "none": None,
    "float16": "float16",
    "int8": "int8",
    "top-k 10 %": {"name": "top-k", "share": 0.1},
    "top-k 1 %": {"name": "top-k", "share": 0.01},
    "random-k 10 %": {"name": "random-k", "share": 0.1},
    "random-k 1 %": {"name": "random-k", "share": 0.01},
}


def combiners(attackers: int) -> dict[str, tuple[str, Any]]:
    """A strategy and a combiner for each row."""
    bears = {"attackers": attackers}
    return {
        "mean": ("fedavg", None),
        **{
            n: ("fedavg", {"name": n, **bears})
            for n in ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "centred-clip")
        },
        "self-centred-clip": ("fedavg", {"name": "self-centred-clip", **bears}),
        "gossip, push-sum": ("avgpush", None),
        "gossip, self-centred-clip": ("avgpush", {"name": "self-centred-clip", **bears}),
    }


def stars(first: str) -> dict[str, tuple[str, Any]]:
    """A strategy and its graph for each row; None is the strategy's own."""
    fixed = {"name": "star", "leader": first}
    return {
        "fedavg, no server": ("fedavg", None),
        "fedavg, an honest centre": ("fedavg", fixed),
        "swarm, centre in turn": ("swarm", None),
        "swarm, an honest centre": ("swarm", fixed),
        "afl, centre in turn": ("afl", None),
        "afl, an honest centre": ("afl", fixed),
    }


MASKS = {"combiner": "masked-sum", "masked": Masked(colluding=1, dropouts=0)}
UNDER_MASKS: dict[str, Any] = {
    "none": None,
    "labelflip": {"name": "labelflip"},
    "signflip 4": {"name": "signflip", "strength": 4.0},
    "signflip 40": {"name": "signflip", "strength": 40.0},
    "signflip 1000": {"name": "signflip", "strength": 1000.0},
    "scaled 100": {"name": "scaled", "factor": 100.0},
    "noise 20": {"name": "noise", "strength": 20.0},
    "noise 1000": {"name": "noise", "strength": 1000.0},
}


def masked_rows(study: Study, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One attacker of five: masked sums beside unmasked combiners, and what the honest sites deploy."""
    five = replace(study.data, partition={**study.data.partition, "sites": 5})  # type: ignore[dict-item]
    study = study.with_(data=five, topology="complete")
    tolerant = {
        name: {"combiner": {"name": name, "attackers": 1}} for name in ("median", "trimmed-mean", "krum")
    }
    settings: dict[str, dict[str, Any]] = {"masked sum": MASKS, "mean": {}, **tolerant}
    opened = {s: open_sites(study.with_(seed=s)) for s in seeds}
    alone = {s: simulate(study.with_(seed=s, strategy="local", topology=None), opened[s]) for s in seeds}
    rows = []
    for name, changes in settings.items():
        for attack, options in UNDER_MASKS.items():
            under = None if options is None else {**options, "attackers": 1}
            runs = {}
            for s in seeds:
                with tempfile.TemporaryDirectory() as folder:  # where a site keeps what it deploys
                    asked = study.with_(seed=s, attack=under, **changes)
                    runs[s] = simulate(asked, opened[s], out=f"{folder}/run")
            rows.append(judged(f"{name} / {attack}", runs, alone))
            say(rows[-1])
    return rows


def judged(case: str, runs: Mapping[int, Run], alone: Mapping[int, Run]) -> dict[str, Any]:
    """AUC of the common model and of what is deployed at four honest sites, and the sums that were discarded."""
    found: dict[str, list[float]] = {"auc": [], "deployed": [], "discarded": []}
    for seed, run in runs.items():
        own = {e.site for e in run.events if e.kind == "deployed" and e.data["model"] == "own"}
        honest = sorted(run.sites)[:-1]
        common = {n: run.sites[n].metrics["auc"] for n in honest}
        found["auc"].append(statistics.fmean(common.values()))
        used = [alone[seed].sites[n].metrics["auc"] if n in own else common[n] for n in honest]
        found["deployed"].append(statistics.fmean(used))
        lost = [e for e in run.events if e.site == honest[0] and "is discarded" in str(e.data.get("text"))]
        found["discarded"].append(float(len(lost)))
    return {"case": case, "seeds": len(runs), "metrics": {m: spread(v) for m, v in found.items()}}


def row(
    case: str, study: Study, seeds: Sequence[int], opened: Mapping[int, Federation], attackers: int = 0
) -> dict[str, Any]:
    """One setting over all seeds."""
    runs = [simulate(study.with_(seed=s), opened[s]) for s in seeds]
    found: dict[str, list[float]] = {}
    for run in runs:
        honest = sorted(run.sites)[
            : len(run.sites) - attackers
        ]  # the same ones, whether the others attack or not
        for metric in run.mean:
            scores = [run.sites[n].proxy_metrics or run.sites[n].metrics for n in honest]
            values = [own[metric] for own in scores if metric in own]
            found.setdefault(metric, []).append(statistics.fmean(values))
        sent = [(s.bytes_sent or 0) / study.rounds for s in run.sites.values()]
        found.setdefault("bytes_a_round", []).append(statistics.fmean(sent))
    return {"case": case, "seeds": len(seeds), "metrics": {m: spread(v) for m, v in found.items()}}


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def rehearse(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    plain = {"topology": None, "evaluation": Evaluation(every=1000, select="last"), "variants": {}}
    study = load(arguments.study or STUDIES[arguments.what]).with_(**plain)
    if arguments.rounds:
        study = study.with_(rounds=arguments.rounds)
    seeds = range(arguments.seeds)
    if arguments.what == "masked":
        return masked_rows(study, seeds)
    opened = {s: open_sites(study.with_(seed=s)) for s in seeds}
    rows = []
    if arguments.what == "attacks":
        for name, (strategy, combiner) in combiners(arguments.attackers).items():
            if arguments.rows and name not in arguments.rows.split(";"):
                continue
            graph = {"name": "random-regular", "degree": 4} if strategy == "avgpush" else None
            for attack in arguments.attacks.split(";"):
                under = None if attack == "none" else {"name": attack, "attackers": arguments.attackers}
                found = study.with_(strategy=strategy, combiner=combiner, topology=graph, attack=under)
                rows.append(row(f"{name} / {attack}", found, seeds, opened, arguments.attackers))
                say(rows[-1])
        return rows
    if arguments.what == "stars":
        for name, (strategy, graph) in stars(min(opened[0].sites)).items():
            for attack in ("none", "signflip"):
                under = None if attack == "none" else {"name": attack, "attackers": arguments.attackers}
                found = study.with_(strategy=strategy, topology=graph, attack=under)
                rows.append(row(f"{name} / {attack}", found, seeds, opened, arguments.attackers))
                say(rows[-1])
        return rows
    for strategy in ("fedavg", "avgpush"):
        for name, compression in COMPRESSIONS.items():
            if strategy == "fedavg" and isinstance(compression, dict):  # refused: its sites would drift apart
                continue
            found = study.with_(strategy=strategy, compression=compression)
            rows.append(row(f"{strategy} / {name}", found, seeds, opened))
            say(rows[-1])
    return rows


def say(found: Mapping[str, Any]) -> None:
    print(found["case"], {m: round(v["mean"], 4) for m, v in found["metrics"].items()}, file=sys.stderr)


def table(rows: Sequence[Mapping[str, Any]], what: str) -> str:
    """Markdown, for docs/records/robustness.md."""
    if what == "masked":
        lines = [
            "| combiner | attack | common model | deployed | rounds discarded |",
            "|---|---|---|---|---|",
        ]
        for r in rows:
            name, attack = r["case"].split(" / ")
            lost = f"{r['metrics']['discarded']['mean']:.1f}"
            lines.append(f"| {name} | {attack} | {cell(r, 'auc')} | {cell(r, 'deployed')} | {lost} |")
        return "\n".join(lines)
    if what != "compression":
        kinds = list(dict.fromkeys(r["case"].split(" / ")[1] for r in rows))
        lines = ["| combiner | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
        for name in dict.fromkeys(r["case"].split(" / ")[0] for r in rows):
            cells = [cell(r, "auc") for r in rows if r["case"].startswith(f"{name} / ")]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)
    lines = [
        "| strategy | compression | bytes a round and site | accuracy | log loss |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        strategy, name = r["case"].split(" / ")
        sent = f"{r['metrics']['bytes_a_round']['mean']:,.0f}"
        lines.append(f"| {strategy} | {name} | {sent} | {cell(r, 'accuracy')} | {cell(r, 'log_loss')} |")
    return "\n".join(lines)


def cell(found: Mapping[str, Any], metric: str) -> str:
    measured = found["metrics"].get(metric)
    return "–" if measured is None else f"{measured['mean']:.3f} ± {measured['std']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["attacks", "stars", "masked", "compression"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--study")
    parser.add_argument("--attackers", type=int, help="3; on stars 1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--attacks", default=";".join(["none", *attacks.names()]))
    parser.add_argument("--rows", help="only these combiners: mean;krum")
    arguments = parser.parse_args()
    arguments.attackers = arguments.attackers or (1 if arguments.what == "stars" else 3)
    torch.set_num_threads(1)
    rows = rehearse(arguments)
    if arguments.json:
        print(
            json.dumps(
                {"benchmark": f"robustness {arguments.what}", "machine": machine(), "rows": rows}, indent=1
            )
        )
    else:
        print(table(rows, arguments.what))


if __name__ == "__main__":
    main()
