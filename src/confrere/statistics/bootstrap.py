"""95 % intervals of gains: a paired bootstrap over test records and over seeds.

The same records are drawn for both ways of learning, so what makes a record hard cancels out. A record that is in
the test sets of several seeds is drawn in all of them or in none, since seeds share their records. Seeds are drawn
as well: noise and partition are luck, too. The interval is that of the percentiles (Efron and Tibshirani 1993).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from confrere.core.metrics import METRICS, Predictions
from confrere.core.metrics import draws as draws_of

Draws = NDArray[np.float64]
Interval = tuple[float, float]

DRAWS = 1000
ROOM = 20_000_000
"""Most weights at once: a common test set of 10,000 records with ten classes gets fewer draws."""


class Judged(Protocol):
    """What a model predicted for test records, and a name for each of them."""

    @property
    def predictions(self) -> Predictions: ...

    @property
    def marks(self) -> NDArray[np.str_]:
        """Whom each record is of; the same in every seed's test set, so that it can be drawn in all of them."""


@dataclass(frozen=True)
class Intervals:
    """95 % intervals of what a strategy gains over alone, on the mean over sites and at each site."""

    mean: Mapping[str, Interval]
    sites: Mapping[str, Mapping[str, Interval]]


def intervals(
    ways: Mapping[str, Sequence[Mapping[str, Judged]]], reference: str, seed: int = 0, draws: int = DRAWS
) -> dict[str, Intervals]:
    """For each way of learning {name: [one {site: predictions} per seed]} its gains over `reference`.

    A way whose records are not those of the reference is left out: there are no pairs.
    """
    alone = ways[reference]
    sites = sorted(set.intersection(*(set(run) for run in alone))) if alone else []
    paired = {n: runs for n, runs in ways.items() if n != reference and _same(runs, alone, sites)}
    if not sites or not paired:
        return {}
    known = np.unique(np.concatenate([run[s].marks for run in alone for s in sites]))
    classes = max(run[s].predictions.outputs.shape[1] for run in alone for s in sites)
    draws = max(100, min(draws, ROOM // (len(known) * classes)))
    random = np.random.default_rng(seed)
    drawn = random.poisson(1.0, (draws, len(known))).astype(np.float32)
    luck = random.multinomial(len(alone), [1 / len(alone)] * len(alone), draws).astype(float)
    gains: dict[str, dict[str, list[list[Draws]]]] = {n: {} for n in paired}
    for number, base in enumerate(alone):
        for site in sites:
            weights = drawn[:, np.searchsorted(known, base[site].marks)]
            before = draws_of(base[site].predictions, weights)
            for name, runs in paired.items():
                after = draws_of(runs[number][site].predictions, weights)
                for metric in before.keys() & after.keys():
                    rows = gains[name].setdefault(metric, [[] for _ in sites])
                    rows[sites.index(site)].append(METRICS[metric].sign * (after[metric] - before[metric]))
    return {name: _summed_up(found, sites, luck) for name, found in gains.items()}


def _same(
    runs: Sequence[Mapping[str, Judged]], alone: Sequence[Mapping[str, Judged]], sites: Sequence[str]
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
