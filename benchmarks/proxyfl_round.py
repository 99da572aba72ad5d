"""One round of ProxyFL beside unmodified Opacus doing the same round.

    python benchmarks/proxyfl_round.py [--json] [--repeats 3]

8 sites of 1,000 records (784 inputs, 10 classes), private model and proxy both 784-200-200-10, batches of 250, an epoch of
DP-SGD, mutual learning as published (each model learns from the other), exponential graph. One thread; everything runs in
one process, interleaved: in each repeat our round (through the runtime: charge, train, gate, exchange, combine), then the
same round with Opacus, asking its accountant for ε at every step as the published program does, and once more
without asking. `ours` and `peer` are CPU seconds per round, start-up apart; `ratio` is peer over ours. Without Opacus
(`pip install 'confrere[bench]'`) its rows give the reason instead of a ratio.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
import warnings
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from machine import machine, spread  # noqa: E402
from stepped import SteppedStudy, sites_with  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import confrere  # noqa: E402
from confrere.study import Evaluation  # noqa: E402

SITES, RECORDS, BATCH, RATE = 8, 1000, 250, 1e-3
NOISE, CLIP, SHARE = 1.0, 1.0, 0.5
GOALS = {"asking at every step": 25.0, "not asking": 15.0}


def records() -> list[tuple[Tensor, Tensor]]:
    """The same records for Opacus."""
    return [(s.train.inputs, s.train.targets) for s in sites_with(RECORDS, SITES).values()]


class Ours(SteppedStudy):
    """The study, put together once; each call of `round` is one more round of it."""

    def __init__(self, rounds: int, trainer: str) -> None:
        mlp = {"name": "mlp", "hidden": [200, 200]}
        adam = {"optimiser": "adam", "learning_rate": RATE, "weight_decay": 1e-4}
        study = confrere.Study(
            name="proxyfl-round",
            rounds=rounds,
            strategy={
                "name": "proxyfl", "private": "distil", "alpha": SHARE, "beta": SHARE, "teacher": "private",
                "mass": "equal",
            },
            topology={"name": "exponential", "keep": 0.0, "rota": "published"},
            models=confrere.Models(mlp, mlp),
            training=confrere.Training(**adam, batch_size=BATCH, protected=dict(adam), tune=False),  # type: ignore[arg-type]
            privacy=confrere.Privacy(
                noise_multiplier=NOISE, delta=1e-5, sampling="poisson", batch_size=BATCH, accountant="rdp",
                clipping={"name": "flat", "norm": CLIP},
            ),
            evaluation=Evaluation(every=rounds + 1),
        )  # fmt: skip
        super().__init__(study, sites_with(RECORDS, SITES), trainer)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


class Opacus:
    """The round as one writes it with Opacus: hooks, DPOptimizer, its RDP accountant."""

    def __init__(self, ask: bool) -> None:
        from opacus import GradSampleModule
        from opacus.accountants import RDPAccountant
        from opacus.optimizers import DPOptimizer

        warnings.filterwarnings("ignore")
        self.ask, self.data = ask, records()
        self.draw = torch.Generator().manual_seed(3)
        self.sites: list[Any] = []
        for _ in range(SITES):
            private, proxy = network(), GradSampleModule(network())
            plain = torch.optim.Adam(private.parameters(), lr=RATE, weight_decay=1e-4)
            noisy = DPOptimizer(
                torch.optim.Adam(proxy.parameters(), lr=RATE, weight_decay=1e-4), noise_multiplier=NOISE,
                max_grad_norm=CLIP, expected_batch_size=BATCH,
            )  # fmt: skip
            self.sites.append((private, proxy, plain, noisy, RDPAccountant()))

    def round(self) -> None:
        for (private, proxy, plain, noisy, accountant), (x, y) in zip(self.sites, self.data, strict=True):
            for _ in range(RECORDS // BATCH):
                rows = (torch.rand(RECORDS, generator=self.draw) < BATCH / RECORDS).nonzero()[:, 0]
                inputs, targets = x[rows], y[rows]
                own, common = private(inputs), proxy(inputs)
                plain.zero_grad()
                noisy.zero_grad()
                lesson(own, common.detach(), targets).backward()
                lesson(common, own.detach(), targets).backward()
                plain.step()
                noisy.step()
                accountant.step(noise_multiplier=NOISE, sample_rate=BATCH / RECORDS)
                if self.ask:
                    accountant.get_epsilon(delta=1e-5)
        sent = [{n: p.detach().clone() for n, p in s[1].named_parameters()} for s in self.sites]
        for k, site in enumerate(self.sites):
            with torch.no_grad():
                for n, p in site[1].named_parameters():
                    p.copy_(sent[k - 1][n])


def lesson(student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    """Half the labels, half what the other model says."""
    apart = F.kl_div(
        F.log_softmax(student, 1), F.log_softmax(teacher, 1), reduction="batchmean", log_target=True
    )
    return (1 - SHARE) * F.cross_entropy(student, targets) + SHARE * apart


def cpu(contender: Any) -> float:
    began = time.process_time()
    contender.round()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # accountants say which orders they leave out
    times: dict[str, list[float]] = {"cohort": [], "one": [], **{name: [] for name in GOALS}}
    contenders: dict[str, Any] = {t: Ours(options.repeats + 2, t) for t in ("cohort", "one")}
    missing = ""
    try:
        contenders |= {name: Opacus(name.startswith("asking")) for name in GOALS}
    except ImportError as error:
        missing = f"{error}; pip install 'confrere[bench]'"
    for name in ("cohort", "one"):
        contenders[name].round()
    for _ in range(options.repeats):
        for name, contender in contenders.items():
            times[name].append(cpu(contender))
            print(f"  {name:22} {times[name][-1]:8.3f} CPU s", file=sys.stderr, flush=True)
    rows = []
    for name, goal in GOALS.items():
        if missing:
            rows.append(
                {
                    "case": f"Opacus, {name}", "ours": statistics.median(times["cohort"]), "peer": None,
                    "unit": "CPU s per round", "ratio": None, "spread": [], "goal": goal, "unavailable": missing,
                }
            )  # fmt: skip
            continue
        ratios = [peer / own for own, peer in zip(times["cohort"], times[name], strict=True)]
        rows.append(
            {
                "case": f"Opacus, {name}", "ours": statistics.median(times["cohort"]),
                "peer": statistics.median(times[name]), "unit": "CPU s per round", "ratio": statistics.median(ratios),
                "spread": spread(ratios), "goal": goal,
            }
        )  # fmt: skip
    ratios = [one / own for own, one in zip(times["cohort"], times["one"], strict=True)]
    rows.append(
        {
            "case": "our own sites one at a time", "ours": statistics.median(times["cohort"]),
            "peer": statistics.median(times["one"]), "unit": "CPU s per round", "ratio": statistics.median(ratios),
            "spread": spread(ratios),
        }
    )  # fmt: skip
    if options.json:
        print(json.dumps({"benchmark": "proxyfl_round", "machine": machine(), "rows": rows}, indent=2))
        return
    for row in rows:
        if row["ratio"] is None:
            print(f"{row['case']:32} ours {row['ours']:7.3f} CPU s   unavailable: {row['unavailable']}")
            continue
        low, high = row["spread"]
        print(
            f"{row['case']:32} ours {row['ours']:7.3f}   peer {row['peer']:7.3f} CPU s"
            f"   ratio {row['ratio']:5.1f} ({low:.1f}–{high:.1f})"
            + (f"   goal {row['goal']:g}" if "goal" in row else "")
        )


if __name__ == "__main__":
    main()
