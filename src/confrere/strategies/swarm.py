"""Swarm learning: a leader that is elected for each round averages, and nothing is lost or counted twice if it dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from confrere.core.custody import public, strictest
from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.combine import Mean as Average
from confrere.exchange.leader_handover import Mean, Standing, following, mean_of
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    model: Model
    standing: Standing


@strategy("swarm")
@dataclass(frozen=True)
class Swarm:
    """One model; a leader, another site in each round, averages and answers (Warnat-Herresthal et al. 2021).

    A site that gets no answer goes on with what it has, and a leader that comes back finds out whether anybody has its
    mean: see exchange/leader_handover.py for how every update comes to count once.
    """

    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "Swarm learning"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    numbers: ClassVar[tuple[str, ...]] = ("weight", "since", "line", "in * *")
    topology: ClassVar[str] = "star"
    combines: ClassVar[str] = "models"

    def init(self, site: Site) -> State:
        fresh = site.build(self.architecture)
        return State(fresh, Standing(Mean(fresh)))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        if peers.centre is None:
            raise StudyError('swarm needs a leader: leave the topology out, or say topology = "star"')
        standing = state.standing
        for parcel in await peers.latest_common():
            assert parcel.model is not None
            standing = standing.adopt(mean_of(parcel.scalars, parcel.model))
        before = standing.model()
        after = (await site.train({"model": Supervised()}, {"model": before}, protect=["model"]))["model"]
        standing = standing.learned(peers.round, sorted(peers.members).index(peers.me), before, after)
        told = {"weight": public(site.size), **standing.mean.scalars()}
        inbox = await peers.exchange(after, **told)
        if peers.me == peers.centre:
            own = Parcel("", peers.epoch, peers.round, 0, peers.me, peers.me, 0, after, told)
            mean = _led(peers, [own, *(p for p in inbox.current if p.model is not None)])
            await peers.answer({p.sender: mean.model for p in inbox.current}, **mean.scalars())
            await peers.send_common(mean.model, **mean.scalars())
            standing = standing.adopt(mean)
        else:
            for parcel in (await peers.answer({})).current:
                if parcel.sender == peers.centre and parcel.model is not None:
                    standing = standing.adopt(mean_of(parcel.scalars, parcel.model))
        return State(standing.model(), standing)


def _led(peers: Peers, parcels: Sequence[Parcel]) -> Mean:
    """The mean of the models that began with the same mean: those of most records, and of the newer one in a tie."""
    began: dict[int, list[Parcel]] = {}
    weights = {p.id: p.scalar("weight", 0.0) for p in parcels}
    for p in sorted(parcels, key=lambda p: (-weights[p.id].value, p.sender)):
        began.setdefault(int(p.scalar("since", -1.0).value), []).append(p)
    since = max(began, key=lambda s: (sum(max(0.0, weights[p.id].value) for p in began[s]), s))
    first, *others = began[since]
    assert first.model is not None
    combiner = peers.combiner or Average()
    agreed: Model = combiner(first.model, weights[first.id], others)
    # whose models are averaged is read from everyone's numbers
    agreed = agreed.held(strictest(n.custody for p in parcels for n in p.scalars.values()))
    base = mean_of(first.scalars, first.model)
    return following(base, peers.round, agreed, [p.sender for p in began[since]], peers.members)
