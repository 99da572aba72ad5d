"""Federated averaging, without a server: the synchronising site may be any site, or every site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.custody import public
from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import agree, common_model
from confrere.exchange.combine import Mean
from confrere.learning.common_state import CommonState, ModelsOrGradients, StepOf, latest, step_together
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    model: Model
    common: CommonState | None = None
    """Where gradients are exchanged: the model with what the common optimiser remembers."""


@strategy("fedavg")
@dataclass(frozen=True)
class FedAvg(ModelsOrGradients):
    """One model; each site trains it, the mean weighted by declared sizes goes on (McMahan et al. 2017).

    With `exchange = "gradients"` (FedSGD there) a round is one step: each site releases the sum of its records' clipped
    gradients at the common model, and the study's optimiser acts on the sum over all sites divided by their declared
    sizes. Its moments are common too. `privacy.steps`, `training.epochs` and `training.batch_size` do not apply.
    """

    architecture: Literal["private", "proxy"] = "proxy"
    exchange: Literal["models", "gradients"] = "models"
    label: ClassVar[str] = "FedAvg"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    topology: ClassVar[str] = "complete"

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        if self.gradient_sums:
            return await self._step(state.common or CommonState(state.model), site, peers)
        model = await common_model(peers) or state.model
        models = await site.train({"model": Supervised()}, {"model": model}, protect=["model"])
        return State(await agree(peers, models["model"], public(site.size), Mean()))

    async def _step(self, common: CommonState, site: Site, peers: Peers) -> State:
        common = await latest(common, site.optimiser(), peers)
        common, _ = await step_together(common, Supervised(), site, peers, StepOf("model", self.architecture))
        return State(common.model, common)
