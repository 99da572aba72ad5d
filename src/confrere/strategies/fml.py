"""Federated mutual learning: a private model beside a common one that is averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from confrere.core.custody import Scalar, public
from confrere.core.model import Model
from confrere.core.protocols import Peers, Predictor, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import agree, common_model
from confrere.exchange.combine import Mean
from confrere.learning.common_state import CommonState, ModelsOrGradients
from confrere.learning.mutual import Auto, Mutual, fit_on_top, stack_weight, stacked
from confrere.learning.objectives import Direction, Teacher, check_share


@dataclass(frozen=True)
class State:
    private: Model
    proxy: Model
    received: Model | None
    weight: Scalar
    """How much of the proxy's output is added to the private model's."""
    sites: int = 1
    common: CommonState | None = None
    """Where gradients are exchanged: the proxy with what the common optimiser remembers."""


@strategy("fml")
@dataclass(frozen=True)
class FederatedMutualLearning(ModelsOrGradients):
    """Private and proxy learn from each other, the proxies' mean goes on (Shen et al. 2020).

    `teacher` is whom the proxy may learn from: "private" is as published and has no proven guarantee. As in ProxyFL, the
    private model learns on top of the proxy (`private = "stack"`) and is trained to the end when all rounds are over, with
    the proxy or without it, whichever does better on records left out. With `private = "distil"`, as published, it learns
    from the proxy's predictions, weighted by `alpha`, and ends with the last round.
    """

    private: Literal["stack", "distil"] = "stack"
    alpha: float | Auto = 0.5
    beta: float = 0.5
    teacher: Teacher = "peers"
    kl: Direction = "teacher-student"
    exchange: Literal["models", "gradients"] = "models"
    """With "gradients" the proxy makes one step a round, on the sum of all sites' gradients (see fedavg)."""
    label: ClassVar[str] = "Federated mutual learning"
    deploys: ClassVar[tuple[str, ...]] = ("private", "proxy")
    common: ClassVar[str] = "proxy"
    topology: ClassVar[str] = "complete"

    def __post_init__(self) -> None:
        check_share(alpha=self.alpha, beta=self.beta)

    @property
    def unproven(self) -> str | None:
        return "the proxy learns from the private model" if self.teacher == "private" and self.beta else None

    @property
    def compares_with_alone(self) -> bool:
        return self.private == "stack"

    def init(self, site: Site) -> State:
        return State(site.build("private"), site.build("proxy"), None, public(0.0))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        if self.gradient_sums:
            return await self._step(state, site, peers)
        current = await common_model(peers)
        learning = Mutual(self.alpha, self.beta, self.teacher, self.kl)
        stack = state.weight if self.private == "stack" else None
        models = await learning.teach(
            site, state.private, current or state.proxy, current or state.received, stack=stack
        )
        agreed = await agree(peers, models["proxy"], public(site.size), Mean())
        weight = state.weight if stack is None else await stack_weight(site, agreed)
        return State(models["private"], agreed, agreed, weight, len(peers.members))

    async def _step(self, state: State, site: Site, peers: Peers) -> State:
        """A round in which the proxy makes one step on the sum of all sites' gradients."""
        common = state.common or CommonState(state.proxy)
        learning = Mutual(self.alpha, self.beta, self.teacher, self.kl)
        stack = state.weight if self.private == "stack" else None
        own, common, _ = await learning.step(common, state.private, site, peers, stack=stack)
        weight = state.weight if stack is None else await stack_weight(site, common.model)
        return State(own, common.model, common.model, weight, len(peers.members), common)

    async def finish(self, state: State, site: Site) -> State:
        if self.private != "stack":
            return state
        # what the others hold is known to the centre alone; a site counts peers as large as itself
        own, weight = await fit_on_top(site, state.proxy, public(1 / state.sites))
        return replace(state, private=own, weight=weight)

    def predictors(self, state: State) -> Mapping[str, Predictor]:
        return stacked(state.private, state.weight, state.proxy)
