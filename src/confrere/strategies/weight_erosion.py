"""Weight Erosion: one model for one user, from whose training unlike peers fade away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from confrere.core.custody import ZERO, Scalar, public
from confrere.core.distances import Distances, OpenedMean, TwoServers
from confrere.core.errors import StudyError
from confrere.core.model import Model, mix
from confrere.core.protocols import Effort, Peers, Site
from confrere.core.registry import nearest, strategy
from confrere.exchange.erosion import (
    NO_WEIGHTS,
    Newcomer,
    ReleasedGradient,
    Weights,
    eroded,
    faded,
    is_still,
    relative_distance,
    step,
    visible_length,
)
from confrere.exchange.secure.two_servers import longest_input
from confrere.learning.objectives import Descent


@dataclass(frozen=True)
class State:
    model: Model
    weights: Weights = NO_WEIGHTS
    stopped: bool = False
    """The user's own gradient is nothing: its model is its local optimum."""
    alone: bool = False
    """Too few peers count to hide one of them: the user goes on without."""


@strategy("weight_erosion")
@dataclass(frozen=True)
class WeightErosion:
    """One model for one user: peers count less the further their gradients are from the user's (Weight Erosion).

    In a round the user sends its model to all others, each answers with its released gradient there, and the user steps
    along their weighted mean (exchange/erosion.py has the weights). With `user = "NAME"` that costs each site one
    gradient in a round. Without it every site is the user of its own run in the same rounds: that is K runs, and each
    of the K sites releases K gradients in a round, one at each user's model and each from a sample of its own; a budget
    pays for all of them, so that each carries up to √K times the noise (√K with full batches, less with Poisson
    sampling). (One gradient for all would be cheaper, but it would be taken at a model that no user has.)

    `update = "gradient"` is one batch a round (with [privacy], its steps); "local" is a whole round of plain local
    descent, used likewise. With fewer than `k_min` peers left that count, the last one's gradient could be solved for
    from the user's model: on a node the user then continues alone. A rehearsal only adds a notice.

    `distances = "two-servers"` (with `user`) hides the gradients from the user as well. Each site divides its released
    gradient into two random parts, one for each of two `servers`. These compute the distances with masks from a
    `dealer`, decide on the weights, and open only the weighted mean to the user (exchange/secure/two_servers.py; He,
    Karimireddy and Jaggi, 2020). Servers and dealer are sites of the study, by default the first three by name after the
    user is left out; name them where members change. The two servers must not pool what they see, nor either of them
    with the dealer. It hides gradients; what is opened has the noise of [privacy] and no other protection.
    """

    user: str = ""
    p_d: float = 0.01
    p_s: float = 0.2
    k_min: int = 3
    newcomer: Newcomer = "median"
    update: Literal["gradient", "local"] = "gradient"
    distances: Literal["plain", "two-servers"] = "plain"
    servers: tuple[str, ...] = ()
    dealer: str = ""
    learning_rate: float | Literal["auto"] = "auto"
    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "Weight Erosion"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    numbers: ClassVar[tuple[str, ...]] = ("rate", "noise", "passes", "length")
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "rate": (1e-9, 1e9),  # gradients are divided by it
        "noise": (0.0, 1e12),
        "passes": (0.0, 1e9),
        "length": (0.0, 1e12),
    }
    topology: ClassVar[str] = "complete"

    def __post_init__(self) -> None:
        for name, value in (("p_d", self.p_d), ("p_s", self.p_s)):
            if not 0 <= value < math.inf:
                raise StudyError(f"{name} is a number of at least 0, not {value}")
        if self.k_min < 0:
            raise StudyError(f"k_min is a number of peers, not {self.k_min}")
        if not isinstance(self.learning_rate, str) and not 0 < self.learning_rate < math.inf:
            raise StudyError(f'learning_rate is a number above 0, or "auto", not {self.learning_rate}')
        object.__setattr__(self, "servers", tuple(self.servers))
        self._check_roles()
        if self.user:  # the user asks, the others answer
            star = {"name": "star", "leader": self.user, "outwards": True}
            object.__setattr__(self, "topology", star)

    def _check_roles(self) -> None:
        if not self.shares_out:
            if self.servers or self.dealer:
                raise StudyError('strategy.servers and strategy.dealer belong to distances = "two-servers"')
            return
        if not self.user:
            raise StudyError('distances = "two-servers" opens a mean to one user: name it as strategy.user')
        if self.servers and len(self.servers) != 2:
            raise StudyError(f"strategy.servers names two sites, not {len(self.servers)}")
        named = [self.user, *self.servers, *([self.dealer] if self.dealer else [])]
        if len(set(named)) < len(named):
            raise StudyError(
                "the user, the two servers and the dealer must be different sites; the strategy names "
                + ", ".join(f'"{name}"' for name in named)
            )

    @property
    def shares_out(self) -> bool:
        return self.distances == "two-servers"

    def roles(self, members: Sequence[str]) -> TwoServers | None:
        """Who computes distances, among these members; None if one of them is missing."""
        free = sorted(set(members) - {self.user, self.dealer, *self.servers})
        found = [*self.servers, *free[: 0 if self.servers else 2]]
        dealer = self.dealer or next((name for name in free if name not in found), "")
        if len(found) < 2 or not {self.user, dealer, *found} <= set(members):
            return None
        return TwoServers(self.user, (found[0], found[1]), dealer)

    def releases(self, sites: int) -> int:
        """How many gradients a site gives out in a round."""
        return 1 if self.user else sites

    def check_members(self, members: Sequence[str], rehearsal: bool) -> list[str]:
        """Refuse what cannot work with these members, and return notices about what a node would refuse."""
        named = {"user": [self.user], "servers": self.servers, "dealer": [self.dealer]}
        for key, name in [(key, name) for key, names in named.items() for name in names if name]:
            if name not in members:
                raise StudyError(
                    f'strategy.{key} is "{name}", which is not a site of this study'
                    f"{nearest(name, list(members))}; its sites: {', '.join(sorted(members))}"
                )
        if self.shares_out and self.roles(members) is None:
            raise StudyError(
                f'distances = "two-servers" takes at least four sites (a user, two servers and a dealer), and the study has'
                f' {len(members)}; let more sites take part, or use distances = "plain"'
            )
        peers = len(members) - 1
        if peers >= self.k_min:
            return []
        found = f"a user has {peers} peer{'s' if peers != 1 else ''} here and k_min is {self.k_min}"
        why = "with so few the user could work out a single peer's gradient"
        if not rehearsal:
            raise StudyError(f"{found}: {why}; let more sites take part, or lower strategy.k_min")
        return [f"{found}: nodes would refuse this study ({why}); a rehearsal goes on"]

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        learns = self.user in ("", site.name) and not state.stopped
        asks = learns and not state.alone
        effort = site.effort(_role(site.name), state.model)
        rate = public(effort.rate if self.learning_rate == "auto" else float(self.learning_rate))
        inbox = await peers.exchange(state.model if asks else None, **({"rate": rate} if asks else {}))
        asked = {
            p.sender: (p.model, p.scalar("rate"))
            for p in inbox.current
            if p.model is not None and "rate" in p.scalars
        }
        models = asked | ({site.name: (state.model, rate)} if learns else {})
        gradients = await self._gradients(site, dict(sorted(models.items())))
        if self.shares_out:
            if not learns:
                state = replace(state, model=asked[self.user][0]) if asked else state
            own = None
            if self.user in gradients:
                own = ReleasedGradient(gradients[self.user], effort.noise, self._passes(effort))
            return await self._by_servers(state, site, peers, rate, own, asks or bool(asked))
        answers = await peers.answer(
            {name: gradients[name] for name in asked}, noise=effort.noise, passes=self._passes(effort)
        )
        if not learns:
            return replace(state, model=asked[self.user][0]) if self.user in asked else state
        others = {
            p.sender: ReleasedGradient(p.model, p.scalar("noise"), p.scalar("passes"))
            for p in answers.current
            if p.model is not None
            and {"noise", "passes"} <= p.scalars.keys()
            and p.model.params.norm() > 0  # a site whose budget is spent sends zeros
        }
        own = ReleasedGradient(gradients[site.name], effort.noise, self._passes(effort))
        return self._stepped(state, site, peers, rate, own, others)

    async def _gradients(self, site: Site, models: Mapping[str, tuple[Model, Scalar]]) -> dict[str, Model]:
        """The site's released gradient at each user's model, by user."""
        if not models:
            return {}
        losses = {
            _role(n): Descent(rate=rate.value, one_batch=self.update == "gradient")
            for n, (_, rate) in models.items()
        }
        starts = {_role(n): model.held(rate.custody) for n, (model, rate) in models.items()}
        trained = await site.train(losses, starts, protect=list(losses))
        return {
            n: mix([(1 / rate, model), (-1 / rate, trained[_role(n)])]) for n, (model, rate) in models.items()
        }

    def _passes(self, effort: Effort) -> Scalar:
        return public(effort.passes_of_a_batch if self.update == "gradient" else effort.passes)

    # -- by way of two servers -------------------------------------------------------------------------------

    async def _by_servers(
        self, state: State, site: Site, peers: Peers, rate: Scalar, own: ReleasedGradient | None, asked: bool
    ) -> State:
        """The same round with gradients that nobody sees: each site shares its own out, and servers weigh them."""
        roles, opened = self.roles(peers.members), None
        if roles is not None:
            shared = _short_enough(own, site) if own is not None and asked else None
            vector, numbers = (
                (None, {}) if shared is None else (shared.gradient, self._numbers(shared, site.name))
            )
            found = await peers.distances(vector, roles, state.weights.table, **numbers)
            weights, counted = (state.weights, {}) if found is None else self._weighed(state, site, found)
            opened = await peers.open_mean(counted, weights.table)
            state = replace(state, weights=weights)
        if site.name != self.user or own is None:
            return state
        return self._stepped_by(state, site, peers, rate, own, opened)

    def _numbers(self, shared: ReleasedGradient, name: str) -> dict[str, Scalar]:
        """The numbers that go to the servers with a gradient; none if it does not count, as of a site whose budget is spent."""
        if name == self.user:
            if shared.gradient.params.norm() == 0 and shared.noise.value > 0:
                return {}
            length = visible_length(shared) or ZERO
            return {"noise": shared.noise, "passes": shared.passes, "length": length}
        if shared.gradient.params.norm() == 0:
            return {}
        return {"noise": shared.noise, "passes": shared.passes}

    def _weighed(self, state: State, site: Site, found: Distances) -> tuple[Weights, dict[str, Scalar]]:
        """At a server: the weights after this round, and those of the mean; none if too few peers count to hide one."""
        known = {n: found.numbers[n] for n in found.squared if {"noise", "passes"} <= found.numbers[n].keys()}
        both = (state.weights, Weights.of_table(found.table, found.custody))
        weights = max(
            both, key=lambda w: (sum(w.rounds.values()), len(w.share))
        )  # one may have missed a round
        weights = weights.joined_by(frozenset(known), self.newcomer)
        user = found.numbers[self.user]
        counts = {"noise", "length"} <= user.keys()
        if counts:
            distances: dict[str, Scalar | None] = dict.fromkeys(known)
            if user["length"].value > 0:
                for name, sent in known.items():
                    noise = user["noise"] + sent["noise"]
                    distances[name] = relative_distance(found.squared[name], noise, user["length"])
            weights = faded(
                weights, distances, {n: sent["passes"] for n, sent in known.items()}, self.p_d, self.p_s
            )
        mean = {name: weights.share[name] for name in sorted(known) if weights.share[name].value > 0}
        if not site.rehearsal and len(mean) < self.k_min:
            return weights, {}
        return weights, mean | ({self.user: public(1.0)} if counts else {})

    def _stepped_by(
        self,
        state: State,
        site: Site,
        peers: Peers,
        rate: Scalar,
        own: ReleasedGradient,
        opened: OpenedMean | None,
    ) -> State:
        """The user's step along the mean that was opened, or along its own gradient if there is none."""
        if is_still(own):
            site.weigh(state.weights.share, note="stopped")
            return replace(state, stopped=True)
        weights, note, alone = state.weights, "alone" if state.alone else "no servers", state.alone
        if opened is not None:
            weights = Weights.of_table(opened.table, opened.custody)
            note = "" if visible_length(own) is not None else "hidden by noise"
            if opened.mean is None:
                faded_away = sum(share.value == 0 for share in weights.share.values())
                note, alone = "alone", alone or len(peers.members) - 1 - faded_away < self.k_min
        site.weigh(weights.share, note=note)
        along = own.gradient if opened is None or opened.mean is None else opened.mean
        moved = mix([(public(1.0), state.model), (-rate, along)])
        return State(moved, weights, alone=alone)

    # -- with gradients that the user sees -------------------------------------------------------------------

    def _stepped(
        self,
        state: State,
        site: Site,
        peers: Peers,
        rate: Scalar,
        own: ReleasedGradient,
        others: Mapping[str, ReleasedGradient],
    ) -> State:
        if (
            own.gradient.params.norm() == 0 and own.noise.value > 0
        ):  # its budget is spent: the others carry on
            weights = state.weights.joined_by(frozenset(others), self.newcomer)
            return replace(state, model=step(state.model, rate, None, others, weights), weights=weights)
        if is_still(own):
            site.weigh(state.weights.share, note="stopped")
            return replace(state, stopped=True)
        weights, clear = eroded(state.weights, own, others, self.p_d, self.p_s, self.newcomer)
        note, alone = "" if clear else "hidden by noise", state.alone
        if not site.rehearsal and sum(weights.share[n].value > 0 for n in others) < self.k_min:
            faded = sum(share.value == 0 for share in weights.share.values())
            others, note, alone = {}, "alone", alone or len(peers.members) - 1 - faded < self.k_min
        site.weigh(weights.share, note=note)
        return State(step(state.model, rate, own, others, weights), weights, alone=alone)


def _short_enough(own: ReleasedGradient, site: Site) -> ReleasedGradient:
    """A gradient that can be shared out: longer ones are shortened, and their noise with them."""
    norm, longest = own.gradient.params.norm(), longest_input(own.gradient.params.count)
    if norm <= longest:
        return own
    site.notify(f"the gradient of this round was shortened from {norm:.4g} to {longest:.4g} to be shared out")
    factor = Scalar(longest / norm, own.gradient.custody)
    return replace(own, gradient=mix([(factor, own.gradient)]), noise=own.noise * factor * factor)


def _role(user: str) -> str:
    return f"for {user}"
