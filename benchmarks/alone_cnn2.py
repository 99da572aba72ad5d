"""How good a convolutional network is that a site trains on its own CIFAR-10 pictures alone.

    python benchmarks/alone_cnn2.py [--seeds 5] [--sites 2] [--epochs 30] [--rate 0.001] [--json]

The variant `alone-cnn2` of studies/together-beats-alone-cifar.toml, trained a fixed number of epochs without the search over
training lengths (a site takes minutes of one core), at some of the sites of each seed: others for every seed. It is tested
after every few epochs on the common test set. The best of these tests is printed too: nobody could choose it without the
test set, so it is more than alone can reach.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import confrere  # noqa: E402
from confrere.evaluate.compare import variant  # noqa: E402
from confrere.site.open_sites import open_sites  # noqa: E402
from confrere.study import load, merged  # noqa: E402

STUDY = Path(__file__).parent.parent / "studies" / "together-beats-alone-cifar.toml"
EVERY = 10


def tests_of(study: confrere.Study, sites: list[str]) -> dict[str, list[float]]:
    """Accuracy on the common test of each site's network, after every few epochs."""
    federation = open_sites(study)
    few = replace(federation, sites={name: federation.sites[name] for name in sites})
    run = confrere.simulate(study, few)
    found: dict[str, list[float]] = {name: [] for name in sites}
    for event in run.events:
        if event.kind == "evaluated" and event.site in found:
            scores: Any = event.data["common_test"]
            found[event.site].append(float(scores["model"]["accuracy"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--sites", type=int, default=2, help="of the eight, others for every seed")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    base = merged(
        variant(load(STUDY), "alone-cnn2"),
        {
            "rounds": options.epochs,
            "training": {"tune": False, "batch_size": 64, "learning_rate": options.rate},
            "evaluation": {"every": EVERY, "select": "last"},
        },
        "benchmark",
    )
    rows = []
    for seed in range(options.first, options.first + options.seeds):
        study = replace(base, seed=seed)
        names = sorted(open_sites(study).sites)
        chosen = [names[(seed * options.sites + k) % len(names)] for k in range(options.sites)]
        for name, scores in tests_of(study, chosen).items():
            rows.append({"seed": seed, "site": name, "last": scores[-1], "best": max(scores), "all": scores})
            if not options.json:
                print(
                    f"seed {seed} {name}: last {scores[-1]:.3f}, best {max(scores):.3f}",
                    *(f"{s:.3f}" for s in scores),
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for key in ("last", "best"):
        values = [float(row[key]) for row in rows]  # type: ignore[arg-type]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{key}: {statistics.mean(values):.3f} ± {spread:.3f} over {len(values)} sites")


if __name__ == "__main__":
    sys.exit(main())
