"""Swarm learning: an elected leader, another one in each round, averages; no update is lost or counted twice if it fails."""

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
from confrere.exchange.combine import Mean
from confrere.exchange.leader_handover import HandoverState, TrackedMean, next_mean, received_mean
from confrere.learning.common_state import CommonState, ModelsOrGradients, StepOf, latest, step_together
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    model: Model
    handover: HandoverState
    common: CommonState | None = None
    """Where gradients are exchanged: the model with what the common optimiser remembers."""


@strategy("swarm")
@dataclass(frozen=True)
class Swarm(ModelsOrGradients):
    """One model; a leader, another site in each round, averages and answers (Warnat-Herresthal et al. 2021).

    A site that gets no answer continues with what it has. A leader that returns finds out whether its mean was used;
    exchange/leader_handover.py explains how every update counts exactly once.
    """

    architecture: Literal["private", "proxy"] = "proxy"
    exchange: Literal["models", "gradients"] = "models"
    """With "gradients" the leader adds up gradients, and a round is one step (see fedavg)."""
    label: ClassVar[str] = "Swarm learning"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    topology: ClassVar[str] = "star"
    numbers_of_models: ClassVar[tuple[str, ...]] = ("weight", "since", "line", "in * *")

    def init(self, site: Site) -> State:
        fresh = site.build(self.architecture)
        return State(fresh, HandoverState(TrackedMean(fresh)))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        if peers.centre is None:
            raise StudyError('swarm needs a leader: leave the topology out, or set topology = "star"')
        if self.gradient_sums:
            return await self._step(state, site, peers)
        handover = state.handover
        for parcel in await peers.latest_common():
            assert parcel.model is not None
            mean = received_mean(parcel.scalars, parcel.model)
            if mean.since < peers.round:
                handover = handover.adopt(mean)
        before = handover.model()
        after = (await site.train({"model": Supervised()}, {"model": before}, protect=["model"]))["model"]
        handover = handover.learned(peers.round, sorted(peers.members).index(peers.me), before, after)
        numbers = {"weight": public(site.size), **handover.mean.scalars()}
        inbox = await peers.exchange(after, **numbers)
        if peers.me == peers.centre:
            own = Parcel("", peers.epoch, peers.round, 0, peers.me, peers.me, 0, after, numbers)
            mean = _average(peers, [own, *(p for p in inbox.current if _was_possible(p, peers.round))])
            await peers.answer({p.sender: mean.model for p in inbox.current}, **mean.scalars())
            await peers.send_common(mean.model, **mean.scalars())
            handover = handover.adopt(mean)
        else:
            for parcel in (await peers.answer({})).current:
                if parcel.sender == peers.centre and parcel.model is not None:
                    mean = received_mean(parcel.scalars, parcel.model)
                    if (
                        mean.since == peers.round
                    ):  # whatever else a leader claims is not its mean of this round
                        handover = handover.adopt(mean)
        return State(handover.model(), handover)

    async def _step(self, state: State, site: Site, peers: Peers) -> State:
        common = await latest(state.common or CommonState(state.model), site.optimiser(), peers)
        common, _ = await step_together(common, Supervised(), site, peers, StepOf("model", self.architecture))
        return State(common.model, state.handover, common)


def _was_possible(parcel: Parcel, round: int) -> bool:
    """Whether a parcel holds a model that was trained from a mean of an earlier round."""
    return parcel.model is not None and parcel.scalar("since", -1.0).value < round


def _average(peers: Peers, parcels: Sequence[Parcel]) -> TrackedMean:
    """The mean of the models that were trained from the same mean: the group with the most records; of two, the newer."""
    groups: dict[int, list[Parcel]] = {}
    weights = {p.id: p.scalar("weight", 0.0) for p in parcels}
    for p in sorted(parcels, key=lambda p: (-weights[p.id].value, p.sender)):
        groups.setdefault(int(p.scalar("since", -1.0).value), []).append(p)
    since = max(groups, key=lambda s: (sum(max(0.0, weights[p.id].value) for p in groups[s]), s))
    first, *others = groups[since]
    assert first.model is not None
    combiner = peers.combiner or Mean()
    agreed: Model = combiner(first.model, weights[first.id], others)
    # the numbers of all parcels decide whose models are averaged
    agreed = agreed.held(strictest(n.custody for p in parcels for n in p.scalars.values()))
    base = received_mean(first.scalars, first.model)
    return next_mean(base, peers.round, agreed, [p.sender for p in groups[since]], peers.members)
