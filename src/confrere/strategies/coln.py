"""CoLN: every site trains the common model, and the models are combined linearly, with a shift for each weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from confrere.core.custody import Custody, Scalar, public, strictest
from confrere.core.errors import StudyError, TrainingError
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.core.protocols import Peers, Site
from confrere.core.registry import nearest, strategy
from confrere.exchange.averaging import agree_with_answer, common_model
from confrere.exchange.coln import CombinedLearning, Diverged, Form
from confrere.learning.objectives import Supervised

CALM = 3
"""How many rounds in a row must change next to nothing before a site votes for the end."""

LAST = "last"
"""In a centre's answer: this is the last model, nothing is combined any more. The number says in which round it was agreed
on (counted from 2; 1 is what all began with, less is not known)."""

ALONE = -2
"""Stands for the round in which a model was agreed on, where a site went on with its own for want of an answer."""


@dataclass(frozen=True)
class State:
    model: Model
    halted: bool = False
    """Nothing is trained or combined any more: the last good model is the model."""
    calm: int = 0
    """For how many rounds the gain has stayed within the bound."""
    accuracy: float | None = None
    """On the site's own held-out records, where the end depends on it: PRIVATE."""
    heard: int = -1
    """The round in which the model was last agreed on: a site that was away since does not have the last good one."""


@strategy("coln")
@dataclass(frozen=True)
class CoLN:
    """Combined learning of neural network weights: Σ α_h·w_h + β, with α_h = exp(rate·r_h) and r_h from declared sizes (CoLN).

    As printed (`normalise = false`) the models are about added up, so weights grow by the number of sites in every
    round. When the combination is no longer usable, every site keeps the last good model and the journal says so. A site
    whose own training diverges ends for itself, and for the others only once most of those present have ended.
    Our default normalises the α. `form = "linear"` is α_h = 1 + r_h; `alternate` takes rate and −rate in turns.

    `start` names a site that trains alone in the first round; the others begin with its model instead of a random
    one. How many epochs each host trains is training.site_epochs.

    `halt` ends the collaboration once the gain between rounds has stayed within it for three rounds, at all sites that
    are there. `halt_by = "weights"` (relative change of the combined model) depends on releases alone. "accuracy",
    as published, depends on held-out records, which no ε covers: its guarantee is shown as not proven.
    """

    rate: float = 1e-3
    form: Form = "exponential"
    alternate: bool = False
    normalise: bool = True
    largest: float = 1e6
    start: str = ""
    halt: float = 0.0
    halt_by: Literal["weights", "accuracy"] = "weights"
    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "CoLN"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    numbers: ClassVar[tuple[str, ...]] = ("weight", "halted", "calm", LAST)
    topology: ClassVar[str] = "complete"

    def __post_init__(self) -> None:
        self._rule(0)
        if not 0 <= self.halt < math.inf:
            raise StudyError(f"coln: halt is the gain below which it ends, at least 0, not {self.halt}")

    @property
    def unproven(self) -> str | None:
        by_records = self.halt > 0 and self.halt_by == "accuracy"
        return "when it ends depends on the accuracy on held-out records" if by_records else None

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        current = await common_model(peers)
        before, since = (state.model, state.heard) if current is None else (current, peers.round - 1)
        alone = peers.round == 0 and self.start != ""
        if alone and self.start not in peers.members:
            raise StudyError(
                f'coln: start names "{self.start}", which is no site of this study'
                f"{nearest(self.start, list(peers.members))}; the sites are {', '.join(peers.members)}"
            )
        if peers.round == 0 and not self.normalise and peers.me == min(peers.members):
            site.notify(
                "CoLN as printed: the models are added up, not averaged, so weights grow from round to round"
            )
        trained, ended = before, state.halted
        if not ended and (not alone or peers.me == self.start):
            try:
                trained = (await site.train({"model": Supervised()}, {"model": before}, protect=["model"]))[
                    "model"
                ]
            except TrainingError as error:
                if self.normalise:
                    raise
                ended = True
                site.notify(
                    f"CoLN as printed diverged in round {peers.round + 1}: {error}; the last good model is kept"
                )
        guard = _Guarded(
            self._rule(peers.round), before, ended, state.calm >= CALM, self.start if alone else "", peers.me
        )
        custody = Custody.PUBLIC if self.halt_by == "weights" else Custody.UNPROVEN
        votes = {"halted": public(float(ended)), "calm": Scalar(float(state.calm >= CALM), custody)}

        def last() -> dict[str, Scalar]:
            return (
                {LAST: Scalar(since + 2.0 if guard.kept and since != ALONE else 0.5, custody)}
                if guard.closed
                else {}
            )

        agreed, answer = await agree_with_answer(
            peers, before if ended else trained, public(site.size), guard, last, **votes
        )
        if guard.diverged:
            site.notify(
                f"CoLN as printed diverged in round {peers.round + 1}: {guard.diverged};"
                " every site keeps its last good model"
            )
        word = 0.0 if answer is None else answer.scalar(LAST, 0.0).value
        told = word > 0
        if told and word == since + 2.0:  # the centre's last good model is of the same round as this site's
            agreed = before  # as the answer is, but for what was rounded or left out of it on its way
        halted = ended or guard.closed or told
        heard = peers.round if answer is not None or peers.centre in (None, peers.me) else ALONE
        now = State(agreed, halted, state.calm, state.accuracy, heard)
        return now if halted or not self.halt else await self._watched(now, before, site)

    def _rule(self, round: int) -> CombinedLearning:
        rate = -self.rate if self.alternate and round % 2 else self.rate
        return CombinedLearning(rate, self.form, self.normalise, self.largest)

    async def _watched(self, state: State, before: Model, site: Site) -> State:
        """The state that knows whether this round has brought anything."""
        if self.halt_by == "weights":
            gain = state.model.params.distance(before.params) / max(before.params.norm(), 1e-12)
            return replace(state, calm=state.calm + 1 if gain <= self.halt else 0)
        metrics = (await site.evaluate({"model": state.model}))["model"]
        found = metrics.get("accuracy", metrics["loss"]).value  # a regression has a loss only
        gain = math.inf if state.accuracy is None else abs(found - state.accuracy)
        return replace(state, calm=state.calm + 1 if gain <= self.halt else 0, accuracy=found)


class _Guarded:
    """The combiner with what may end a collaboration: divergence, calm at all sites, or a majority that has ended.

    A site that has ended, without a majority, counts as absent: it cannot end the collaboration for the others.
    """

    def __init__(
        self, rule: CombinedLearning, before: Model, ended: bool, calm: bool, start: str, me: str
    ) -> None:
        self.rule, self.before, self.ended, self.calm, self.start, self.me = (
            rule,
            before,
            ended,
            calm,
            start,
            me,
        )
        self.diverged: Diverged | None = None
        self.closed = False
        """Whether what was handed out is the last model."""
        self.kept = True
        """Whether that is one's own from before the round, and not somebody else's."""

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        votes = [number for p in inbox for name, number in p.scalars.items() if name in ("halted", "calm")]
        return self._combined(own, weight, inbox).held(strictest(v.custody for v in votes))

    def _combined(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        if self.ended:
            self.closed = True
            return self.before
        if self.start:
            return own if self.me == self.start else _sent_by(self.start, inbox) or self.before
        halted = [p.model for p in inbox if p.model is not None and p.scalar("halted", 0.0).value]
        if 2 * len(halted) > len(inbox) + 1:
            self.closed, self.kept = True, False
            return _most_frequent(halted)
        inbox = [p for p in inbox if not p.scalar("halted", 0.0).value]
        if self.calm and all(p.scalar("calm", 0.0).value for p in inbox):
            self.closed = True
            return self.before
        try:
            return self.rule(own, weight, inbox)
        except Diverged as error:
            self.diverged, self.closed = error, True
            return self.before


def _most_frequent(models: Sequence[Model]) -> Model:
    """The model that most of these sites have; the first of them if there is a tie."""
    return max(models, key=lambda model: sum(model.params.equals(other.params) for other in models))


def _sent_by(site: str, inbox: Sequence[Parcel]) -> Model | None:
    return next((p.model for p in inbox if p.sender == site), None)
