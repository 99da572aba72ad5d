"""Federated mutual learning: a private model beside a common one that is averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.agreement import agree
from confrere.exchange.combine import Mean
from confrere.learning.mutual import Auto, teach
from confrere.learning.objectives import Direction, Teacher, check_share


@dataclass(frozen=True)
class State:
    private: Model
    proxy: Model
    received: Model | None


@strategy("fml")
@dataclass(frozen=True)
class FederatedMutualLearning:
    """Private and proxy learn from each other, the proxies' mean goes on (Shen et al. 2020).

    `teacher` is whom the proxy may learn from: "private" is as published and has no proven guarantee.
    """

    alpha: float | Auto = 0.5
    beta: float = 0.5
    teacher: Teacher = "peers"
    kl: Direction = "teacher-student"
    deploys: ClassVar[tuple[str, ...]] = ("private", "proxy")
    topology: ClassVar[str] = "complete"
    combines: ClassVar[str] = "models"

    def __post_init__(self) -> None:
        check_share(alpha=self.alpha, beta=self.beta)

    @property
    def unproven(self) -> str | None:
        return "the proxy learns from the private model" if self.teacher == "private" and self.beta else None

    def init(self, site: Site) -> State:
        return State(site.build("private"), site.build("proxy"), None)

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        news = await peers.news()
        models = await teach(
            site, state.private, news or state.proxy, news or state.received,
            alpha=self.alpha, beta=self.beta, teacher=self.teacher, kl=self.kl,
        )  # fmt: skip
        agreed = await agree(peers, models["proxy"], site.size, Mean())
        return State(models["private"], agreed, agreed)
