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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from confrere.core.custody import ZERO, Scalar, public, strictest, total
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


NO_WEIGHTS = Weights({}, {})


def distance(own: ReleasedGradient, other: ReleasedGradient) -> Scalar | None:
    """How far a gradient is from the user's, in lengths of the user's; None where noise hides the user's own."""
    size, noise = own.gradient.params.count, own.noise.value
    length = own.gradient.params.norm() ** 2 - noise
    if length <= CLEAR * noise * math.sqrt(2 / size) or length <= 0:
        return None
    apart = own.gradient.params.distance(other.gradient.params) ** 2 - noise - other.noise.value
    held = strictest(t.custody for h in (own, other) for t in (h.gradient, h.noise))
    return Scalar(math.sqrt(max(0.0, apart) / length), held)


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
    weights = weights.joined_by(frozenset(others), newcomer)
    share, rounds, told = dict(weights.share), dict(weights.rounds), True
    for name, heard in others.items():
        apart = distance(own, heard)
        if apart is None:
            told = False
        else:
            seen = math.floor(rounds[name] * heard.passes.value + 1e-9)
            left = share[name] - Scalar((1 + p_s * seen) * p_d, heard.passes.custody) * apart
            share[name] = Scalar(max(0.0, left.value), left.custody)
        rounds[name] += 1
    return Weights(share, rounds), told


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
