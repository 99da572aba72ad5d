"""Weight Erosion: one model for one user, from whose training unlike peers fade away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from confrere.core.custody import Scalar, public
from confrere.core.errors import StudyError
from confrere.core.model import Model, mix
from confrere.core.protocols import Effort, Peers, Site
from confrere.core.registry import nearest, strategy
from confrere.exchange.erosion import NO_WEIGHTS, Newcomer, ReleasedGradient, Weights, eroded, is_still, step
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
    """

    user: str = ""
    p_d: float = 0.01
    p_s: float = 0.2
    k_min: int = 3
    newcomer: Newcomer = "median"
    update: Literal["gradient", "local"] = "gradient"
    learning_rate: float | Literal["auto"] = "auto"
    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "Weight Erosion"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    numbers: ClassVar[tuple[str, ...]] = ("rate", "noise", "passes")
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "rate": (1e-9, 1e9),  # gradients are divided by it
        "noise": (0.0, 1e12),
        "passes": (0.0, 1e9),
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
        if self.user:  # the user asks, the others answer
            star = {"name": "star", "leader": self.user, "outwards": True}
            object.__setattr__(self, "topology", star)

    def releases(self, sites: int) -> int:
        """How many gradients a site gives out in a round."""
        return 1 if self.user else sites

    def check_members(self, members: Sequence[str], rehearsal: bool) -> list[str]:
        """Refuse what cannot work with these members, and return notices about what a node would refuse."""
        if self.user and self.user not in members:
            raise StudyError(
                f'strategy.user is "{self.user}", which is not a site of this study'
                f"{nearest(self.user, list(members))}; its sites: {', '.join(sorted(members))}"
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


def _role(user: str) -> str:
    return f"for {user}"
