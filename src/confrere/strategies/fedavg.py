"""Federated averaging, without a server: the synchronising site may be any site, or every site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.agreement import agree
from confrere.exchange.combine import Mean
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    model: Model


@strategy("fedavg")
@dataclass(frozen=True)
class FedAvg:
    """One model; each site trains it, the mean weighted by declared sizes goes on (McMahan et al. 2017)."""

    architecture: Literal["private", "proxy"] = "proxy"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    topology: ClassVar[str] = "complete"
    combines: ClassVar[str] = "models"

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        model = await peers.news() or state.model
        models = await site.train({"model": Supervised()}, {"model": model}, protect=["model"])
        return State(await agree(peers, models["model"], site.size, Mean()))
