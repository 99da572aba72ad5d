"""Gradient similarity: the weight that Weight Erosion leaves a peer (exchange/erosion.py)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from confrere.personalize.standing import Ranking, Standing, ranked

ENOUGH = 3
"""In so many rounds the user's own gradient must have been told from noise before anything is said."""

ASIDE = math.sqrt(2)
"""The distance of two gradients of one length at a right angle; whoever is nearer mostly pulls the same way."""


def similarity_ranking(
    weights: Mapping[str, Sequence[float]],
    distances: Mapping[str, Sequence[float]],
    falls: Mapping[str, Sequence[float]],
    user: str,
    *,
    z: float,
    released: bool,
) -> Ranking:
    """Peers by the weight that is left. `falls` is how much of its weight a distance of 1 cost a peer in each round.

    Distances vary from round to round with batch and noise; the error of a weight adds up what that comes to.
    """
    standings = []
    for peer, course in weights.items():
        left, apart = course[-1], distances[peer]
        spread = statistics.stdev(apart) if len(apart) > 1 else math.inf
        error = spread * sum(f * f for f in falls[peer]) ** 0.5 if apart else math.inf
        mean = statistics.fmean(apart) if apart else math.nan
        chosen = len(apart) >= ENOUGH and left > 0 and mean + z * spread / len(apart) ** 0.5 < ASIDE
        if len(apart) < ENOUGH:
            said = f"Noise hid what {user} itself wants to learn, so little can be said about {peer}"
        elif chosen:
            said = f"{peer} mostly pulls the model where {user} would"
        elif left > 0:
            said = f"{peer} often pulls the model away from where {user} would"
        else:
            said = f"{peer} pulls the model away from where {user} would, until it no longer counts"
        how_far = f", mean distance {mean:.2f}" if apart else ""
        sentence = f"{said} (weight left {left:.2f}{how_far})."
        standings.append(
            Standing(
                peer,
                left,
                error,
                chosen,
                sentence,
                {"mean_distance": mean, "mean_weight": statistics.fmean(course)},
            )
        )
    return Ranking(
        "similarity", "Gradient similarity",
        "the weight that Weight Erosion leaves the peer; from 1 (alike) to 0 (faded); more is better",
        ranked(standings),
        "a gradient in every round, with noise" if released else "a gradient in every round",
        not released,
    )  # fmt: skip
