"""Compute logistic-regression baselines for each bundled data set, alone and pooled.

    python scripts/dataset_baselines.py            all sets that are here, 5 seeds
    python scripts/dataset_baselines.py thyroid    some

It writes baselines.toml, from which the cards take their sentence. Binary tasks: area under the ROC curve;
others: accuracy. «Alone» is the mean over sites of a model trained on the site's own training part, and
«pooled» of one model trained on all training parts; both are tested on each site's own test part, and on the
common test set where there is one.
"""

from __future__ import annotations

import json
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.errors import DataError
from confrere.data.bundled import federation
from confrere.data.bundled.sets import sets
from confrere.data.records import Federation, Records, concatenate

SEEDS = 5
FEWER_SEEDS = {"cifar10": 3, "fashion-mnist": 3, "mnist": 3}
FEWER: dict[str, dict[str, Any]] = {"movie-reviews": {"records": 4000}, "cifar10": {"records": 1000}}
FILE = Path(__file__).parents[1] / "src/confrere/data/bundled/baselines.toml"


def fit(records: Records, classes: int, penalty: float = 1.0) -> Tensor:
    """Weights of multinomial logistic regression with a ridge penalty, by L-BFGS."""
    x = torch.cat([records.inputs.flatten(1), torch.ones(len(records), 1)], dim=1)
    weights = torch.zeros(x.shape[1], classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weights, records.targets)
        loss = loss + penalty / (2 * len(records)) * weights[:-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call, arg-type, unused-ignore]
    return weights.detach()


def score(weights: Tensor, records: Records, binary: bool) -> float:
    """AUC or accuracy; NaN where a test part has one class only and no AUC."""
    logits = records.inputs.flatten(1) @ weights[:-1] + weights[-1]
    if not binary:
        return float((logits.argmax(dim=1) == records.targets).double().mean())
    margin = (logits[:, 1] - logits[:, 0]).double()
    up, down = margin[records.targets == 1], margin[records.targets == 0]
    if not len(up) or not len(down):
        return float("nan")
    return float(((up[:, None] > down).double() + 0.5 * (up[:, None] == down).double()).mean())


def reach(name: str, seeds: int = SEEDS) -> dict[str, Any]:
    """Means over seeds, and the range over sites; on both tests where there is a common one."""
    opened = [federation(name, seed=seed, **FEWER.get(name, {})) for seed in range(seeds)]
    binary = len(opened[0].task.classes) == 2
    metric = "AUC" if binary else "accuracy"
    scores = [_scores(one, binary) for one in opened]
    shared = "common" in scores[0]
    alone, pooled, words = _compared([s["common" if shared else "own"] for s in scores])
    sentence = f"{metric} {words} over {seeds} seeds (logistic regression)"
    if shared:
        own = _compared([s["own"] for s in scores])
        sentence += (
            f"; that is on the common test. On each site's own test, as skewed as its training part, "
            f"alone reaches {own[0]:.2f} and pooled {own[1]:.2f}"
        )
    return {"sentence": sentence, "metric": metric, "alone": round(alone, 4), "pooled": round(pooled, 4)}


Scores = tuple[list[float], list[float]]


def _compared(scores: list[Scores]) -> tuple[float, float, str]:
    alone, pooled = np.array([s[0] for s in scores]), np.array([s[1] for s in scores])
    with warnings.catch_warnings():  # a site whose test parts all have one class has no AUC
        warnings.simplefilter("ignore", RuntimeWarning)
        own_sites, all_sites = np.nanmean(alone, axis=0), np.nanmean(pooled, axis=0)
    mean_alone, mean_pooled = float(np.nanmean(own_sites)), float(np.nanmean(all_sites))
    spread = float(np.nanstd(np.nanmean(pooled, axis=1) - np.nanmean(alone, axis=1)))
    words = (
        f"alone {mean_alone:.2f} ({_range(own_sites)} over {_counted(own_sites)}), "
        f"pooled {mean_pooled:.2f} ({_range(all_sites)}); gain {mean_pooled - mean_alone:+.2f} ± {spread:.2f}"
    )
    return mean_alone, mean_pooled, words


def _range(values: NDArray[np.float64]) -> str:
    return f"{np.nanmin(values):.2f}–{np.nanmax(values):.2f}"


def _counted(values: NDArray[np.float64]) -> str:
    """«sites», or how many have an AUC at all: a test part of one class has none."""
    judged = int(np.isfinite(values).sum())
    return (
        "sites" if judged == len(values) else f"{judged} of {len(values)} sites, the rest too small to judge"
    )


def _scores(opened: Federation, binary: bool) -> dict[str, Scores]:
    """Alone and pooled, by test: each site's own, and the common one where there is one."""
    classes = len(opened.task.classes)
    sites = list(opened.sites.values())
    everyone = fit(concatenate([s.train for s in sites]), classes)
    fitted = [fit(s.train, classes) for s in sites]
    tests = {"own": [s.test for s in sites]}
    common = [s.common_test for s in sites if s.common_test is not None]
    if common:
        tests["common"] = common
    return {
        which: (
            [score(w, t, binary) for w, t in zip(fitted, parts, strict=True)],
            [score(everyone, t, binary) for t in parts],
        )
        for which, parts in tests.items()
    }


def main(names: list[str]) -> None:
    known = tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    for name in names or sets():
        try:
            known[name] = reach(name, FEWER_SEEDS.get(name, SEEDS))
        except DataError as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
            continue
        print(f"{name}: {known[name]['sentence']}", flush=True)
        _write(known)


def _write(known: dict[str, Any]) -> None:
    lines = ["# Written by `python scripts/dataset_baselines.py`."]
    for name in [n for n in sets() if n in known]:
        rows = (f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in known[name].items())
        lines += ["", f"[{name}]", *rows]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
