"""Averaging by gossip: one model, push-sum instead of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.gossip import Mass, gossip, start_mass
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    model: Model
    mass: Mass


@strategy("avgpush")
@dataclass(frozen=True)
class AvgPush:
    """Each site trains the model, then push-sum mixes it along the graph («AvgPush», Kalra, Wen et al. 2023)."""

    mass: Literal["size", "equal"] = "size"
    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "AvgPush"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    numbers: ClassVar[tuple[str, ...]] = ("mass",)
    topology: ClassVar[str] = "exponential"
    combines: ClassVar[str] = "by gossip"

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture), start_mass(site, self.mass))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        models = await site.train({"model": Supervised()}, {"model": state.model}, protect=["model"])
        model, mass, _ = await gossip(peers, state.model, models["model"], state.mass)
        return State(model, mass)
