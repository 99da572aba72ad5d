"""What masks add to a round: the CPU time of a masked sum beside that of an unmasked round of the same size.

    python benchmarks/masked.py [--json] [--repeats 3]

8 sites of 3,000 records, an MLP with 262,370 numbers (1 MB in single precision), one clipped sum over full batches. The
unmasked round goes through the runtime: charge, train, noise, gate, exchange, step; on one thread, all sites in one process.
The masked sum has the same sites in the same process: keys, shares, masks, signatures, opening. `ours` is the unmasked
round plus the masked sum plus what discrete noise takes longer than rounded noise, `peer` the unmasked round, in CPU
seconds. Further rows show masked sums of a quarter and of four times the size over one of this size: `ratio` is linear if it
is 0.25 and 4.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from machine import machine, spread  # noqa: E402
from stepped import SteppedStudy, sites_with  # noqa: E402

import confrere  # noqa: E402
from confrere.core.sum_terms import SumTerms  # noqa: E402
from confrere.exchange.secure.agreement import Agreement  # noqa: E402
from confrere.exchange.secure.in_process import GivenVector, open_sum, simulated_members  # noqa: E402
from confrere.exchange.secure.messages import AttemptId  # noqa: E402
from confrere.privacy.masked_release import MaskedRelease  # noqa: E402
from confrere.privacy.noise import Secure  # noqa: E402
from confrere.study import Evaluation  # noqa: E402

SITES, RECORDS, HIDDEN, NOISE, CLIP = 8, 3000, 330, 1.5, 1.0
SIZE = 784 * HIDDEN + HIDDEN + HIDDEN * 10 + 10


class Unmasked(SteppedStudy):
    """A study that exchanges gradients, put together once; each call of `round` is one more round of it."""

    def __init__(self, rounds: int) -> None:
        mlp = {"name": "mlp", "hidden": [HIDDEN]}
        study = confrere.Study(
            name="masked",
            rounds=rounds,
            strategy={"name": "fedavg", "exchange": "gradients"},
            models=confrere.Models(mlp, mlp),
            training=confrere.Training(optimiser="adam", learning_rate=1e-3, tune=False),
            privacy=confrere.Privacy(
                noise_multiplier=NOISE, delta=1e-5, sampling="full", clipping={"name": "flat", "norm": CLIP}
            ),
            evaluation=Evaluation(every=rounds + 1),
        )
        super().__init__(study, sites_with(RECORDS, SITES), "one")


class Masked:
    """Masked sums of vectors of one size."""

    def __init__(self, size: int) -> None:
        members, self.keys = simulated_members({f"site{k}": RECORDS for k in range(SITES)})
        self.agreement = Agreement(members, SumTerms(SITES, 2, 2, noise_std=NOISE, clip=CLIP, size=size))
        draw = np.random.default_rng(0)
        vectors = {name: draw.integers(-(2**30), 2**30, size) for name in self.agreement.names}
        self.sources = {name: GivenVector(vector) for name, vector in vectors.items()}
        self.number = 0

    def sum(self) -> None:
        self.number += 1
        open_sum(self.agreement, AttemptId("run", self.number, "proxy", 0, 0), self.sources, self.keys)


def discrete_noise(terms: SumTerms) -> None:
    total, source = torch.zeros(terms.size, dtype=torch.float64), Secure()
    for _ in range(SITES):
        MaskedRelease("proxy", terms, RECORDS, source).release(total)


def rounded_noise(terms: SumTerms) -> None:
    total, source = torch.zeros(terms.size), Secure()
    for _ in range(SITES):
        source.perturb(total, NOISE, CLIP)


def seconds(step: Callable[[], None]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    unmasked = Unmasked(options.repeats + 1)
    sums = {part: Masked(int(SIZE * part)) for part in (0.25, 1.0, 4.0)}
    terms = sums[1.0].agreement.terms
    unmasked.round()
    sums[1.0].sum()
    taken: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        steps: dict[str, Callable[[], None]] = {
            "round": unmasked.round,
            "discrete": lambda: discrete_noise(terms),
            "rounded": lambda: rounded_noise(terms),
            **{f"sum {part:g}": each.sum for part, each in sums.items()},
        }
        for name, step in steps.items():
            taken.setdefault(name, []).append(seconds(step))
    rows = table(taken)
    if options.json:
        print(json.dumps({"benchmark": "masked", "machine": machine(), "rows": rows}))
        return
    for row in rows:
        print(f"{row['case']:44} {row['ours']:7.3f} s {row['peer']:7.3f} s   × {row['ratio']:.2f}")


def table(taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    middle = {name: statistics.median(values) for name, values in taken.items()}
    added = [s + d - r for s, d, r in zip(taken["sum 1"], taken["discrete"], taken["rounded"], strict=True)]
    rows = [
        {
            "case": f"a masked round, {SITES} sites x 1 MB",
            "ours": middle["round"] + statistics.median(added),
            "peer": middle["round"],
            "unit": "CPU s",
            "ratio": 1 + statistics.median(added) / middle["round"],
            "spread": spread([1 + a / r for a, r in zip(added, taken["round"], strict=True)]),
        }
    ]
    for part in (0.25, 4.0):
        values = [a / b for a, b in zip(taken[f"sum {part:g}"], taken["sum 1"], strict=True)]
        rows.append(
            {
                "case": f"the masked sum of {part:g} times the size",
                "ours": middle[f"sum {part:g}"],
                "peer": middle["sum 1"],
                "unit": "CPU s",
                "ratio": statistics.median(values),
                "spread": spread(values),
            }
        )
    return rows


if __name__ == "__main__":
    main()
