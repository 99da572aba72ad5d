"""Matching the units of several sites' networks, by the Beta-Bernoulli process.

Networks that learned apart may hold the same features in another order. Each unit, a vector of weights, is taken for
a noisy copy of one of the common units, of which there are as many as the sites' units ask for: a unit that is like
none of the others becomes a new one (Yurochkin et al. 2019, «PFNM»; Wang et al. 2020, «FedMA»).

The maximum a posteriori is sought site by site. With the assignments of all other sites given, those of one site are a
linear assignment problem: unit l to common unit i has the gain

    ‖S_i + p·v_l‖² / (q_i + p) − ‖S_i‖² / q_i + 2·log(m_i / (H − m_i)),   S_i = Σ p·v, q_i = 1/prior² + Σ p

over the m_i units of others that are assigned to i, and to the k-th new one

    ‖p·v_l‖² / (1/prior² + p) + 2·log(mass / H) − 2·log(k),

with p = 1/spread² of its site, a prior mean of 0 and H sites. All of it is a function of what the sites sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import scipy  # `scipy.optimize` is loaded when units are first matched
import torch
from torch import Tensor

from confrere.core.errors import StudyError


@dataclass(frozen=True)
class Prior:
    """The prior of the matching.

    `spread` is how far (in each weight) a site's unit lies from the common one, `scale` how far common units lie from
    0, and `mass` how readily new ones are made: small spreads and large masses make the common network wider.
    """

    spread: float = 1.0
    scale: float = 10.0
    mass: float = 1.0
    passes: int = 5
    """How often each site's assignment is revised, given those of all others."""

    def __post_init__(self) -> None:
        for name in ("spread", "scale", "mass"):
            if not 0 < getattr(self, name) < math.inf:
                raise StudyError(f"matching: {name} is a number above 0, not {getattr(self, name)}")
        if self.passes < 0:
            raise StudyError(f"matching: passes is at least 0, not {self.passes}")


@dataclass(frozen=True)
class Matching:
    """How a strategy matches networks: its prior, and how far a layer may grow."""

    growth: float = 1.5
    spread: float = 1.0
    scale: float = 10.0
    mass: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.growth <= 10:
            raise StudyError(f"growth is between 1 (no new units) and 10, not {self.growth}")
        Prior(self.spread, self.scale, self.mass)  # which refuses what makes no sense

    @property
    def prior(self) -> Prior:
        return Prior(self.spread, self.scale, self.mass)


@dataclass(frozen=True)
class Matched:
    """Common units, one row each, and at which of them each site's units are."""

    units: Tensor
    places: tuple[Tensor, ...]


def match(sites: Sequence[Tensor], shares: Sequence[float], most: int, prior: Prior) -> Matched:
    """Match units (a row each) of several sites. There are never more than `most` common units.

    `shares` are public weights of the sites with a mean of 1: a unit of a site with more records is known better. Two
    units of one site never become one.
    """
    rows = [units.double() for units in sites]
    if any(len(units) > most for units in rows):
        raise ValueError(f"{max(map(len, rows))} units of a site do not fit into {most}")
    precision = [share / prior.spread**2 for share in shares]
    places = [torch.arange(len(rows[0]))]
    for site in range(1, len(rows)):  # each given those before it
        places.append(_assigned(site, rows[: site + 1], places, precision, most, prior))
    for _ in range(prior.passes):
        before = [p.clone() for p in places]
        for site in range(len(rows)):
            places = _without_gaps(places, site)
            places[site] = _assigned(site, rows, places, precision, most, prior)
        places = _without_gaps(places)
        if all(torch.equal(a, b) for a, b in zip(before, places, strict=True)):
            break
    places = _without_gaps(places)
    return Matched(_means(rows, places, precision, prior), tuple(places))


def _assigned(
    site: int, rows: Sequence[Tensor], places: Sequence[Tensor], precision: Sequence[float], most: int,
    prior: Prior,
) -> Tensor:  # fmt: skip
    """The best places for one site's units, given where all others' are."""
    others, sites = [s for s in range(len(rows)) if s != site], len(precision)
    width = max((int(places[s].max()) + 1 for s in others if len(places[s])), default=0)
    sums, weights, counts = _sums(rows, places, precision, others, width)
    own, p, floor = rows[site], precision[site], 1 / prior.scale**2
    new = min(len(own), most - width)
    known = weights + floor
    squares = p**2 * own.square().sum(1)[:, None] + 2 * p * own @ sums.T + sums.square().sum(1)
    gain = squares / (known + p) - sums.square().sum(1) / known
    gain = gain + 2 * (counts / (sites - counts).clamp_min(1e-9)).log()
    alone = p**2 * own.square().sum(1) / (floor + p) + 2 * math.log(prior.mass / sites)
    fresh = alone[:, None] - 2 * torch.arange(1, new + 1, dtype=torch.float64).log()
    _, columns = scipy.optimize.linear_sum_assignment(torch.cat([gain, fresh], 1).numpy(), maximize=True)
    return torch.from_numpy(columns).long()


def _sums(
    rows: Sequence[Tensor], places: Sequence[Tensor], precision: Sequence[float], which: Sequence[int], width: int
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of each common unit: the weighted sum of the units there, their weights, and how many there are."""
    sums = torch.zeros(width, rows[0].shape[1], dtype=torch.float64)
    weights, counts = torch.zeros(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    for s in which:
        sums.index_add_(0, places[s], precision[s] * rows[s])
        weights.index_add_(0, places[s], torch.full((len(places[s]),), precision[s], dtype=torch.float64))
        counts.index_add_(0, places[s], torch.ones(len(places[s]), dtype=torch.float64))
    return sums, weights, counts


def _without_gaps(places: Sequence[Tensor], leaving_out: int | None = None) -> list[Tensor]:
    """The same places, numbered through: common units that no site has any more are removed."""
    there = [p for s, p in enumerate(places) if s != leaving_out]
    used = torch.unique(torch.cat(there)) if there else torch.zeros(0, dtype=torch.long)
    number = torch.full((int(max((int(p.max()) for p in places if len(p)), default=-1)) + 1,), -1)
    number[used] = torch.arange(len(used))
    return [p if s == leaving_out else number[p] for s, p in enumerate(places)]


def _means(
    rows: Sequence[Tensor], places: Sequence[Tensor], precision: Sequence[float], prior: Prior
) -> Tensor:
    """Where the common units most probably are."""
    width = max(int(p.max()) + 1 for p in places)
    sums, weights, _ = _sums(rows, places, precision, range(len(rows)), width)
    return sums / (weights + 1 / prior.scale**2)[:, None]
