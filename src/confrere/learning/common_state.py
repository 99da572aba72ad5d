"""The common model and its optimiser's moments: the same step at every site, and what a site that missed it receives.

Every site makes the same step from the same state, so that all of them hold the same model without exchanging it. A
site that missed a round is sent model and moments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from confrere.core.custody import Scalar, public, strictest
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Loss, OpenedSum, Optimiser, Peers, Site
from confrere.exchange.screening import LARGEST
from confrere.exchange.sums import SINCE, SUM, VERSION, VERSION_BITS

IN_COMMON = "common "
"""The prefix of numbers that go with the common state."""

SUM_RANGES = {
    **dict.fromkeys(("weight", f"{SUM}weight"), (1e-9, LARGEST)),  # gradients are divided by it
    **dict.fromkeys(("rate", f"{SUM}rate", "steps"), (0.0, LARGEST)),  # rates are bounded by the weights too
    **dict.fromkeys((SINCE, VERSION), (0.0, float(2**VERSION_BITS))),
}
"""The numbers that go with sums of gradients."""


class ModelsOrGradients:
    """Base of strategies with the option `exchange`: a round exchanges models, or is one step on the sum of all gradients.

    A subclass states what holds for models; what holds for gradients is stated here (see `StrategyTraits`).
    """

    exchange: Literal["models", "gradients"]
    combines_models: ClassVar[str | None] = "models"
    numbers_of_models: ClassVar[tuple[str, ...]] = ("weight",)

    @property
    def gradient_sums(self) -> bool:
        return self.exchange == "gradients"

    @property
    def combines(self) -> str | None:
        return (
            None if self.gradient_sums else self.combines_models
        )  # a sum does not show the parts of single sites

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(SUM_RANGES) if self.gradient_sums else self.numbers_of_models

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        return SUM_RANGES if self.gradient_sums else {}

    @property
    def steps(self) -> int | None:
        return 1 if self.gradient_sums else None


@dataclass(frozen=True)
class CommonState:
    """What all sites have in common between two sums."""

    model: Model
    moments: dict[str, Model] = field(default_factory=dict)
    """The vectors that the optimiser remembers, in the shape of the model."""
    version: int = 0
    """Identifies the sums that the state was made of."""
    steps: int = 0
    numbers: dict[str, Scalar] = field(default_factory=dict)
    """Further numbers that follow from what was opened."""


async def latest(state: CommonState, optimiser: Optimiser, peers: Peers) -> CommonState:
    """The current common state: one's own, or what the others send to a site that was not there."""
    names = _vectors(optimiser)
    parcels = await peers.latest_common(1 + len(names))
    models = [p.model for p in parcels if p.model is not None]
    if len(models) != 1 + len(names):
        return state
    numbers = parcels[0].scalars
    held = strictest(number.custody for number in numbers.values())
    moments = {name: moment.held(held) for name, moment in zip(names, models[1:], strict=True)}
    version, steps = (int(numbers[n].value) if n in numbers else 0 for n in ("version", "steps"))
    more = {n.removeprefix(IN_COMMON): v for n, v in numbers.items() if n.startswith(IN_COMMON)}
    return CommonState(models[0].held(held), moments, version, steps, more)


async def send(state: CommonState, optimiser: Optimiser, peers: Peers) -> None:
    """Send the common state to sites that missed the round."""
    nothing = Model(state.model.params * 0.0, state.model.architecture, state.model.custody)
    moments = [state.moments.get(name, nothing) for name in _vectors(optimiser)]
    numbers = {"version": public(state.version), "steps": public(state.steps)}
    numbers |= {f"{IN_COMMON}{name}": value for name, value in state.numbers.items()}
    await peers.send_common(state.model, *moments, **numbers)


@dataclass(frozen=True)
class StepOf:
    """The model that is trained by steps on sums of gradients: its role, its network, and the models its loss reads."""

    role: str = "model"
    architecture: str = "proxy"
    reads: Mapping[str, Model] = field(default_factory=dict)


async def step_together(
    common: CommonState, loss: Loss, site: Site, peers: Peers, of: StepOf
) -> tuple[CommonState, Scalar | None]:
    """One step on the sum of all sites' gradients at the common model, the same at every site.

    Also returns the declared sizes of the sites in the sum; None where nothing was opened, and the state stays.
    """
    rule, size = site.optimiser(), public(site.size)
    gradient = await site.gradient_sum(loss, at=common.model, role=of.role, reads=of.reads)
    opened = await peers.sum(gradient, since=common.version, weight=size, rate=size * rule.learning_rate)
    if opened is None:
        if peers.diverged:
            await send(common, rule, peers)
        return common, None
    common = stepped(common, rule, opened, trainable_names(site, of.architecture))
    await send(common, rule, peers)
    return common, opened.scalars["weight"]


def trainable_names(site: Site, role: str) -> list[str]:
    """The names of the weights of a role's network that are trained."""
    return [name for name, p in site.module(role).named_parameters() if p.requires_grad]


def stepped(
    state: CommonState,
    optimiser: Optimiser,
    opened: OpenedSum,
    trainable: Collection[str],
    divisor: str = "weight",
) -> CommonState:
    """The state after one step along the mean gradient: the sum over the declared sizes of those that are in it.

    `opened` holds the declared sizes, or another `divisor`, and each learning rate times that as `rate`.
    """
    weight, rate = opened.scalars[divisor], opened.scalars["rate"]
    common: Any = replace(optimiser, learning_rate=rate.value / weight.value)  # type: ignore[type-var]
    model, names = state.model, sorted(trainable)
    weights = _joined(model.params, names)
    gradient = _joined(opened.vector.params, names) / weight.value
    memory = common.start(weights.numel())
    for key, fresh in memory.items():
        if fresh.ndim == 0:
            memory[key] = fresh + state.steps
        elif key in state.moments:
            memory[key] = _joined(state.moments[key].params, names)
    common.update(weights, gradient.to(weights.dtype), memory)
    custody = strictest([model.custody, opened.vector.custody, weight.custody, rate.custody])

    def shaped(flat: Tensor, start: Params) -> Model:
        return Model(_divided(flat, names, start), model.architecture, custody)

    nothing = model.params * 0.0
    moments = {key: shaped(memory[key], nothing) for key in _vectors(optimiser)}
    return CommonState(shaped(weights, model.params), moments, opened.version, state.steps + 1, state.numbers)


def at_rest(state: CommonState, optimiser: Optimiser) -> CommonState:
    """The same model before the first step of this optimiser."""
    nothing = Model(state.model.params * 0.0, state.model.architecture, state.model.custody)
    return replace(state, moments=dict.fromkeys(_vectors(optimiser), nothing), steps=0)


def _vectors(optimiser: Optimiser) -> list[str]:
    """The names of the vectors that an optimiser remembers."""
    return sorted(key for key, value in optimiser.start(1).items() if value.ndim)


def _joined(params: Params, names: list[str]) -> Tensor:
    return torch.cat([params[name].reshape(-1) for name in names])


def _divided(flat: Tensor, names: list[str], start: Params) -> Params:
    parts = torch.split(flat, [start[name].numel() for name in names])
    moved = {name: part.view_as(start[name]) for name, part in zip(names, parts, strict=True)}
    return Params({**start, **moved})
