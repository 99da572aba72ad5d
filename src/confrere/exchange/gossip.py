"""Push-sum along the edges of a round, with mass that is never lost or invented.

A site holds x = mass·θ. It sends shares of (x, mass) and keeps one; what arrives is added up, and
θ = x/mass again (Kempe et al. 2003). The sums of x and of mass over all sites, and over parcels on their way,
never change, so all sites approach the mean weighted by their starting mass. Parcels carry θ and the
mass beside it, which is the same and keeps their numbers in the range of weights.

Where the study asks for a combiner that tolerates attackers, mass does not travel. An attacker would claim any mass that it
likes, and the mass that it is sent would be gone: either way the honest sites' models would soon weigh nothing. So
every site keeps the mass that it started with, every peer counts alike, and what it pulls is cut to a radius
around one's own model (He, Karimireddy, Jaggi 2022). What is given up: Σ mass·θ is no longer conserved, and small sites count
as much as large ones. Where all sites send and receive alike, as on all of the graphs that come along but the star,
the plain mean of the models is what sites approach, as long as nothing is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from confrere.core.custody import ZERO, Scalar, public, strictest
from confrere.core.model import Model, mix
from confrere.core.protocols import GossipCombiner, Peers, Site
from confrere.exchange.combine import push_sum


@dataclass(frozen=True)
class Mass:
    """What a site's model weighs in the mean: where it started, what it holds now, since which epoch.

    `steady` says that what a site learns always counts as much as its starting mass. Without it an update
    counts by the mass that the site happens to hold, which mixing makes equal everywhere: a site
    with 40 records then moves the mean, noise and all, as much as one with 4,000.
    """

    start: Scalar
    held: Scalar
    epoch: int = 0
    steady: bool = False
    step: Scalar = ZERO
    """How far the last training went, where pulls are cut to that."""


STRONGEST = 10.0
"""The most that an update is scaled up where a site holds much less mass than it started with."""


def start_mass(site: Site, by: Literal["size", "equal"]) -> Mass:
    """Mass by declared size: the noise of a small site then weighs as little as its records do."""
    if by == "equal":
        return Mass(public(1.0), public(1.0))
    return Mass(public(site.size), public(site.size), steady=True)


async def gossip(peers: Peers, before: Model, after: Model, mass: Mass) -> tuple[Model, Mass, Model | None]:
    """One exchange: the mixed model, the mass, and the mean of the peers' models (None if nothing arrived).

    `before` and `after` are the model before and after this round's training. With steady mass the update
    between them is scaled by start/held, so that Σ mass·θ grows by start·update whatever is held.
    A new epoch of membership starts the mass anew; undelivered parcels were cancelled with the old one.
    """
    if isinstance(peers.combiner, GossipCombiner):
        return await _cautious(peers, before, after, mass, peers.combiner)
    held = mass.held if peers.epoch == mass.epoch else mass.start
    model = after
    if mass.steady and held.value > 0:
        scale = mass.start / held
        scale = Scalar(min(scale.value, STRONGEST), scale.custody)
        model = mix([(1 - scale, before), (scale, after)])
    inbox = await peers.exchange(model if held.value > 0 else None, mass=held)
    arrived = [p for p in inbox if p.model is not None]
    mixed, now = push_sum(model, held, peers.kept, arrived)
    received, weight = push_sum(model, ZERO, 0.0, arrived)
    return mixed, replace(mass, held=now, epoch=peers.epoch), received if weight.value > 0 else None


async def _cautious(
    peers: Peers, before: Model, after: Model, mass: Mass, combiner: GossipCombiner
) -> tuple[Model, Mass, Model | None]:
    """One exchange in which no peer can pull far, and mass stays at its site."""
    moved = after.params.distance(before.params)
    # a site whose budget is spent trains no more
    step = Scalar(moved, strictest([before.custody, after.custody])) if moved else mass.step
    inbox = await peers.exchange(after)
    mixed, received = combiner.gossip(after, inbox.current, peers.kept, step)
    return mixed, replace(mass, held=mass.start, epoch=peers.epoch, step=step), received
