"""What sites deploy, with and without a dishonest peer: the collaborative model, or their own where that is better.

    python benchmarks/deployment.py [--study studies/quickstart.toml] [--set strategy=fedavg] [--seeds 3] [--json]

Each study runs with all sites honest and with one that flips the sign of its updates. Figures are means over the honest sites
and seeds, on test records. «needless» is the share of sites that deploy their own model although the collaborative one
has the lower log loss on their test records.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from typing import Any

from machine import machine

from confrere.simulation.backends import simulate
from confrere.site.open_sites import open_sites
from confrere.study import Study, load
from confrere.study.exchange_settings import attacked


def sites_of(study: Study) -> list[dict[str, Any]]:
    """For each honest site: what it deploys, and the metrics of the collaborative model, of its own and of the deployed one."""
    federation = open_sites(study)
    tuned = replace(study.training, tune=True)
    local = study.with_(strategy="local", topology=None, attack=None, combiner=None, training=tuned)
    alone = simulate(local, federation)
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(study, federation, out=f"{folder}/run")
    chosen = {e.site: e.data["model"] for e in run.events if e.kind == "deployed"}
    rows = []
    for name, site in run.sites.items():
        if site.attacker or "auc" not in site.metrics or "auc" not in alone.sites[name].metrics:
            continue
        own = chosen.get(name) == "own"
        metrics = {"together": site.metrics, "alone": alone.sites[name].metrics}
        rows.append({"own": own, **metrics, "deployed": metrics["alone" if own else "together"]})
    return rows


def summary(case: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(which: str) -> dict[str, float]:
        return {m: statistics.fmean(r[which][m] for r in rows) for m in ("auc", "log_loss")}

    needless = [r["own"] and r["together"].log_loss < r["alone"].log_loss for r in rows]
    return {
        "case": case, "sites": len(rows), "own": statistics.fmean(r["own"] for r in rows),
        "needless": statistics.fmean(needless), **{w: mean(w) for w in ("together", "alone", "deployed")},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="studies/quickstart.toml")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for attack in (None, "signflip"):
        found = []
        for seed in range(arguments.seeds):
            study = load(arguments.study, [*arguments.set, f"seed={seed}"])
            found += sites_of(attacked(study, attack, "1" if attack else None))
        rows.append(summary(f"{' '.join(arguments.set) or 'as it is'} / {attack or 'none'}", found))
    if arguments.json:
        print(json.dumps({"benchmark": "deployment", "machine": machine(), "rows": rows}))
        return
    for r in rows:
        figures = (
            f"{w} {r[w]['auc']:.3f} / {r[w]['log_loss']:.3f}" for w in ("together", "alone", "deployed")
        )
        print(
            f"{r['case']}: own model at {r['own']:.0%} ({r['needless']:.0%} needless); AUC / log loss",
            *figures,
        )


if __name__ == "__main__":
    main()
