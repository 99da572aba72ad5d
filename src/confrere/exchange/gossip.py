"""Push-sum along the edges of a round, with mass that is never lost or invented.

A site holds x = mass·θ. It sends shares of (x, mass) and keeps one; what arrives is added up, and
θ = x/mass again (Kempe et al. 2003). The sums of x and of mass over all sites, and over parcels on their way,
never change, so all sites approach the mean weighted by their starting mass. Parcels carry θ and the
mass beside it, which is the same and keeps their numbers in the range of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from confrere.core.custody import public
from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.exchange.combine import push_sum


@dataclass(frozen=True)
class Mass:
    """What a site's model weighs in the mean: where it started, what it holds now, since which epoch."""

    start: float
    held: float
    epoch: int = 0


def start_mass(site: Site, by: Literal["size", "equal"]) -> Mass:
    """Mass by declared size: the noise of a small site then weighs as little as its records do."""
    start = float(site.size) if by == "size" else 1.0
    return Mass(start, start)


async def gossip(peers: Peers, model: Model, mass: Mass) -> tuple[Model, Mass, Model | None]:
    """One exchange: the mixed model, the mass, and what the peers alone said (None if nothing arrived).

    A new epoch of membership starts the mass anew; undelivered parcels were cancelled with the old one.
    """
    held = mass.held if peers.epoch == mass.epoch else mass.start
    inbox = await peers.exchange(model if held > 0 else None, mass=public(held))
    arrived = [p for p in inbox if p.model is not None]
    mixed, now = push_sum(model, held, peers.kept, arrived)
    heard, weight = push_sum(model, 0.0, 0.0, arrived)
    return mixed, Mass(mass.start, now, peers.epoch), heard if weight > 0 else None
