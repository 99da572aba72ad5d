"""Similarity of records before any training: the Jensen–Shannon and symmetric Rényi divergences of histograms.

A histogram counts, for every column, how many records fall into each of five public bins, separately for each outcome:
the same patients with different outcomes give different histograms. A record adds 1/√columns to one bin of every column,
so one record changes the histogram by exactly 1 in length, and noise makes it differentially private. Both divergences
are computed from the released histogram and cost no further privacy.

Noise and small numbers make even equal sites look different. How different is estimated by simulation, and subtracted.
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
from confrere.partners import Method
from confrere.partners.ranking import Criteria, Ranking, RecordDistance, ranked

Counts = NDArray[np.float64]
"""Of each column, outcome and bin; with a first axis for repetitions where there are any."""

EDGES = (-1.0, -1 / 3, 1 / 3, 1.0)
"""The schema scales inputs so that usual values lie in −1 … 1: three bins for these, one below and one above."""

COLUMNS = 64
"""Up to this number of inputs is counted directly; more (pixels, words) are first projected on `MIXED` public directions."""

MIXED = 16
OUTCOMES = 8
"""Several labels of a record are distinguished by their pattern up to this number of patterns, beyond it by their count."""

FEW = 20
"""A histogram with fewer effective records than this is not relied on."""

DRAWS = 100
ORDER = 0.5
"""Order of the Rényi divergence; at ½ it is symmetric, and finite unless the distributions are disjoint."""

SMALL = {"jensen-shannon": 0.05, "renyi": 0.1}
"""A divergence below this is small: in bits on [0, 1], and in nats on [0, ∞)."""


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
    def effective_records(self) -> float:
        """The number of records without noise that would be as informative."""
        sampling, noise = 1 / self.total, self.counts.shape[-1] * (self.noise / self.total) ** 2
        return float(1 / (sampling + noise))


def histogram_sum(records: Records, classes: int, seed: int) -> tuple[Tensor, int]:
    """The sum of a row for each record, or of the mean row of each patient, and the number of rows.

    A record's row marks its bin in every column and has length 1, so a patient's mean row is no longer than that.
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
    position = torch.arange(columns) * (outcomes * size) + outcome[:, None] * size + bins
    weight, rows = torch.ones(len(records), dtype=torch.float64), len(records)
    if records.units is not None:
        patients = torch.unique(records.units, return_inverse=True)[1]
        weight, rows = 1 / torch.bincount(patients).double()[patients], int(patients.max()) + 1
    share = (weight / math.sqrt(columns))[:, None].expand(-1, columns)
    return torch.bincount(position.flatten(), share.flatten(), columns * outcomes * size), rows


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
    """The histogram of a sum of rows that has noise of this standard deviation in it.

    `count` is the public number of records or patients; 0 estimates it from the sum, noise included.
    """
    scale = math.sqrt(columns)
    count = count or max(1.0, float(total.double().sum()) / scale)
    return Histogram(total.double().numpy().reshape(columns, -1) * scale, count, noise * scale)


def columns_of(task_inputs: Sequence[int]) -> int:
    """The number of columns that are counted for inputs of this shape."""
    size = math.prod(task_inputs)
    return MIXED if size > COLUMNS else size


def cleaned(counts: Counts, total: float, noise: float) -> Counts:
    """Shares of each column's bins; no bin is smaller than what cannot be distinguished from an empty one."""
    floor = 0.5 + noise
    kept = np.maximum(counts, 0.0) + min(floor, max(0.5, total / counts.shape[-1]))
    return np.asarray(kept / kept.sum(-1, keepdims=True))


def jensen_shannon(one: Counts, two: Counts) -> Counts:
    """In bits, for each column: 0 for equal shares, 1 for disjoint ones."""
    middle = (one + two) / 2
    both = (one * np.log2(one / middle)).sum(-1) + (two * np.log2(two / middle)).sum(-1)
    return np.asarray(both / 2)


def symmetric_renyi(one: Counts, two: Counts, order: float = ORDER) -> Counts:
    """The mean of both directions, in nats, for each column."""
    there = np.log((one**order * two ** (1 - order)).sum(-1)) / (order - 1)
    back = np.log((two**order * one ** (1 - order)).sum(-1)) / (order - 1)
    return np.asarray((there + back) / 2)


Divergence = Callable[[Counts, Counts], Counts]

MEASURES: dict[Method, tuple[str, str, Divergence]] = {
    "jensen-shannon": ("Jensen–Shannon divergence", "bits; sites with nothing in common have 1", jensen_shannon),
    "renyi": ("Rényi divergence", "nats, of order ½; unbounded", symmetric_renyi),
}  # fmt: skip


def histogram_rankings(
    own: Histogram, theirs: Mapping[str, Histogram], names: Sequence[str], seed: int, criteria: Criteria
) -> tuple[Ranking, ...]:
    """Peers by how far apart their histograms are, by each divergence. `names` are those of the columns, if any."""
    found = []
    for method, (title, unit, measure) in MEASURES.items():
        candidates = []
        for peer, there in theirs.items():
            chance = np.random.default_rng(generator(seed, "histogram", peer).initial_seed() % 2**32)
            value, error, columns = _divergence(measure, own, there, chance)
            distance = RecordDistance(
                value, error, SMALL[method], there.effective_records < FEW,
                f"{value:.4f} ± {error:.4f} {unit}", _difference(measure, own, there, columns, names),
            )  # fmt: skip
            candidates.append(distance.candidate(peer, criteria.user))
        found.append(
            Ranking(
                method, title,
                "how far apart the shares of records in public bins are, by outcome, before any training; less is better",
                ranked(candidates, least_first=True),
                criteria.sends("counts of its records in public bins"), not criteria.released,
            )
        )  # fmt: skip
    return tuple(found)


def _divergence(
    measure: Divergence, own: Histogram, there: Histogram, chance: np.random.Generator
) -> tuple[float, float, Counts]:
    """The divergence and its error, and by column; what equal sites would have is subtracted."""
    columns = measure(own.shares, there.shares)
    weights = own.effective_records, there.effective_records
    common = (own.shares * weights[0] + there.shares * weights[1]) / sum(weights)
    equal = measure(_drawn(own, common, chance), _drawn(there, common, chance))
    again = measure(_drawn(own, own.shares, chance), _drawn(there, there.shares, chance))
    error = float(max(equal.mean(-1).std(ddof=1), again.mean(-1).std(ddof=1)))
    return float(columns.mean() - equal.mean()), error, columns - equal.mean(0)


def _difference(
    measure: Divergence, own: Histogram, there: Histogram, columns: Counts, names: Sequence[str]
) -> str:
    """What differs most: how often each outcome occurs, or a column."""
    outcomes = [h.shares.reshape(len(columns), -1, len(EDGES) + 1).sum(-1).mean(0) for h in (own, there)]
    if float(measure(outcomes[0], outcomes[1])) > float(measure(own.shares, there.shares).mean()) / 2:
        return ", most in how often each outcome occurs"
    return f", most in {names[int(columns.argmax())]}" if len(names) == len(columns) else ""


def _drawn(site: Histogram, shares: Counts, chance: np.random.Generator) -> Counts:
    """Repeated draws of the shares that a site of this size and noise would count, if these were its true shares."""
    counts = chance.multinomial(max(1, round(site.total)), shares, size=(DRAWS, len(shares))).astype(float)
    if site.noise:
        counts += chance.normal(0.0, site.noise, counts.shape)
    return cleaned(counts, site.total, site.noise)
