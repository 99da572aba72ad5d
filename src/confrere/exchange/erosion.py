"""Weight Erosion: a peer whose gradients point away from the user's gets less and less weight.

Every peer starts with weight 1 and loses in each of its rounds

    Δ = (1 + p_s·⌊(rounds so far)·passes⌋)·p_d·d,     d = ‖g − g_user‖ / ‖g_user‖

where `passes` is how often one round goes through the peer's records: a small site's records come round again
sooner, and count for less then. The user's own weight stays 1. What is compared, and what the step is made of,
are the same released gradients. They carry noise of a known size, which makes all of them look far apart: its
expected share of d² is subtracted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confrere.core.custody import ZERO, Custody, Scalar, public, strictest, total
from confrere.core.model import Model, mix

STILL = 1e-6
"""A gradient without noise that is no longer than this is none: the model is the user's own optimum."""

CLEAR = 2.0
"""A gradient is distinguished from noise if its squared length exceeds the noise by this many standard deviations."""

Newcomer = Literal["median", "mean"]


@dataclass(frozen=True)
class ReleasedGradient:
    """What a site released in a round: its gradient, the expected squared length of the noise in it, and its passes."""

    gradient: Model
    noise: Scalar = ZERO
    passes: Scalar = ZERO


@dataclass(frozen=True)
class Weights:
    """How much each peer counts, and in how many rounds its gradient arrived."""

    share: Mapping[str, Scalar]
    rounds: Mapping[str, int]

    def joined_by(self, names: frozenset[str], newcomer: Newcomer) -> Weights:
        """With new peers added: at weight 1 in the first round, later at the mean weight of the others.

        The user, whose weight is always 1, is one of the others.
        """
        new = sorted(names - set(self.share))
        if not new:
            return self
        middle = statistics.median if newcomer == "median" else statistics.fmean
        start = Scalar(
            middle([1.0, *(s.value for s in self.share.values())]),
            strictest(s.custody for s in self.share.values()),
        )
        return Weights({**self.share, **dict.fromkeys(new, start)}, {**self.rounds, **dict.fromkeys(new, 0)})

    @property
    def table(self) -> dict[str, tuple[float, ...]]:
        """Weight and rounds by name, as plain numbers."""
        return {name: (float(share.value), float(self.rounds[name])) for name, share in self.share.items()}

    @classmethod
    def of_table(cls, table: Mapping[str, Sequence[float]], custody: Custody) -> Weights:
        """The weights of a `table`; rows that cannot be weights and rounds are left out."""
        rows = {
            name: row
            for name, row in table.items()
            if len(row) == 2 and 0 <= row[0] <= 1 and 0 <= row[1] < 2**31 and row[1] % 1 == 0
        }
        share = {name: Scalar(row[0], custody) for name, row in rows.items()}
        return cls(share, {name: int(row[1]) for name, row in rows.items()})


NO_WEIGHTS = Weights({}, {})


def visible_length(own: ReleasedGradient) -> Scalar | None:
    """The squared length of the user's gradient without its noise; None where noise hides it."""
    size, noise = own.gradient.params.count, own.noise.value
    length = own.gradient.params.norm() ** 2 - noise
    if length <= CLEAR * noise * math.sqrt(2 / size) or length <= 0:
        return None
    return Scalar(length, strictest([own.gradient.custody, own.noise.custody]))


def relative_distance(squared: Scalar, noise: Scalar, length: Scalar) -> Scalar:
    """A distance in lengths of the user's gradient, from its square with the noise of both gradients in it."""
    held = strictest([squared.custody, noise.custody, length.custody])
    return Scalar(math.sqrt(max(0.0, squared.value - noise.value) / length.value), held)


def distance(own: ReleasedGradient, other: ReleasedGradient) -> Scalar | None:
    """How far a gradient is from the user's, in lengths of the user's; None where noise hides the user's own."""
    length = visible_length(own)
    if length is None:
        return None
    held = strictest([own.gradient.custody, other.gradient.custody])
    squared = Scalar(own.gradient.params.distance(other.gradient.params) ** 2, held)
    return relative_distance(squared, own.noise + other.noise, length)


def is_still(own: ReleasedGradient) -> bool:
    """Whether the user's own gradient is zero; unknown for a noisy one, and then false."""
    return own.noise.value == 0 and own.gradient.params.norm() <= STILL


def eroded(
    weights: Weights,
    own: ReleasedGradient,
    others: Mapping[str, ReleasedGradient],
    p_d: float,
    p_s: float,
    newcomer: Newcomer,
) -> tuple[Weights, bool]:
    """The weights after a round, and whether any gradient stood out from the noise.

    A peer that sent nothing keeps its weight, and the round does not count for it.
    """
    distances = {name: distance(own, heard) for name, heard in others.items()}
    passes = {name: heard.passes for name, heard in others.items()}
    found = faded(weights.joined_by(frozenset(others), newcomer), distances, passes, p_d, p_s)
    return found, None not in distances.values()


def faded(
    weights: Weights,
    distances: Mapping[str, Scalar | None],
    passes: Mapping[str, Scalar],
    p_d: float,
    p_s: float,
) -> Weights:
    """The weights after a round in which peers were found at these distances; None leaves a peer's weight as it is."""
    share, rounds = dict(weights.share), dict(weights.rounds)
    for name, apart in distances.items():
        if apart is not None:
            seen = math.floor(rounds[name] * passes[name].value + 1e-9)
            left = share[name] - Scalar((1 + p_s * seen) * p_d, passes[name].custody) * apart
            share[name] = Scalar(max(0.0, left.value), left.custody)
        rounds[name] += 1
    return Weights(share, rounds)


def step(
    model: Model,
    rate: Scalar,
    own: ReleasedGradient | None,
    others: Mapping[str, ReleasedGradient],
    weights: Weights,
) -> Model:
    """The model moved along the weighted mean of the gradients that arrived: rate · Σ α·g / Σ α."""
    held = strictest(weights.share[n].custody for n in others)  # who counts is read from all weights
    terms = [(weights.share[n], h.gradient) for n, h in sorted(others.items()) if weights.share[n].value > 0]
    terms += [(public(1.0), own.gradient)] if own is not None else []
    if not terms:
        return model.held(held)
    whole = total(w for w, _ in terms)
    return mix([(public(1.0), model.held(held)), *((-rate * w / whole, gradient) for w, gradient in terms)])
