"""Federated averaging at speed: site-updates per second beside a bare PyTorch loop and other frameworks.

    python benchmarks/simulation.py [--json] [--rounds 40] [--repeats 3] [--sites 1000] [--peers-python PATH | --no-peers]

1,000 sites of 50 records, 50 drawn for each round, a 32-64-2 network, batches of 10, one epoch of SGD with rate 0.1, no
evaluation. Ours runs through the ordinary API (`confrere.simulate`). In each repeat every contender runs in shuffled
order, each in a process of its own with one thread, and its start-up is not counted: CPU seconds are taken between
the second round and the last. A contender whose final model has another loss than the bare loop's does not count.

Peers: `pip install 'confrere[bench]'` brings Opacus. pfl and Flower ask for other versions of dp-accounting, certifi and Ray
than Confrère does, so they go into an environment of their own, whose Python is named with `--peers-python`:

    python -m venv PEERS && PEERS/bin/pip install -c constraints.txt -r benchmarks/peers.txt

What could not be run is printed with the reason. Flower's CPU seconds are those of all its processes, Ray's included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from averaging import BATCH, DRAWN, RATE, RECORDS, final_loss, network, records  # noqa: E402
from machine import machine, spread  # noqa: E402

NOISE, CLIP = 1.0, 1.0
TOLERANCE = 0.05
"""A contender's final loss may differ so much from the bare loop's: they draw other sites and other orders."""

PLAIN = ("ours", "bare", "pfl", "flwr")
PRIVATE = ("ours-dp", "opacus")
OTHERS = ("pfl", "flwr")
GOALS = {"bare": 8.0, "opacus": 16.0}


def ours(sites: int, rounds: int, private: bool = False) -> tuple[float, float]:
    """`confrere.simulate`; the clock starts when the first round does."""
    import confrere
    from confrere.data.records import Federation, Records, SiteData
    from confrere.data.tasks import Task
    from confrere.study import Evaluation
    from confrere.study.churn import Churn

    x, y = records(sites)
    none = Records(x[0, :0], y[0, :0])
    data = {
        f"s{k:05d}": SiteData(f"s{k:05d}", Records(x[k], y[k]), none, none, RECORDS) for k in range(sites)
    }
    federation = Federation("made up", Task("multiclass", ("0", "1"), (32,)), data)
    steps = {"optimiser": "sgd", "learning_rate": RATE, "momentum": 0.0, "weight_decay": 0.0}
    study = confrere.Study(
        name="simulation",
        rounds=rounds,
        strategy="fedavg",
        topology="star",
        models=confrere.Models("linear", {"name": "mlp", "hidden": [64]}),
        training=confrere.Training(**steps, batch_size=BATCH, epochs=1, protected=dict(steps)),  # type: ignore[arg-type]
        privacy=confrere.Privacy(
            noise_multiplier=NOISE,
            delta=1e-5,
            sampling="poisson",
            batch_size=BATCH,
            clipping={"name": "flat", "norm": CLIP},
        )
        if private
        else None,
        churn=Churn(participation=DRAWN),
        evaluation=Evaluation(every=rounds + 1),  # and once at the end, which is not counted
    )
    marks: list[float] = []

    def listen(event: Any) -> None:
        if event.kind == "round-started":
            marks.append(time.process_time())

    run = confrere.simulate(study, federation, listeners=(listen,))
    last = [e.data["present"] for e in run.events if e.kind == "round-started"][-1]
    model = network()
    model.load_state_dict(dict(run.models[last[0]]["model"].params))
    return (marks[-1] - marks[1]) * rounds / (rounds - 2), final_loss(model, sites)


def bare(sites: int, rounds: int) -> tuple[float, float]:
    """A loop in plain PyTorch, as short as one would write it and without needless copies."""
    x, y = records(sites)
    model = network()
    weights = list(model.parameters())
    draw = torch.Generator().manual_seed(3)
    for number in range(rounds):
        if number == 1:
            began = time.process_time()
        start = [p.detach().clone() for p in weights]
        total = [torch.zeros_like(p) for p in start]
        for site in torch.randperm(sites, generator=draw)[:DRAWN].tolist():
            with torch.no_grad():
                for p, q in zip(weights, start, strict=True):
                    p.copy_(q)
            optimiser = torch.optim.SGD(weights, lr=RATE)
            order = torch.randperm(RECORDS, generator=draw)
            for at in range(0, RECORDS, BATCH):
                rows = order[at : at + BATCH]
                optimiser.zero_grad()
                F.cross_entropy(model(x[site][rows]), y[site][rows]).backward()
                optimiser.step()
            for t, p in zip(total, weights, strict=True):
                t.add_(p.detach(), alpha=1 / DRAWN)
        with torch.no_grad():
            for p, t in zip(weights, total, strict=True):
                p.copy_(t)
    return (time.process_time() - began) * rounds / (rounds - 1), final_loss(model, sites)


def opacus(sites: int, rounds: int) -> tuple[float, float]:
    """The same loop with unmodified Opacus: Poisson batches, per-record clipping, noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore")
    x, y = records(sites)
    model = GradSampleModule(network())
    draw = torch.Generator().manual_seed(3)
    for number in range(rounds):
        if number == 1:
            began = time.process_time()
        start = {n: p.detach().clone() for n, p in model.state_dict().items()}
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for site in torch.randperm(sites, generator=draw)[:DRAWN].tolist():
            model.load_state_dict(start)
            optimiser = DPOptimizer(
                torch.optim.SGD(model.parameters(), lr=RATE), noise_multiplier=NOISE, max_grad_norm=CLIP,
                expected_batch_size=BATCH,
            )  # fmt: skip
            for _ in range(RECORDS // BATCH):
                rows = (torch.rand(RECORDS, generator=draw) < BATCH / RECORDS).nonzero()[:, 0]
                if not len(rows):
                    continue
                optimiser.zero_grad()
                F.cross_entropy(model(x[site][rows]), y[site][rows]).backward()
                optimiser.step()
            for n, p in model.state_dict().items():
                total[n] += p / DRAWN
        model.load_state_dict(total)
    return (time.process_time() - began) * rounds / (rounds - 1), final_loss(model._module, sites)


def peers() -> Any:
    import peers as found

    return found


CONTENDERS: dict[str, Callable[[int, int], tuple[float, float]]] = {
    "ours": ours,
    "bare": bare,
    "pfl": lambda sites, rounds: peers().pfl(sites, rounds),
    "flwr": lambda sites, rounds: peers().flwr(sites, rounds),
    "ours-dp": lambda sites, rounds: ours(sites, rounds, private=True),
    "opacus": opacus,
}


def alone(name: str, options: argparse.Namespace, sites: int) -> tuple[float, float]:
    """Site-updates per CPU second and final loss of one contender, in a fresh process."""
    python = options.peers_python if name in OTHERS else sys.executable
    rounds = options.rounds  # the same for all, so that final losses can be compared
    command = [
        python,
        os.path.abspath(__file__),
        "--one",
        name,
        "--sites",
        str(sites),
        "--rounds",
        str(rounds),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.patience)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it did not end within {options.patience:g} s") from None
    except OSError as error:
        raise RuntimeError(f"{python}: {error.strerror}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(said[-1] if said else "it failed")
    seconds, loss = json.loads(done.stdout.splitlines()[-1])
    return rounds * DRAWN / seconds, loss


def measured(
    options: argparse.Namespace,
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, str]]:
    """Speeds and losses of all contenders, interleaved; and why some could not run."""
    names = [n for n in CONTENDERS if not (options.no_peers and n in OTHERS)]
    speeds: dict[str, list[float]] = {n: [] for n in names}
    losses: dict[str, list[float]] = {n: [] for n in names}
    missing: dict[str, str] = {}
    order = random.Random(0)
    for _ in range(options.repeats):
        order.shuffle(names)
        for name in names:
            if name in missing:
                continue
            try:
                speed, loss = alone(name, options, options.sites)
            except RuntimeError as error:
                missing[name] = str(error)
                continue
            speeds[name].append(speed)
            losses[name].append(loss)
            print(f"  {name:8} {speed:10.0f} site-updates/s   loss {loss:.3f}", file=sys.stderr, flush=True)
    return speeds, losses, missing


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    speeds, losses, missing = measured(options)
    for group in (PLAIN, PRIVATE):
        mine = group[0]
        if not speeds.get(mine):
            raise SystemExit(f"{mine}: {missing.get(mine, 'it did not run')}")
        for peer in group[1:]:
            row: dict[str, Any] = {"case": f"{mine} / {peer}", "unit": "site-updates per CPU second"}
            if not speeds.get(peer):
                yield {**row, "ours": statistics.median(speeds[mine]), "peer": None, "ratio": None, "spread": [],
                       "unavailable": missing.get(peer, "not asked for")}  # fmt: skip
                continue
            ratios = [a / b for a, b in zip(speeds[mine], speeds[peer], strict=False)]
            ours_loss, peer_loss = statistics.median(losses[mine]), statistics.median(losses[peer])
            yield {
                **row,
                "ours": statistics.median(speeds[mine]),
                "peer": statistics.median(speeds[peer]),
                "ratio": statistics.median(ratios),
                "spread": spread(ratios),
                "goal": GOALS.get(peer),
                "loss": [ours_loss, peer_loss],
                "counts": abs(ours_loss - peer_loss) < TOLERANCE,
            }
    ratios = []
    for _ in range(options.repeats):
        few, many = (alone("ours", options, n)[0] for n in (options.sites, options.sites * 4))
        ratios.append(many / few)
    yield {
        "case": f"ours, {options.sites * 4} sites / {options.sites} sites", "unit": "site-updates per CPU second",
        "ours": many, "peer": few, "ratio": statistics.median(ratios), "spread": spread(ratios), "goal": 1.0,
    }  # fmt: skip


def show(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return f"{row['case']:28} ours {row['ours']:8.0f}   unavailable: {row['unavailable']}"
    low, high = row["spread"]
    text = f"{row['case']:28} ours {row['ours']:8.0f}   peer {row['peer']:8.0f}"
    text += f"   ratio {row['ratio']:6.1f} ({low:.1f}–{high:.1f})"
    if row.get("goal"):
        text += f"   goal {row['goal']:g}"
    if "loss" in row:
        text += f"   loss {row['loss'][0]:.3f} / {row['loss'][1]:.3f}" + (
            "" if row["counts"] else " DOES NOT COUNT"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--no-peers", action="store_true", help="leave pfl and flwr out")
    parser.add_argument("--peers-python", default=sys.executable, help="the Python that has pfl and flwr")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds that a contender may take")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(CONTENDERS[options.one](options.sites, options.rounds)))
        return
    found = list(rows(options))
    if options.json:
        print(json.dumps({"benchmark": "simulation", "machine": machine(), "rows": found}, indent=2))
    else:
        print("\n".join(map(show, found)))


if __name__ == "__main__":
    main()
