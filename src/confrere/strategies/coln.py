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
"""For how many rounds in a row the model must be almost unchanged before a site votes to end."""

LAST = "last"
"""The number in a centre's answer that marks its model as the last one: two more than the round in which the sites agreed on
it; 1 for the initial model, below 1 if the round is unknown."""

ALONE = -2
"""In place of that round: the site got no answer and continued with its own model."""


@dataclass(frozen=True)
class State:
    model: Model
    halted: bool = False
    """Whether training has ended and the last good model is kept."""
    calm: int = 0
    """For how many rounds the change has stayed within `halt`."""
    accuracy: float | None = None
    """On the site's own held-out records, with `halt_by = "accuracy"`: PRIVATE."""
    agreed_in: int = -1
    """The round in which the model was last agreed on: a site that was absent since does not have the last good one."""


@strategy("coln")
@dataclass(frozen=True)
class CoLN:
    """Combined learning of neural network weights: Σ α_h·w_h + β, with α_h = exp(rate·r_h) and r_h from declared sizes (CoLN).

    As printed (`normalise = false`) the result is about the sum of the models, so weights grow by the number of sites in
    every round. When the combination is no longer usable, every site keeps the last good model, with a notice in the
    journal. A site whose own training diverges ends alone; the others end once most of those present have ended.
    Our default normalises the α. `form = "linear"` is α_h = 1 + r_h; `alternate` takes rate and −rate in turns.

    `start` names a site that trains alone in the first round; the others start from its model instead of a random one.
    `training.site_epochs` sets the epochs of each site.

    `halt` ends the collaboration once the change between rounds has stayed within it for three rounds at all sites that are
    present. `halt_by = "weights"` (relative change of the combined model) depends on releases alone. "accuracy", as
    published, depends on held-out records, which no ε covers: the guarantee is shown as not proven.
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
        before, since = (state.model, state.agreed_in) if current is None else (current, peers.round - 1)
        alone = self.start if peers.round == 0 else ""
        self._check_start(alone, site, peers)
        trained, ended = before, state.halted
        if not ended and alone in ("", peers.me):
            trained, ended = await self._trained(before, site, peers.round)
        calm = state.calm >= CALM
        guard = _Guarded(self._rule(peers.round), before, ended, calm, alone, peers.me)
        custody = Custody.PUBLIC if self.halt_by == "weights" else Custody.UNPROVEN
        votes = {"halted": public(float(ended)), "calm": Scalar(float(calm), custody)}

        def last() -> dict[str, Scalar]:
            if not guard.closed:
                return {}
            return {LAST: Scalar(since + 2.0 if guard.kept and since != ALONE else 0.5, custody)}

        agreed, answer = await agree_with_answer(
            peers, before if ended else trained, public(site.size), guard, last, **votes
        )
        if guard.diverged:
            site.notify(
                f"CoLN as printed diverged in round {peers.round + 1}: {guard.diverged};"
                " every site keeps its last good model"
            )
        last_model = 0.0 if answer is None else answer.scalar(LAST, 0.0).value
        if last_model > 0 and last_model == since + 2.0:  # the centre kept the model that this site has too,
            agreed = before  # and the answer is that model after compression
        halted = ended or guard.closed or last_model > 0
        agreed_in = peers.round if answer is not None or peers.centre in (None, peers.me) else ALONE
        now = State(agreed, halted, state.calm, state.accuracy, agreed_in)
        return now if halted or not self.halt else await self._watched(now, before, site)

    def _check_start(self, start: str, site: Site, peers: Peers) -> None:
        """In the first round: refuse an unknown `start`, and warn that weights grow without normalisation."""
        if start and start not in peers.members:
            raise StudyError(
                f'coln: start names "{start}", which is not a site of this study'
                f"{nearest(start, list(peers.members))}; the sites are {', '.join(peers.members)}"
            )
        if peers.round == 0 and not self.normalise and peers.me == min(peers.members):
            site.notify(
                "CoLN as printed: the models are added up, not averaged, so weights grow from round to round"
            )

    async def _trained(self, before: Model, site: Site, round: int) -> tuple[Model, bool]:
        """The trained model, and whether the site ends because its training diverged."""
        try:
            models = await site.train({"model": Supervised()}, {"model": before}, protect=["model"])
        except TrainingError as error:
            if self.normalise:
                raise
            site.notify(
                f"CoLN as printed diverged in round {round + 1}: {error}; the last good model is kept"
            )
            return before, True
        return models["model"], False

    def _rule(self, round: int) -> CombinedLearning:
        rate = -self.rate if self.alternate and round % 2 else self.rate
        return CombinedLearning(rate, self.form, self.normalise, self.largest)

    async def _watched(self, state: State, before: Model, site: Site) -> State:
        """The state with the count of rounds in which the change stayed within `halt`."""
        if self.halt_by == "weights":
            gain = state.model.params.distance(before.params) / max(before.params.norm(), 1e-12)
            return replace(state, calm=state.calm + 1 if gain <= self.halt else 0)
        metrics = (await site.evaluate({"model": state.model}))["model"]
        found = metrics.get("accuracy", metrics["loss"]).value  # a regression has a loss only
        gain = math.inf if state.accuracy is None else abs(found - state.accuracy)
        return replace(state, calm=state.calm + 1 if gain <= self.halt else 0, accuracy=found)


class _Guarded:
    """The combiner with the conditions that end a collaboration: divergence, no change at all sites, or a majority that ended.

    Without a majority, a site that has ended counts as absent: it cannot end the collaboration for the others.
    """

    def __init__(
        self, rule: CombinedLearning, before: Model, ended: bool, calm: bool, start: str, me: str
    ) -> None:
        self.rule, self.before, self.ended = rule, before, ended
        self.calm, self.start, self.me = calm, start, me
        self.diverged: Diverged | None = None
        self.closed = False
        """Whether the combined model is the last one."""
        self.kept = True
        """Whether the last model is this site's model from before the round."""

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
