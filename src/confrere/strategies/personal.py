"""Personalised models: a common model fine-tuned on a site's records, or interpolated with the site's own model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from confrere.core.custody import Custody, public
from confrere.core.errors import StudyError
from confrere.core.model import Model, mix
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import agree, common_model
from confrere.exchange.combine import Mean
from confrere.learning.objectives import Near, Supervised

SHARES = tuple(n / 10 for n in range(11))


@dataclass(frozen=True)
class State:
    model: Model
    common: Model
    own: Model


@strategy("personal")
@dataclass(frozen=True)
class Personal:
    """Federated averaging for a common model that each site then makes its own (Mansour et al. 2020).

    `how = "fine-tune"`: when all rounds are over, a site trains the common model on with its own records, held to where it
    came from by `pull`, for up to `epochs` rounds of local training, and keeps the state that did best on records it had
    held back; the common model itself is one of them. `how = "interpolate"`: beside the common model each site trains one
    of its own, alone, and uses λ·own + (1 − λ)·common of their weights, λ by the same records. Neither leaves the
    site, so neither costs privacy: only the common model is trained with noise.
    """

    how: Literal["fine-tune", "interpolate"] = "fine-tune"
    pull: float = 0.0
    epochs: int = 20
    architecture: Literal["private", "proxy"] = "proxy"
    deploys: ClassVar[tuple[str, ...]] = ("model", "common")
    common: ClassVar[str] = "common"
    numbers: ClassVar[tuple[str, ...]] = ("weight",)
    topology: ClassVar[str] = "complete"
    combines: ClassVar[str] = "models"

    def __post_init__(self) -> None:
        if not 0 <= self.pull < math.inf:
            raise StudyError(f"pull is a number of at least 0, not {self.pull}")
        if self.epochs < 1:
            raise StudyError(f"epochs is {self.epochs}; a site makes at least one")

    def init(self, site: Site) -> State:
        fresh = site.build(self.architecture)
        return State(fresh.held(Custody.PRIVATE), fresh, fresh)

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        start, losses = await common_model(peers) or state.common, {"common": Supervised()}
        if self.how == "interpolate":
            losses["own"] = Supervised()
        models = await site.train(losses, {"common": start, "own": state.own}, protect=["common"])
        common, own = await agree(peers, models["common"], public(site.size), Mean()), models["own"]
        if self.how == "fine-tune":
            return State(common.held(Custody.PRIVATE), common, own)
        return State(await best(site, _between(own, common)), common, own)

    async def finish(self, state: State, site: Site) -> State:
        if self.how == "interpolate":
            return state
        tried, model = [state.common], state.common
        for _ in range(self.epochs):
            loss, models = Near("start", self.pull), {"model": model, "start": state.common}
            model = (await site.train({"model": loss}, models))["model"]
            tried.append(model)
        return replace(state, model=await best(site, tried))


def _between(own: Model, common: Model) -> list[Model]:
    return [mix([(public(share), own), (public(1 - share), common)]) for share in SHARES]


async def best(site: Site, tried: list[Model]) -> Model:
    """The model that errs least on what the site has held back: PRIVATE, since that choice reads records."""
    losses = [(await site.evaluate({"tried": model}))["tried"]["loss"].value for model in tried]
    return tried[losses.index(min(losses))].held(Custody.PRIVATE)
