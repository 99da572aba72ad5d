"""Robust combiners: stay close to the honest models even if some models are malicious.

One's own model and the newest one of each sender stand side by side, one vote each: declared weights do not
count, since an attacker would declare a large one. What does not fit or is not finite is left aside, so
that no site can stop a round with it. The result depends on all that were looked at, and is held as closely
as the strictest of them, even where one of them is picked.

`attackers` is the number of dishonest senders to tolerate. A sender whose model was ignored is one of them, and no longer
has to be tolerated. Each combiner has a bound; with fewer models than it needs, it refuses (`too_few = "refuse"`) or keeps
the site's own model (`"keep"`). A site that received nothing always keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from confrere.core.custody import Scalar, strictest
from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.combine import combiner, models

TooFew = Literal["refuse", "keep"]
Radius = float | Literal["auto"]
Rule = Callable[[Tensor, int], Tensor]
"""From the models as rows, the own one first, and the number of attackers among them, to one row."""

LARGEST = 1e100  # beyond this, squares overflow; no honest weight is near it


class RobustCombiner:
    """What robust combiners share: the bound on their attackers, and models as rows of one matrix."""

    name: ClassVar[str]
    spare: ClassVar[int] = 1
    """How many models it needs beside two for each attacker."""
    attackers: int
    too_few: TooFew

    @property
    def bound(self) -> Bound:
        return Bound(self.name, self.attackers, 2 * self.attackers + self.spare, self.too_few)

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        others, left_aside = _voices(own, inbox)
        bound = self.bound.without(left_aside)
        if not others or not bound.holds(len(others) + 1):
            return own
        return _of_rows([own, *others], self.combined, bound.attackers)

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        """One row from the models as rows, the own one first, with this number of attackers among them."""
        raise NotImplementedError


@combiner("median")
@dataclass(frozen=True)
class CoordinateMedian(RobustCombiner):
    """The median of each weight (Yin et al., Byzantine-robust distributed learning, 2018)."""

    attackers: int = 0
    too_few: TooFew = "refuse"
    name: ClassVar[str] = "median"

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        return _median(rows)


@combiner("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(RobustCombiner):
    """The mean of each weight without its `attackers` smallest and largest values (Yin et al., 2018)."""

    attackers: int = 1
    too_few: TooFew = "refuse"
    name: ClassVar[str] = "trimmed-mean"

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        return _trimmed(rows, attackers)


@combiner("krum")
@dataclass(frozen=True)
class Krum(RobustCombiner):
    """The model whose nearest others are nearest (Blanchard et al., ML with adversaries, 2017)."""

    attackers: int = 1
    too_few: TooFew = "refuse"
    name: ClassVar[str] = "krum"
    spare: ClassVar[int] = 3

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        return rows[_krum_order(rows, attackers)[0]]


@combiner("multi-krum")
@dataclass(frozen=True)
class MultiKrum(RobustCombiner):
    """The mean of the `chosen` models with the best Krum scores (Blanchard et al., 2017).

    Without a number, all but `attackers` + 2 of them are chosen; never more than all but `attackers`.
    """

    attackers: int = 1
    chosen: int | None = None
    too_few: TooFew = "refuse"
    name: ClassVar[str] = "multi-krum"
    spare: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if self.chosen is not None and self.chosen < 1:
            raise StudyError(f"multi-krum: chosen must be at least 1, not {self.chosen}")

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        honest = len(rows) - attackers
        count = honest - 2 if self.chosen is None else min(self.chosen, honest)
        return rows[_krum_order(rows, attackers)[:count]].mean(0)


@combiner("geometric-median")
@dataclass(frozen=True)
class GeometricMedian(RobustCombiner):
    """The point with the smallest sum of distances to all models (Pillutla et al., Robust aggregation, 2022).

    Found by Weiszfeld's iteration in the form of Vardi and Zhang (2000), which does not stop at a model that
    it happens to hit, until it moves by less than `tolerance` of the typical distance.
    """

    attackers: int = 0
    iterations: int = 200
    tolerance: float = 1e-8
    too_few: TooFew = "refuse"
    name: ClassVar[str] = "geometric-median"

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        at = _median(rows)
        for _ in range(self.iterations):
            away = rows - at
            distances = torch.linalg.vector_norm(away, dim=1)
            typical = float(_median(distances[:, None]))
            if typical == 0:  # most models are this very point
                return at
            apart = distances > 1e-14 * typical
            pulls = torch.where(apart, 1 / distances.clamp_min(1e-14 * typical), 0.0)
            force = pulls @ away
            hit, strength = float((~apart).sum()), float(torch.linalg.vector_norm(force))
            if strength <= hit:  # the models at this point hold it
                return at
            step = (1 - hit / strength) * force / pulls.sum()
            at = at + step
            if float(torch.linalg.vector_norm(step)) <= self.tolerance * typical:
                break
        return at


@combiner("centred-clip")
@dataclass(frozen=True)
class CentredClip(RobustCombiner):
    """Steps from the own model towards the mean, each pull cut to `radius` (Karimireddy et al., Learning
    from history for Byzantine robust optimization, 2021).

    With radius = "auto" each step takes the median of the distances that there are, which is ours.
    """

    radius: Radius = "auto"
    iterations: int = 3
    attackers: int = 0
    too_few: TooFew = "refuse"
    name: ClassVar[str] = "centred-clip"

    def __post_init__(self) -> None:
        _check_radius("centred-clip", self.radius)

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        at = rows[0]
        for _ in range(self.iterations):
            at = at + _clipped(rows - at, self.radius).mean(0)
        return at


@combiner("self-centred-clip")
@dataclass(frozen=True)
class SelfCentredClip(RobustCombiner):
    """The own model moved by the mean of the others' pulls, each cut to `radius` around it (He,
    Karimireddy, Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022).

    It needs no majority: whatever the others send, the model moves by less than `radius`. With "auto" that
    is the median of the distances to the others, which is ours, and for which a majority must be honest. In gossip,
    where a site often receives from one peer at a time, "auto" is the length of its own last training: what a peer sends
    counts for no more than what the site's own records say, and no majority is needed.
    """

    radius: Radius = "auto"
    attackers: int = 0
    too_few: TooFew = "refuse"

    def __post_init__(self) -> None:
        _check_radius("self-centred-clip", self.radius)

    @property
    def bound(self) -> Bound:
        each = 2 if self.radius == "auto" else 1
        return Bound("self-centred-clip", self.attackers, each * self.attackers + 1, self.too_few, each)

    def combined(self, rows: Tensor, attackers: int) -> Tensor:
        pulls = rows[1:] - rows[0]
        return rows[0] + _clipped(pulls, self.radius).sum(0) / len(rows)

    @property
    def gossip_bound(self) -> Bound:
        return Bound("self-centred-clip", self.attackers, self.attackers + 1, self.too_few, 1)

    def gossip(
        self, own: Model, inbox: Sequence[Parcel], kept: float, step: Scalar
    ) -> tuple[Model, Model | None]:
        """The own model moved by the share that is not kept, and moved in full."""
        radius = step.value if self.radius == "auto" else self.radius
        voices, _ = _voices(own, inbox)
        if not voices:
            return own, None

        def moved(share: float) -> Model:
            return _of_rows(
                [own, *voices],
                lambda rows, _: rows[0] + share * _clipped(rows[1:] - rows[0], radius).mean(0),
                0,
            ).held(step.custody)

        return moved(1 - kept), moved(1.0)


@dataclass(frozen=True)
class Bound:
    """How many models, including the own one, a combiner needs to tolerate a number of attackers."""

    combiner: str
    attackers: int
    needs: int
    too_few: TooFew
    each: int = 2
    """How many more models one more attacker takes."""

    def __post_init__(self) -> None:
        if self.attackers < 0 or self.too_few not in ("refuse", "keep"):
            raise StudyError(f'{self.combiner}: attackers is 0 or more, too_few is "refuse" or "keep"')

    def holds(self, count: int) -> bool:
        if count < self.needs and self.too_few == "refuse":
            raise StudyError(
                f"{self.combiner} tolerates {self.attackers} attackers only among at least {self.needs} models, "
                f'including the site\'s own; here are {count}: expect fewer attackers, or set too_few = "keep"'
            )
        return count >= self.needs

    def without(self, found: int) -> Bound:
        """The bound that is left when `found` attackers were recognised."""
        attackers = max(0, self.attackers - found)
        return replace(self, attackers=attackers, needs=self.needs - self.each * (self.attackers - attackers))

    def most(self, count: int) -> int:
        """How many attackers the combiner tolerates among `count` models, including the own one; below 0 if it cannot work.

        >>> Bound("krum", 1, 5, "refuse").most(8), Bound("median", 0, 1, "refuse").most(4)
        (2, 1)
        """
        return (count - (self.needs - self.each * self.attackers)) // self.each


def _of_rows(voices: Sequence[Model], combine: Rule, attackers: int) -> Model:
    own = voices[0]
    floats = [name for name, t in own.params.items() if t.is_floating_point()]
    rows = torch.stack([_row(m, floats) for m in voices])
    flat, tensors, at = combine(rows, attackers), dict(own.params), 0
    for name in floats:  # counters and other integers are not combined
        like = own.params[name]
        tensors[name] = flat[at : at + like.numel()].reshape(like.shape).to(like.dtype)
        at += like.numel()
    return Model(Params(tensors), own.architecture, strictest(m.custody for m in voices))


def _voices(own: Model, inbox: Sequence[Parcel]) -> tuple[list[Model], int]:
    """The newest model of each sender that fits the own one and is finite, and how many senders have none."""
    newest: dict[str, tuple[tuple[int, ...], Model]] = {}
    for parcel, model in models(inbox):
        age = (parcel.epoch, parcel.round, parcel.phase, parcel.sequence)
        if parcel.sender not in newest or newest[parcel.sender][0] < age:
            newest[parcel.sender] = (age, model)
    found = [model for _, model in newest.values() if _fits(own, model)]
    return found, len({p.sender for p in inbox}) - len(found)


def _fits(own: Model, model: Model) -> bool:
    return (
        model.architecture == own.architecture
        and model.params.shapes == own.params.shapes
        and all(_sane(t) for t in model.params.values() if t.is_floating_point())
    )


def _sane(t: Tensor) -> bool:
    return t.numel() == 0 or float(t.abs().max()) <= LARGEST  # compared as double: single has no 1e100


def _row(model: Model, names: list[str]) -> Tensor:
    flat = [model.params[name].reshape(-1).double() for name in names]
    return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)


def _trimmed(rows: Tensor, cut: int) -> Tensor:
    return rows.sort(0).values[cut : len(rows) - cut].mean(0)


def _median(rows: Tensor) -> Tensor:
    return _trimmed(rows, (len(rows) - 1) // 2)


def _krum_order(rows: Tensor, attackers: int) -> Tensor:
    """The rows by their sum of squared distances to the n − f − 2 nearest others, best first."""
    squares = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    squares.fill_diagonal_(torch.inf)
    nearest = squares.sort(1).values[:, : len(rows) - attackers - 2]
    return nearest.sum(1).argsort(stable=True)


def _clipped(pulls: Tensor, radius: Radius) -> Tensor:
    lengths = torch.linalg.vector_norm(pulls, dim=1)
    # the lower median: with as few honest models as the bound allows, still no larger than an honest length
    limit = float(lengths.median()) if radius == "auto" else radius
    factors = torch.where(lengths > limit, limit / lengths.clamp_min(1e-300), 1.0)
    return pulls * factors[:, None]


def _check_radius(combiner: str, radius: Radius) -> None:
    if radius != "auto" and not (isinstance(radius, int | float) and radius > 0):
        raise StudyError(f'{combiner}: radius is a positive number or "auto", not {radius!r}')
