"""Gradient similarity: a training for the user that compares every peer's gradient with its own, and the resulting ranking."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from confrere.core.custody import Scalar, public
from confrere.core.model import Model, mix
from confrere.core.params import Params
from confrere.data.records import Records
from confrere.exchange.erosion import NOBODY, ReleasedGradient, Weights, distance, eroded, is_still, step
from confrere.learning.evaluation import predict
from confrere.learning.objectives import Descent
from confrere.partners.budget import GRADIENTS, Selection
from confrere.partners.learner import Losses, losses_of
from confrere.partners.ranking import PartnerScore, Ranking, ranked
from confrere.simulation.simulation import Simulation
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound

ROLE = "asked"
STRIDE = 1e-3
"""How far weights are moved to see which way a loss goes."""


@dataclass(frozen=True)
class Course:
    """What the training told about each peer, round by round."""

    weights: dict[str, list[float]] = field(default_factory=dict)
    distances: dict[str, list[float]] = field(default_factory=dict)
    falls: dict[str, list[float]] = field(default_factory=dict)
    """How much of its weight a distance of 1 cost the peer."""
    slopes: dict[str, Losses] = field(default_factory=dict)
    """How far the peer's steps lowered the loss of each held-out record of the user: PRIVATE to it."""
    hidden: list[int] = field(default_factory=list)
    """The rounds in which noise hid the user's own gradient."""


def course(selection: Selection, p_d: float = 0.01, p_s: float = 0.2) -> Course:
    """Weight Erosion for the user, noting what each peer's gradients do to the user's held-out records."""
    return asyncio.run(_course(selection, p_d, p_s))


async def _course(selection: Selection, p_d: float, p_s: float) -> Course:
    simulation = selection.sites(GRADIENTS, {"name": "weight_erosion", "user": selection.user})
    user, out, weights = simulation.sites[selection.user], Course(), NOBODY
    held_out = user.data.validation if len(user.data.validation) else user.data.train
    model = user.build("proxy")
    rate = public(SiteRound(user, 0).effort(ROLE, model).rate)
    for number in range(selection.study.rounds):
        heard = {n: await _asked(simulation, n, number, model, rate) for n in sorted(simulation.sites)}
        own = heard.pop(selection.user)
        if is_still(own):
            break
        before = weights.joined_by(frozenset(heard), "median")
        weights, told = eroded(weights, own, heard, p_d, p_s, "median")
        out.hidden.extend([] if told else [number])
        _note(out, before, weights, own, heard, p_d, p_s)
        total = 1 + sum(weights.share[n].value for n in heard)
        for name, said in heard.items():
            share = rate.value * weights.share[name].value / total
            gain = share * slope(user, model, said.gradient.params, held_out)
            out.slopes[name] = out.slopes.get(name, np.zeros(len(held_out))) + gain
        model = step(model, rate, own, heard, weights)
    return out


async def _asked(
    simulation: Simulation, name: str, number: int, model: Model, rate: Scalar
) -> ReleasedGradient:
    """A site's gradient at the user's model, after its gate."""
    site = SiteRound(simulation.sites[name], number)
    effort = site.effort(ROLE, model)
    trained = await site.train({ROLE: Descent(rate=rate.value)}, {ROLE: model}, protect=[ROLE])
    gradient = mix([(1 / rate, model), (-1 / rate, trained[ROLE])])
    gate = simulation.peers[name].gate
    admitted, scalars = gate.admit(gradient, {"noise": effort.noise}, round=number)
    assert admitted is not None
    return ReleasedGradient(admitted, scalars["noise"], public(effort.passes_of_a_batch))


def _note(
    out: Course,
    before: Weights,
    after: Weights,
    own: ReleasedGradient,
    heard: Mapping[str, ReleasedGradient],
    p_d: float,
    p_s: float,
) -> None:
    for name, said in heard.items():
        out.weights.setdefault(name, []).append(after.share[name].value)
        apart, falls = out.distances.setdefault(name, []), out.falls.setdefault(name, [])
        if (found := distance(own, said)) is not None:
            apart.append(found.value)
            falls.append(p_d * (1 + p_s * int(before.rounds[name] * said.passes.value + 1e-9)))


def slope(site: Participant, model: Model, direction: Params, records: Records) -> Losses:
    """How fast the loss of each record falls if the weights go against `direction`: ⟨∇ℓ, g⟩ for every record."""
    length = direction.norm()
    if length == 0:
        return np.zeros(len(records))
    stride, network, found = STRIDE / length, site.network("judged", model.architecture), []
    for sign in (1.0, -1.0):
        network.load(model.params + (sign * stride) * direction)
        found.append(losses_of(predict(network.module, records.inputs.to(site.device)).cpu(), records))
    return np.asarray((found[0] - found[1]) / (2 * stride))


ENOUGH = 3
"""The least number of rounds in which the user's own gradient was told from noise, before a peer is judged."""

ASIDE = math.sqrt(2)
"""The distance of two gradients of one length at a right angle; a peer that is nearer mostly pulls the same way."""


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
            PartnerScore(
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
