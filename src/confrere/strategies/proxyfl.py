"""ProxyFL: every site keeps a private model of its own and exchanges a small proxy by gossip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from confrere.core.custody import Scalar, public
from confrere.core.model import Model, mix
from confrere.core.protocols import Peers, Predictor, Site
from confrere.core.registry import strategy
from confrere.exchange.gossip import Mass, gossip, start_mass
from confrere.learning.common_state import CommonState, ModelsOrGradients
from confrere.learning.mutual import Auto, Mutual, fit_on_top, stack_weight, stacked
from confrere.learning.objectives import Direction, Teacher, check_share
from confrere.learning.private_centre import has_centre, profile, profile_together


@dataclass(frozen=True)
class State:
    private: Model
    proxy: Model
    received: Model | None
    mass: Mass
    weight: Scalar
    """How much of the proxy's output is added to the private model's."""
    sites: int = 1
    common: CommonState | None = None
    """Where gradients are exchanged: the proxy with what the common optimiser remembers."""
    ours: Scalar | None = None
    """There, this site's part of the records that the proxy has learned from."""
    smooth: Model | None = None
    """The mean of the last rounds' proxies, where the study asks for it."""

    @property
    def used(self) -> Model:
        """The proxy that the site's own model builds on."""
        return self.smooth or self.proxy


@strategy("proxyfl")
@dataclass(frozen=True)
class ProxyFL(ModelsOrGradients):
    """Private and proxy models learn from each other; proxies are mixed by push-sum (Kalra, Wen et al. 2023).

    Our defaults differ from the published ones where those do harm or prove nothing. The proxy's `teacher` is
    what peers sent (a proxy that reads the private model has no guarantee). What a site learns counts by
    its declared size (`mass`). And the private model learns on top of the proxy (`private = "stack"`): when all
    rounds are over it is trained to the end, regularised by cross-validation, with the proxy or without it,
    whichever does better on records left out. With `private = "distil"` the private model learns from the
    proxy's predictions, weighted by `alpha`; "auto" follows what the proxy is worth on held-out records.

    As published: private = "distil", alpha = 0.5, beta = 0.5, teacher = "private", mass = "equal", and the
    topology exponential with keep = 0 and rota = "published".
    """

    private: Literal["stack", "distil"] = "stack"
    alpha: float | Auto = "auto"
    beta: float = 0.0
    teacher: Teacher = "peers"
    kl: Direction = "teacher-student"
    mass: Literal["size", "equal"] = "size"
    settle: int = 3
    """A proxy with a centre ("centred-linear") spends this many rounds on agreeing about it."""
    average: float = 0.0
    """How much of the proxy that a site uses is the mean of earlier rounds': 0.9 smooths over about ten. On a sparse
    graph a site's latest proxy still holds much of its own latest noise. What is sent is never smoothed."""
    exchange: Literal["models", "gradients"] = "models"
    """With "gradients" the mean takes the place of push-sum: the proxy is common, and makes one step a round on the sum of
    all sites' gradients (see fedavg). Use topology = "complete" or "star"."""
    label: ClassVar[str] = "ProxyFL"
    deploys: ClassVar[tuple[str, ...]] = ("private", "proxy")
    topology: ClassVar[str] = "exponential"
    combines_models: ClassVar[str | None] = "by gossip"
    numbers_of_models: ClassVar[tuple[str, ...]] = ("mass",)

    def __post_init__(self) -> None:
        check_share(alpha=self.alpha, beta=self.beta, average=self.average)

    @property
    def unproven(self) -> str | None:
        return "the proxy learns from the private model" if self.teacher == "private" and self.beta else None

    @property
    def compares_with_alone(self) -> bool:
        return self.private == "stack"

    def init(self, site: Site) -> State:
        return State(
            site.build("private"), site.build("proxy"), None, start_mass(site, self.mass), public(0.0)
        )

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        if self.gradient_sums:
            return await self._step(state, site, peers)
        if peers.round < self.settle and has_centre(state.proxy):
            found = await profile(site, state.proxy)
            mixed, mass, _ = await gossip(peers, state.proxy, found, state.mass)
            return replace(state, proxy=mixed, mass=mass, sites=len(peers.members), smooth=None)
        learning = Mutual(self.alpha, self.beta, self.teacher, self.kl)
        stack = state.weight if self.private == "stack" else None
        models = await learning.teach(site, state.private, state.proxy, state.received, stack=stack)
        mixed, mass, heard = await gossip(peers, state.proxy, models["proxy"], state.mass)
        now = State(
            models["private"], mixed, heard or state.received, mass, state.weight, len(peers.members),
            smooth=self._smoothed(state.smooth, mixed),
        )  # fmt: skip
        return replace(now, weight=await stack_weight(site, now.used)) if self.private == "stack" else now

    async def _step(self, state: State, site: Site, peers: Peers) -> State:
        """A round in which the proxy makes one step on the sum of all sites' gradients."""
        common = state.common or CommonState(state.proxy)
        if peers.round < self.settle and has_centre(state.proxy):
            common = await profile_together(common, site, peers)
            return replace(state, proxy=common.model, common=common, sites=len(peers.members))
        learning = Mutual(self.alpha, self.beta, self.teacher, self.kl)
        stack = state.weight if self.private == "stack" else None
        own, common, records = await learning.step(common, state.private, site, peers, stack=stack)
        now = replace(
            state, private=own, proxy=common.model, received=common.model, common=common, sites=len(peers.members),
            ours=state.ours if records is None else public(site.size) / records,
            smooth=self._smoothed(state.smooth, common.model),
        )  # fmt: skip
        return now if stack is None else replace(now, weight=await stack_weight(site, now.used))

    def _smoothed(self, before: Model | None, mixed: Model) -> Model | None:
        if not self.average:
            return None
        return (
            mixed
            if before is None
            else mix([(public(self.average), before), (public(1 - self.average), mixed)])
        )

    async def finish(self, state: State, site: Site) -> State:
        if self.private != "stack":
            return state
        # mixing spreads the mass, so that what a site holds tells what all of them hold
        start, all_sites = state.mass.start, state.mass.held * state.sites
        ours = state.ours or start / Scalar(max(start.value, all_sites.value), all_sites.custody)
        own, weight = await fit_on_top(site, state.used, ours)
        return replace(state, private=own, weight=weight)

    def predictors(self, state: State) -> Mapping[str, Predictor]:
        return stacked(state.private, state.weight, state.used)
