"""Cyclical weight transfer: one model per site travels round the ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.custody import public
from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.combine import Replace
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    model: Model


@strategy("cwt")
@dataclass(frozen=True)
class CyclicalWeightTransfer:
    """Train what the neighbour sent, pass it on (Chang et al. 2018). Nothing arrived: train on."""

    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "Cyclic weight transfer"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    numbers: ClassVar[tuple[str, ...]] = ()
    topology: ClassVar[str] = "ring"

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        models = await site.train({"model": Supervised()}, {"model": state.model}, protect=["model"])
        inbox = await peers.exchange(models["model"])
        return State(Replace()(models["model"], public(1.0), inbox.parcels))
