"""All records in one place: what collaboration would reach if records could be shared. Simulation only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    model: Model


@strategy("pooled")
@dataclass(frozen=True)
class Pooled:
    """One model on the records of all sites («Joint» in Kalra, Wen et al. 2023): the upper bound.

    The simulation hands this strategy a site that holds all records; no other runtime can.
    """

    noise: bool = False
    architecture: Literal["private", "proxy"] = "private"
    label: ClassVar[str] = "All records pooled"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    numbers: ClassVar[tuple[str, ...]] = ()
    pools: ClassVar[bool] = True

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        protect = ["model"] if self.noise else []
        models = await site.train({"model": Supervised()}, {"model": state.model}, protect=protect)
        return State(models["model"])

    async def finish(self, state: State, site: Site) -> State:
        if self.noise:
            return state
        start = site.build(self.architecture)
        return State((await site.fit([Supervised()], "model", {"model": start})).model)
