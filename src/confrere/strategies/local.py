"""Training alone: the alternative that every collaboration must beat."""

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


@strategy("local")
@dataclass(frozen=True)
class Local:
    """Each site trains alone and sends nothing («Regular» in Kalra, Wen et al. 2023).

    A site's real alternative to collaboration is training alone without noise, so that is the default;
    `noise = true` trains with the study's mechanism, as the published comparisons do.
    """

    noise: bool = False
    architecture: Literal["private", "proxy"] = "private"
    label: ClassVar[str] = "Alone"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    numbers: ClassVar[tuple[str, ...]] = ()

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
