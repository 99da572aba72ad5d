"""Federated matched averaging: layer by layer, units that mean the same are found and averaged, the rest is retrained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from confrere.core.custody import Scalar, public, strictest
from confrere.core.model import Architecture, Model
from confrere.core.parcel import Parcel
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import common_model
from confrere.exchange.matching import Matching
from confrere.learning.networks.matched import chain, own_part, places_of, role, stages
from confrere.learning.networks.merging import Merging
from confrere.learning.objectives import Supervised

ROUNDED = 0.05
"""How far, relative to a layer, two copies of a common layer may lie apart: parcels may be compressed."""


@dataclass(frozen=True)
class State:
    own: Model
    """What the site trains: its own network, of which the first `stage` layers are common."""
    model: Model
    """What it uses: the last common network that was complete; before there is one, what it trained."""
    stage: int = 0
    since: int = -1
    """The round in which its common layers were last added to."""
    complete: bool = False


@dataclass(frozen=True)
class Sent:
    """A network that takes part in a round's matching."""

    site: str
    weight: Scalar
    model: Model
    since: int


@strategy("fedma")
@dataclass(frozen=True)
class FedMA(Matching):
    """Match the units of one layer a round, freeze the common layer, and retrain those above it (Wang et al. 2020).

    A network of L layers takes L rounds; then a new pass begins, in which each site goes on with those of the common
    units that its own were matched to. Units that are like no others become new ones, up to `growth` times as many as a
    layer has. `spread`, `scale` and `mass` are the prior of the matching (exchange/matching.py).
    The last layer is averaged by declared sizes; the published weights are class shares, which are not public.

    Networks are matched only if they have the same common layers: those of most records go on, and a site that was away
    receives what the others have. Where no site combines (the leader is gone), the same layer is tried again.
    """

    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "FedMA"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    numbers: ClassVar[tuple[str, ...]] = ("weight", "since")
    topology: ClassVar[str] = "star"

    def networks(self, spec: Any, base: Architecture) -> Mapping[str, Any]:
        """The networks of all stages, one for each number of common layers."""
        return stages(spec, len(chain(base.build(), base.name)), self.growth)

    def init(self, site: Site) -> State:
        fresh = site.build(self.architecture)
        return State(fresh, fresh)

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        merging = Merging(chain(site.module(self.architecture)), self.growth, self.prior)
        current = await common_model(peers)
        if current is not None:
            state = self._taken(state, current, site, merging, peers.round - 1)
        name = role(state.stage)
        trained = (await site.train({name: Supervised()}, {name: state.own}, protect=[name]))[name]
        state = replace(state, own=trained, model=state.model if state.complete else trained)
        inbox = await peers.exchange(trained, weight=public(site.size), since=public(state.since))
        if peers.centre not in (None, peers.me):
            answers = (await peers.answer({})).current
            answer = next((p.model for p in answers if p.sender == peers.centre), None)
            return state if answer is None else self._taken(state, answer, site, merging, peers.round)
        mine = Sent(peers.me, public(site.size), trained, state.since)
        following = self._matched([mine, *_arrived(inbox.current)], site, merging)
        if peers.centre is not None:
            await peers.answer({p.sender: following.get(p.sender, following[""]) for p in inbox.current})
        answer = following.get(peers.me, following[""])
        await peers.send_common(answer)
        return self._taken(state, answer, site, merging, peers.round)

    def _matched(self, sent: Sequence[Sent], site: Site, merging: Merging) -> dict[str, Model]:
        """The next network of every site that was matched, and under "" the one for all others."""
        group, stage = self._largest_group(sent, site, merging)
        mean = sum(s.weight.value for s in group) / len(group)
        custody = strictest([*(s.weight.custody for s in sent), *(s.model.custody for s in group)])
        like = site.build(role(stage + 1))
        params = merging.advance(
            stage, [s.model.params for s in group], [s.weight.value / mean for s in group], like.params.shapes
        )
        models = [Model(p, like.architecture, custody) for p in params]
        return {"": models[0], **{s.site: m for s, m in zip(group, models, strict=True)}}

    def _largest_group(self, sent: Sequence[Sent], site: Site, merging: Merging) -> tuple[list[Sent], int]:
        """Those of most records that have the same common layers, the largest first; ties go to the newer layers."""
        names = {self._base(site, n).architecture: n for n in range(len(merging.layers))}
        groups: list[tuple[int, list[Sent]]] = []
        for one in sorted(sent, key=lambda s: (-s.weight.value, s.site)):
            stage = names.get(one.model.architecture)
            if stage is None or one.weight.value <= 0 or not _fits(one.model, self._base(site, stage)):
                continue
            if places_of(one.model.params, merging.layers, self.growth) is None:
                continue
            for known, group in groups:
                if known == stage and group[0].since == one.since and _same(merging, stage, group[0], one):
                    group.append(one)
                    break
            else:
                groups.append((stage, [one]))
        stage, best = max(
            groups, key=lambda g: (sum(s.weight.value for s in g[1]), max(s.since for s in g[1]))
        )
        return best, stage

    def _taken(self, state: State, model: Model, site: Site, merging: Merging, round: int) -> State:
        """The state with common layers that were received or made; what does not fit changes nothing."""
        last = len(merging.layers)
        names = {self._base(site, n).architecture: n for n in range(1, last + 1)}
        stage = names.get(model.architecture)
        if stage is None or not _fits(model, self._base(site, stage)):
            return state
        if places_of(model.params, merging.layers, self.growth) is None:
            return state
        if stage < last:
            return replace(state, own=model, stage=stage, since=round)
        fresh = site.build(self.architecture)
        own = own_part(model.params, fresh.params, merging.layers, self.growth)
        return State(Model(own, fresh.architecture, model.custody), model, 0, round, complete=True)

    def _base(self, site: Site, stage: int) -> Model:
        return site.build(role(stage) if stage else self.architecture)


def _arrived(parcels: Sequence[Parcel]) -> list[Sent]:
    since = {p.id: p.scalar("since", -1.0) for p in parcels}
    return [
        Sent(p.sender, p.scalar("weight", 0.0), p.model.held(since[p.id].custody), int(since[p.id].value))
        for p in parcels
        if p.model is not None
    ]


def _fits(model: Model, like: Model) -> bool:
    return model.params.shapes == like.params.shapes and model.params.is_finite()


def _same(merging: Merging, stage: int, one: Sent, other: Sent) -> bool:
    """Whether two have the same common layers, but for what compression has rounded on the way."""
    pairs = zip(
        merging.prefix(stage, one.model.params), merging.prefix(stage, other.model.params), strict=True
    )
    return all(float((a - b).norm()) <= ROUNDED * float(a.norm()) for a, b in pairs)
