"""One training for the user, in which every peer's gradient is compared with the user's own and with its patients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from confrere.core.model import Model, mix
from confrere.core.params import Params
from confrere.data.records import Records
from confrere.exchange.erosion import NOBODY, Heard, Weights, distance, eroded, is_still, step
from confrere.learning.evaluate import predict
from confrere.learning.objectives import Descent
from confrere.personalize.learner import Losses, losses_of
from confrere.runtime.participant import Participant
from confrere.runtime.partners.budget import GRADIENTS, Selection
from confrere.runtime.simulate import Simulation

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
    rate = user.round(0).effort(ROLE, model).rate
    for number in range(selection.study.rounds):
        heard = {n: await _asked(simulation, n, number, model, rate) for n in sorted(simulation.sites)}
        own = heard.pop(selection.user)
        if is_still(own):
            break
        before = weights.joined_by(frozenset(heard), "median")
        weights, told = eroded(weights, own, heard, p_d, p_s, "median")
        out.hidden.extend([] if told else [number])
        _note(out, before, weights, own, heard, p_d, p_s)
        total = 1 + sum(weights.share[n] for n in heard)
        for name, said in heard.items():
            gain = rate * weights.share[name] / total * slope(user, model, said.gradient.params, held_out)
            out.slopes[name] = out.slopes.get(name, np.zeros(len(held_out))) + gain
        model = step(model, rate, own, heard, weights)
    return out


async def _asked(simulation: Simulation, name: str, number: int, model: Model, rate: float) -> Heard:
    """A site's gradient at the user's model, after its gate."""
    site = simulation.sites[name].round(number)
    effort = site.effort(ROLE, model)
    trained = await site.train({ROLE: Descent(rate=rate)}, {ROLE: model}, protect=[ROLE])
    gradient = mix([(1 / rate, model), (-1 / rate, trained[ROLE])])
    gate = simulation.offices[name].gate
    admitted, scalars = gate.admit(gradient, {"noise": effort.noise}, round=number)
    assert admitted is not None
    return Heard(admitted, scalars["noise"].value, effort.passes_of_a_batch)


def _note(
    out: Course,
    before: Weights,
    after: Weights,
    own: Heard,
    heard: Mapping[str, Heard],
    p_d: float,
    p_s: float,
) -> None:
    for name, said in heard.items():
        out.weights.setdefault(name, []).append(after.share[name])
        apart, falls = out.distances.setdefault(name, []), out.falls.setdefault(name, [])
        if (found := distance(own, said)) is not None:
            apart.append(found)
            falls.append(p_d * (1 + p_s * int(before.rounds[name] * said.passes + 1e-9)))


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
