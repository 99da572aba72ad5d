"""Gradient similarity: train for the user by Weight Erosion, and rank peers by how well their gradients agree with its own."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from confrere.core.custody import Scalar, public
from confrere.core.model import Model, mix
from confrere.core.params import Params
from confrere.data.records import Records
from confrere.exchange.erosion import NO_WEIGHTS, ReleasedGradient, distance, eroded, is_still, step
from confrere.learning.evaluation import predict
from confrere.learning.objectives import Descent
from confrere.partners.learner import Losses, losses_of, patients_in
from confrere.partners.ranking import Candidate, Criteria, Finding, Ranking, ranked
from confrere.partners.selection_budget import GRADIENTS, Selection
from confrere.simulation.simulation import Simulation
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.statistics.fixed_model_gain import FixedEffect, JudgedPatients

ROLE = "asked"
STEP = 1e-3
"""How far weights are moved to measure the slope of a loss."""

P_D, P_S = 0.01, 0.2
"""The two rates of Weight Erosion (exchange/erosion.py)."""


@dataclass
class PeerGradients:
    """One peer's gradients over the rounds, seen from the user."""

    weights: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    """Only for rounds in which noise did not hide the user's own gradient."""
    falls: list[float] = field(default_factory=list)
    """How much weight a distance of 1 cost the peer, for the same rounds."""
    gains: Losses = field(default_factory=lambda: np.zeros(0))
    """How much the peer's steps lowered the loss of each held-out record of the user: PRIVATE to it."""


@dataclass(frozen=True)
class GradientHistory:
    """The gradients of all peers, and the rounds in which noise hid the user's own gradient."""

    peers: dict[str, PeerGradients]
    patients: JudgedPatients
    """Those of the user's held-out records."""
    hidden: list[int] = field(default_factory=list)


def gradient_history(selection: Selection) -> GradientHistory:
    """Train by Weight Erosion for the user, and record what each peer's gradients do to its held-out records."""
    return asyncio.run(_gradient_history(selection))


async def _gradient_history(selection: Selection) -> GradientHistory:
    simulation = selection.prepare(GRADIENTS, {"name": "weight_erosion", "user": selection.user})
    user, weights = simulation.sites[selection.user], NO_WEIGHTS
    held_out = user.data.validation if len(user.data.validation) else user.data.train
    peers = {n: PeerGradients(gains=np.zeros(len(held_out))) for n in selection.peers}
    out = GradientHistory(peers, patients_in(held_out))
    model = user.build("proxy")
    rate = public(SiteRound(user, 0).effort(ROLE, model).rate)
    for number in range(selection.study.rounds):
        received = {n: await _gradient(simulation, n, number, model, rate) for n in sorted(simulation.sites)}
        own = received.pop(selection.user)
        if is_still(own):
            break
        before = weights.joined_by(frozenset(received), "median")
        weights, clear = eroded(weights, own, received, P_D, P_S, "median")
        out.hidden.extend([] if clear else [number])
        total = 1 + sum(weights.share[n].value for n in received)
        for name, sent in received.items():
            peer, share = out.peers[name], weights.share[name].value
            peer.weights.append(share)
            if (apart := distance(own, sent)) is not None:
                peer.distances.append(apart.value)
                peer.falls.append(P_D * (1 + P_S * int(before.rounds[name] * sent.passes.value + 1e-9)))
            peer.gains += rate.value * share / total * slope(user, model, sent.gradient.params, held_out)
        model = step(model, rate, own, received, weights)
    return out


async def _gradient(
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


def slope(site: Participant, model: Model, direction: Params, records: Records) -> Losses:
    """How fast the loss of each record falls along −`direction`: ⟨∇ℓ, g⟩ for every record."""
    length = direction.norm()
    if length == 0:
        return np.zeros(len(records))
    size, network, found = STEP / length, site.network("judged", model.architecture), []
    for sign in (1.0, -1.0):
        network.load(model.params + (sign * size) * direction)
        found.append(losses_of(predict(network.module, records.inputs.to(site.device)).cpu(), records))
    return np.asarray((found[0] - found[1]) / (2 * size))


MIN_ROUNDS = 3
"""A peer is judged only after this many rounds in which noise did not hide the user's own gradient."""

RIGHT_ANGLE = math.sqrt(2)
"""The distance of two gradients of equal length at a right angle; a nearer peer mostly pulls the same way."""


def similarity_ranking(peers: Mapping[str, PeerGradients], criteria: Criteria) -> Ranking:
    """Peers by the weight that is left.

    Distances vary from round to round with batch and noise; the error of a weight is the sum of what they cause.
    """
    return Ranking(
        "similarity", "Gradient similarity",
        "the weight that Weight Erosion leaves the peer; from 1 (alike) to 0 (faded); more is better",
        ranked([_candidate(name, peer, criteria.user) for name, peer in peers.items() if peer.weights]),
        criteria.sends("a gradient in every round"), not criteria.released,
    )  # fmt: skip


def _candidate(name: str, peer: PeerGradients, user: str) -> Candidate:
    left, apart = peer.weights[-1], peer.distances
    spread = statistics.stdev(apart) if len(apart) > 1 else math.inf
    error = spread * sum(f * f for f in peer.falls) ** 0.5 if apart else math.inf
    mean = statistics.fmean(apart) if apart else math.nan
    favour = None
    if len(apart) >= MIN_ROUNDS:
        favour = FixedEffect(RIGHT_ANGLE - mean, spread**2 / len(apart), len(apart) - 1)
    how_far = f", mean distance {mean:.2f}" if apart else ""

    def sentence(finding: Finding) -> str:
        if finding == "noise":
            words = f"Noise hid what {user} itself wants to learn, so little can be said about {name}"
        elif finding == "yes":
            words = f"{name} mostly pulls the model where {user} would"
        elif left > 0:
            words = f"{name} often pulls the model away from where {user} would"
        else:
            words = f"{name} pulls the model away from where {user} would, until it no longer counts"
        return f"{words} (weight left {left:.2f}{how_far})."

    terms = {"mean_distance": mean, "mean_weight": statistics.fmean(peer.weights)}
    return Candidate(name, left, error, favour, sentence, terms, left > 0)
