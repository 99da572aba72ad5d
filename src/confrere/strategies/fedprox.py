"""Federated averaging whose local training may not stray far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.custody import public
from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import agree, common_model
from confrere.exchange.combine import Mean
from confrere.learning.objectives import Near


@dataclass(frozen=True)
class State:
    model: Model


@strategy("fedprox")
@dataclass(frozen=True)
class FedProx:
    """FedAvg with (pull/2)·‖w − w_round‖² in the local loss (Li et al. 2020).

    The pull does not depend on records: in a private step it is added after the noise.
    """

    pull: float = 0.01
    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "FedProx"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    numbers: ClassVar[tuple[str, ...]] = ("weight",)
    topology: ClassVar[str] = "complete"
    combines: ClassVar[str] = "models"

    def __post_init__(self) -> None:
        if not 0 <= self.pull < math.inf:
            raise StudyError(f"pull is a number of at least 0, not {self.pull}")

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        model = await common_model(peers) or state.model
        models = await site.train(
            {"model": Near("start", self.pull)},
            {"model": model, "start": model},
            protect=["model"],
        )
        return State(await agree(peers, models["model"], public(site.size), Mean()))
