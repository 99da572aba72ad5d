"""How sure a gain is: a paired bootstrap over test records, and over seeds.

The same records are drawn for both ways of learning, so what makes a record hard cancels out. A record that is in
the test sets of several seeds is drawn in all of them or in none, since seeds share their records. Seeds are drawn
as well: noise and partition are luck, too. The interval is that of the percentiles (Efron and Tibshirani 1993).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from confrere.learning.evaluate import FLOOR, HIGHER_IS_BETTER
from confrere.runtime.said import Said

Draws = NDArray[np.float64]
Interval = tuple[float, float]

DRAWS = 1000
ROOM = 20_000_000
"""Most weights at once: a common test set of 10,000 records with ten classes gets fewer draws."""


@dataclass(frozen=True)
class Intervals:
    """95 % intervals of what a strategy gains over alone, on the mean over sites and at each site."""

    mean: Mapping[str, Interval]
    sites: Mapping[str, Mapping[str, Interval]]


def intervals(
    ways: Mapping[str, Sequence[Mapping[str, Said]]], reference: str, seed: int = 0, draws: int = DRAWS
) -> dict[str, Intervals]:
    """For each way of learning {name: [one {site: said} per seed]} its gains over `reference`.

    A way whose records are not those of the reference is left out: there are no pairs.
    """
    alone = ways[reference]
    sites = sorted(set.intersection(*(set(run) for run in alone))) if alone else []
    paired = {n: runs for n, runs in ways.items() if n != reference and _same(runs, alone, sites)}
    if not sites or not paired:
        return {}
    known = np.unique(np.concatenate([run[s].marks for run in alone for s in sites]))
    classes = max(run[s].outputs.shape[1] for run in alone for s in sites)
    draws = max(100, min(draws, ROOM // (len(known) * classes)))
    random = np.random.default_rng(seed)
    drawn = random.poisson(1.0, (draws, len(known))).astype(np.float32)
    luck = random.multinomial(len(alone), [1 / len(alone)] * len(alone), draws).astype(float)
    gains: dict[str, dict[str, list[list[Draws]]]] = {n: {} for n in paired}
    for number, base in enumerate(alone):
        for site in sites:
            weights = drawn[:, np.searchsorted(known, base[site].marks)]
            before = measured(base[site], weights)
            for name, runs in paired.items():
                after = measured(runs[number][site], weights)
                for metric in before.keys() & after.keys():
                    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
                    rows = gains[name].setdefault(metric, [[] for _ in sites])
                    rows[sites.index(site)].append(sign * (after[metric] - before[metric]))
    return {name: _summed_up(found, sites, luck) for name, found in gains.items()}


def _same(
    runs: Sequence[Mapping[str, Said]], alone: Sequence[Mapping[str, Said]], sites: Sequence[str]
) -> bool:
    return len(runs) == len(alone) and all(
        s in run and np.array_equal(run[s].marks, base[s].marks)
        for run, base in zip(runs, alone, strict=True)
        for s in sites
    )


def _summed_up(found: Mapping[str, list[list[Draws]]], sites: Sequence[str], luck: Draws) -> Intervals:
    mean, by_site = {}, dict[str, dict[str, Interval]]()
    for metric, rows in found.items():
        if any(len(row) != luck.shape[1] for row in rows):
            continue  # not measured in every seed
        table = np.array(rows).transpose(2, 0, 1)  # draws × sites × seeds
        for number, site in enumerate(sites):
            by_site.setdefault(site, {})[metric] = _interval(table[:, number], luck)
        with np.errstate(invalid="ignore"):
            here = ~np.isnan(table)
            over_sites = np.where(here, table, 0).sum(1) / here.sum(1)
        mean[metric] = _interval(over_sites, luck)
    return Intervals(mean, by_site)


def _interval(values: Draws, luck: Draws) -> Interval:
    """Of the mean over seeds, each counted as often as it was drawn; a draw without both classes says nothing."""
    here = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means = (np.where(here, values, 0) * luck).sum(1) / (luck * here).sum(1)
    means = means[~np.isnan(means)]
    low, high = np.quantile(means, (0.025, 0.975)) if len(means) else (np.nan, np.nan)
    return float(low), float(high)


def measured(said: Said, weights: NDArray[np.float32]) -> dict[str, Draws]:
    """Each measure in every draw; a draw that does not define it is NaN."""
    targets = said.targets
    if targets.dtype.kind == "f":
        if targets.ndim == 2 and targets.shape[1] > 1:
            return _of_labels(said.outputs.astype(float), targets > 0.5, weights)
        error = np.square(said.outputs.reshape(-1).astype(float) - targets.reshape(-1))
        return {"rmse": np.sqrt(_mean(weights, error)) * said.spread}
    logits = said.outputs.astype(float)
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], 1)
    logs = log_softmax(logits, axis=1)
    truth = np.eye(logs.shape[1])[targets]
    right = (logs.argmax(1) == targets).astype(float)
    held = weights @ truth
    with np.errstate(invalid="ignore", divide="ignore"):
        by_class = (weights @ (truth * right[:, None])) / held
        macro = np.nanmean(np.where(held > 0, by_class, np.nan), axis=1)
    found = {
        "accuracy": _mean(weights, right),
        "macro_accuracy": macro,
        "log_loss": _mean(weights, -np.maximum((logs * truth).sum(1), FLOOR)),
    }
    if logs.shape[1] == 2:
        found["auc"] = areas(logs[:, 1] - logs[:, 0], targets == 1, weights)
    else:
        present = [c for c in range(logs.shape[1]) if (targets == c).any()]
        found["auc"] = _over(np.array([areas(logs[:, c], targets == c, weights) for c in present]))
    return found


def _of_labels(
    logits: NDArray[np.float64], truth: NDArray[np.bool_], weights: NDArray[np.float32]
) -> dict[str, Draws]:
    """Means over labels, each of them yes or no; as `learning.evaluate` measures them."""
    said = logits > 0
    right = (said == truth).astype(float)
    loss = np.minimum(np.logaddexp(0, np.where(truth, -logits, logits)), -FLOOR)
    yes, no = weights @ truth, weights @ ~truth
    hits = weights @ (said & truth)
    with np.errstate(invalid="ignore", divide="ignore"):
        halves = np.array([hits / yes, (weights @ (~said & ~truth)) / no])
        scores = np.where(yes > 0, 2 * hits / (weights @ said + yes), np.nan)
    columns = range(truth.shape[1])
    return {
        "accuracy": _mean(weights, right.mean(1)),
        "macro_accuracy": _over(_over(halves).T),
        "log_loss": _mean(weights, loss.mean(1)),
        "f1": _over(scores.T),
        "auc": _over(np.array([areas(logits[:, c], truth[:, c], weights) for c in columns])),
    }


def _over(each: Draws) -> Draws:
    """The mean over the first axis of what is defined there."""
    here = ~np.isnan(each)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(here, each, 0).sum(0) / here.sum(0))


def _mean(weights: NDArray[np.float32], values: NDArray[np.float64]) -> Draws:
    with np.errstate(invalid="ignore"):
        return np.asarray(weights @ values / weights.sum(1))


def areas(scores: NDArray[np.float64], positive: NDArray[np.bool_], weights: NDArray[np.float32]) -> Draws:
    """The area under the curve in every draw, ties counting half."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    sick = np.add.reduceat(weights[:, order] * positive[order], starts, axis=1)
    well = np.add.reduceat(weights[:, order] * ~positive[order], starts, axis=1)
    below = np.cumsum(well, axis=1) - well / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sick * below).sum(1) / (sick.sum(1) * well.sum(1)), dtype=float)
