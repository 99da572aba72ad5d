"""Likeness of records before any training, in public bins: Jensen–Shannon and symmetric Rényi divergence.

A histogram counts, for every column, how many records fall into each of five public bins of it, apart for each outcome:
so that the same patients with other outcomes are told apart too. A record has one place in every column, each worth
1/√columns, so one record moves the whole by exactly 1 and noise on it is differentially private. Both divergences are
computed from what was released and cost nothing further.

What noise and small numbers alone would make of two equal sites is drawn again and again, and taken out of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.seeds import generator
from confrere.data.records import Records
from confrere.partners.ranking import PartnerScore, Ranking, likeness, ranked

Counts = NDArray[np.float64]
"""Of each column, outcome and bin; with a first axis for repetitions where there are any."""

EDGES = (-1.0, -1 / 3, 1 / 3, 1.0)
"""Inputs are scaled by the schema so that usual values lie in −1 … 1: below, three parts of that, above."""

COLUMNS = 64
"""So many inputs are counted as they are; more (pixels, words) are first mixed into as few as `MIXED` public directions."""

MIXED = 16
OUTCOMES = 8
"""Several labels of a record are told apart by their pattern up to this number, and beyond it by how many hold."""

FEW = 20
"""A histogram that tells no more than this many records would is not relied on."""

DRAWS = 100
ORDER = 0.5
"""Of Rényi's divergence; at ½ it is the same in both directions, and finite unless nothing is in common."""

LIKE = {"jensen-shannon": 0.05, "renyi": 0.1}
"""A divergence below this is small: on [0, 1] bits, and on [0, ∞) nats."""


@dataclass(frozen=True)
class Histogram:
    """How many records a site has in each bin; `noise` is the standard deviation of the noise in one bin."""

    counts: Counts
    total: float
    noise: float = 0.0

    @property
    def shares(self) -> Counts:
        return cleaned(self.counts, self.total, self.noise)

    @property
    def worth(self) -> float:
        """As many records without noise would tell as much: luck and noise add up."""
        luck, noise = 1 / self.total, self.counts.shape[-1] * (self.noise / self.total) ** 2
        return float(1 / (luck + noise))


def placed(records: Records, classes: int, seed: int) -> tuple[Tensor, int]:
    """The sum of a row for each record, or of the mean row of each patient, and how many rows that are.

    A record's row has its bin in every column and is of length 1, so a patient's is at most that long.
    """
    inputs = records.inputs.reshape(len(records), -1).double()
    if inputs.shape[1] > COLUMNS:
        chance = generator(seed, "histogram")
        mixing = torch.randn(inputs.shape[1], MIXED, generator=chance, dtype=torch.float64)
        inputs = inputs @ mixing / math.sqrt(inputs.shape[1])
    outcome, outcomes = _outcomes(records.targets, classes)
    bins = torch.bucketize(inputs, torch.tensor(EDGES, dtype=torch.float64), right=True)
    size = len(EDGES) + 1
    columns = inputs.shape[1]
    place = torch.arange(columns) * (outcomes * size) + outcome[:, None] * size + bins
    weight, rows = torch.ones(len(records), dtype=torch.float64), len(records)
    if records.units is not None:
        patients = torch.unique(records.units, return_inverse=True)[1]
        weight, rows = 1 / torch.bincount(patients).double()[patients], int(patients.max()) + 1
    share = (weight / math.sqrt(columns))[:, None].expand(-1, columns)
    return torch.bincount(place.flatten(), share.flatten(), columns * outcomes * size), rows


def _outcomes(targets: Tensor, classes: int) -> tuple[Tensor, int]:
    """A number for the outcome of each record, and how many there can be."""
    if not targets.is_floating_point():
        return targets.long(), max(2, classes)
    if targets.ndim == 1:
        return torch.bucketize(targets.double(), torch.tensor(EDGES, dtype=torch.float64), right=True), (
            len(EDGES) + 1
        )
    held = targets.reshape(len(targets), -1) > 0.5
    if 2 ** held.shape[1] <= OUTCOMES:
        return (held * 2 ** torch.arange(held.shape[1])).sum(1), int(2 ** held.shape[1])
    return held.sum(1).clamp(max=OUTCOMES - 1), OUTCOMES


def histogram(total: Tensor, count: float, columns: int, noise: float = 0.0) -> Histogram:
    """Counts from the sum of all records' places, which has noise of this standard deviation in it.

    `count` is how many records or patients there are, as far as it is public; 0: it is read off the sum, noise and all.
    """
    scale = math.sqrt(columns)
    count = count or max(1.0, float(total.double().sum()) / scale)
    return Histogram(total.double().numpy().reshape(columns, -1) * scale, count, noise * scale)


def columns_of(task_inputs: Sequence[int]) -> int:
    """How many columns are counted of records of this shape."""
    size = math.prod(task_inputs)
    return MIXED if size > COLUMNS else size


def cleaned(counts: Counts, total: float, noise: float) -> Counts:
    """Shares of each column's bins. No bin is less than what could not be told from nothing."""
    floor = 0.5 + noise
    kept = np.maximum(counts, 0.0) + min(floor, max(0.5, total / counts.shape[-1]))
    return np.asarray(kept / kept.sum(-1, keepdims=True))


def jensen_shannon(one: Counts, two: Counts) -> Counts:
    """In bits, for each column: 0 for equal shares, 1 where nothing is in common."""
    middle = (one + two) / 2
    both = (one * np.log2(one / middle)).sum(-1) + (two * np.log2(two / middle)).sum(-1)
    return np.asarray(both / 2)


def symmetric_renyi(one: Counts, two: Counts, order: float = ORDER) -> Counts:
    """The mean of both directions, in nats, for each column."""
    there = np.log((one**order * two ** (1 - order)).sum(-1)) / (order - 1)
    back = np.log((two**order * one ** (1 - order)).sum(-1)) / (order - 1)
    return np.asarray((there + back) / 2)


MEASURES: dict[str, tuple[str, str, Callable[[Counts, Counts], Counts]]] = {
    "jensen-shannon": ("Jensen–Shannon divergence", "bits; sites of nothing in common come to 1", jensen_shannon),
    "renyi": ("Rényi divergence", "nats, of order ½; without bound", symmetric_renyi),
}  # fmt: skip


def histogram_rankings(
    own: Histogram,
    theirs: Mapping[str, Histogram],
    user: str,
    names: Sequence[str],
    seed: int,
    *,
    z: float,
    released: bool,
) -> tuple[Ranking, ...]:
    """Peers by how far apart their histograms are, by each divergence. `names` are those of the columns, if any."""
    return tuple(
        Ranking(
            method, title,
            "how far apart the shares of records in public bins are, by outcome, before any training; less is better",
            ranked([_standing(method, own, h, user, p, names, seed, z) for p, h in theirs.items()], least_first=True),
            "counts of its records in public bins, with noise" if released else "counts of its records in public bins",
            not released,
        )
        for method, (title, _, _) in MEASURES.items()
    )  # fmt: skip


def _standing(
    method: str, own: Histogram, there: Histogram, user: str, peer: str, names: Sequence[str], seed: int, z: float
) -> PartnerScore:  # fmt: skip
    _, unit, measure = MEASURES[method]
    chance = np.random.default_rng(generator(seed, "histogram", peer).initial_seed() % 2**32)
    columns = measure(own.shares, there.shares)
    middle = (own.shares * own.worth + there.shares * there.worth) / (own.worth + there.worth)
    equal = measure(_drawn(own, middle, chance), _drawn(there, middle, chance))
    again = measure(_drawn(own, own.shares, chance), _drawn(there, there.shares, chance))
    value = float(columns.mean() - equal.mean())
    error = float(max(equal.mean(-1).std(ddof=1), again.mean(-1).std(ddof=1)))
    like = LIKE[method]
    hidden = there.worth < FEW
    chosen, said = likeness(
        peer, user, value, z * error, like, hidden=hidden, how="are spread", other="differently"
    )
    if not hidden and value - z * error >= like:
        said += _where(method, own, there, columns - equal.mean(0), float(columns.mean()), names)
    return PartnerScore(peer, value, error, chosen, f"{said} ({value:.4f} ± {error:.4f} {unit}).")


def _where(
    method: str, own: Histogram, there: Histogram, excess: Counts, value: float, names: Sequence[str]
) -> str:
    """What differs most: how often each outcome occurs, or a column."""
    outcomes = [h.shares.reshape(len(excess), -1, len(EDGES) + 1).sum(-1).mean(0) for h in (own, there)]
    if float(MEASURES[method][2](outcomes[0], outcomes[1])) > value / 2:
        return ", most in how often each outcome occurs"
    return f", most in {names[int(excess.argmax())]}" if len(names) == len(excess) else ""


def _drawn(site: Histogram, shares: Counts, chance: np.random.Generator) -> Counts:
    """Repeated draws of what a site with this many records and this noise would count, if these were its shares."""
    counts = chance.multinomial(max(1, round(site.total)), shares, size=(DRAWS, len(shares))).astype(float)
    if site.noise:
        counts += chance.normal(0.0, site.noise, counts.shape)
    return cleaned(counts, site.total, site.noise)
