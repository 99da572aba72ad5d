"""ProxyFL: every site keeps a private model of its own and exchanges a small proxy by gossip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.gossip import Mass, gossip, start_mass
from confrere.learning.mutual import Auto, teach
from confrere.learning.objectives import Direction, Teacher


@dataclass(frozen=True)
class State:
    private: Model
    proxy: Model
    received: Model | None
    mass: Mass


@strategy("proxyfl")
@dataclass(frozen=True)
class ProxyFL:
    """Private and proxy models learn from each other; proxies are mixed by push-sum (Kalra, Wen et al. 2023).

    Our defaults differ from the published ones where those do harm or prove nothing: `alpha = "auto"`
    follows what the proxy is worth on the site's own held-out records, the proxy's `teacher` is what peers
    sent (a proxy that reads the private model has no guarantee), and mass follows the declared sizes.
    As published: alpha = 0.5, beta = 0.5, teacher = "private", mass = "equal", and the topology
    exponential with keep = 0 and rota = "published".
    """

    alpha: float | Auto = "auto"
    beta: float = 0.0
    teacher: Teacher = "peers"
    kl: Direction = "teacher-student"
    mass: Literal["size", "equal"] = "size"
    deploys: ClassVar[tuple[str, ...]] = ("private", "proxy")
    topology: ClassVar[str] = "exponential"

    @property
    def unproven(self) -> str | None:
        return "the proxy learns from the private model" if self.teacher == "private" and self.beta else None

    def init(self, site: Site) -> State:
        return State(site.build("private"), site.build("proxy"), None, start_mass(site, self.mass))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        models = await teach(
            site, state.private, state.proxy, state.received,
            alpha=self.alpha, beta=self.beta, teacher=self.teacher, kl=self.kl,
        )  # fmt: skip
        mixed, mass, heard = await gossip(peers, models["proxy"], state.mass)
        return State(models["private"], mixed, heard or state.received, mass)
