"""When training stops before the last round, and how all sites come to know that it has.

A site *rests* once the clock, its budget or convergence says so: it trains no more and spends no more, but passes on what
it receives, so that no mass is lost. Nothing here looks at a record. Convergence is judged by the model that a site
shares, as it is after mixing: how far it moved in a round, in parts of its length. That is made of releases alone
(docs/privacy.md), so when a site stops tells nothing more about its records. A PRIVATE model is judged only where there is
nobody to tell (training alone).

No server counts who rests. Each parcel says for how many rounds its sender, and all that it has heard of, have rested. In
`Calendar.hearing` rounds word of everybody reaches everybody; when a site has counted so many, all rest, and all of them know
it in the same round. A parcel that is missing stops the count: the rounds then go on, without training and at no cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confrere.core.custody import Custody, Scalar, may_leave, strictest
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Inbox
from confrere.core.protocols import Strategy
from confrere.study import Stop
from confrere.study.churn import Churn

if TYPE_CHECKING:
    from confrere.site.participant import Participant

AT_WORK = -1
"""What a parcel says of a sender that still trains."""
WORD = "rest"
"""The name of that number in a parcel."""


@dataclass
class Clock:
    """The time that a run has taken, also before an interruption."""

    before: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._began

    def up(self, stop: Stop | None) -> bool:
        return stop is not None and stop.hours is not None and self.seconds >= stop.hours * 3600


@dataclass
class Rest:
    """Whether one site still trains, and what it knows about the others."""

    stop: Stop
    why: str = ""
    """Why this site rests; empty while it trains."""
    told: bool = False
    """Whether it has said so."""
    over: bool = False
    """Whether all sites rest, so that no further round is needed."""
    _still: int = 0
    _counted: int = AT_WORK
    _heard: int = AT_WORK
    _asked: bool = False
    _custody: Custody = Custody.PUBLIC
    _before: dict[str, Params] = field(default_factory=dict)

    def begin(self, *, time_is_up: bool = False, spent: bool = False) -> None:
        """A round begins."""
        if time_is_up:
            self._rest(f"{self.stop.hours:g} hours are over")
        elif spent and self.stop.budget:
            self._rest("its budget is spent")
        self._heard, self._asked = self._counted, False

    def word(self) -> Scalar:
        """What a parcel says: nothing that the model in it did not shape."""
        return Scalar(float(self._heard), self._custody)

    def hear(self, inbox: Inbox, everybody_there: bool) -> None:
        """Take note of what peers say about themselves and of those that they have heard."""
        self._asked = True
        told = [int(p.scalar(WORD).value) if WORD in p.scalars else AT_WORK for p in inbox.current]
        if inbox.missing or not everybody_there:
            told.append(AT_WORK)
        self._heard = max(AT_WORK, min([self._heard, *told]))

    def look(self, models: Mapping[str, Model], hearing: int) -> None:
        """A round is over: has the shared model come to rest, and do all sites rest?

        `hearing` is in how many rounds word of everybody reaches everybody; 0 where there is nobody to ask.
        """
        watched = {r: m for r, m in models.items() if may_leave(m.custody, consent=True)}
        if not watched and not hearing:  # nobody is told, so the site's own model may be judged
            watched = dict(models)
        moved = max((_moved(m.params, self._before.get(r)) for r, m in watched.items()), default=math.inf)
        self._before = {r: m.params for r, m in watched.items()}
        self._custody = strictest(m.custody for m in watched.values())
        if self.stop.change is not None:
            self._still = self._still + 1 if moved <= self.stop.change else 0
            if self._still >= self.stop.in_a_row:
                rounds = f"{self._still} rounds" if self._still > 1 else "a round"
                self._rest(f"its model moved by at most {self.stop.change:g} of its length for {rounds}")
        heard = self._heard if self._asked or not hearing else AT_WORK
        if not self.why:
            self._counted = AT_WORK
        else:
            self._counted = heard + 1 if self._counted > AT_WORK else 0
        self.over = bool(self.why) and self._counted >= hearing

    def _rest(self, why: str) -> None:
        if not self.why:
            self.why = why

    def start_anew(self) -> None:
        self.put_back(Rest(self.stop).state())

    @property
    def resting(self) -> bool:
        return bool(self.why)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of this."""
        return {
            "why": self.why, "told": self.told, "over": self.over, "still": self._still, "counted": self._counted,
            "custody": self._custody.name, "before": dict(self._before),
        }  # fmt: skip

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Be again what `state` was taken of."""
        self.why, self.told, self.over = str(state["why"]), bool(state["told"]), bool(state["over"])
        self._still, self._counted = int(state["still"]), int(state["counted"])
        self._custody, self._before = Custody[state["custody"]], dict(state["before"])


def _moved(now: Params, before: Params | None) -> float:
    """How far a model has moved, in parts of its length; a model of another form has moved as far as can be."""
    if before is None or now.shapes != before.shapes:
        return math.inf
    length = now.norm()
    return now.distance(before) / length if length > 0 else 0.0


def look_at_rest(site: Participant, strategy: Strategy, state: Any, number: int, hearing: int) -> None:
    """After a round at a site: does it rest from here on? It says so when it begins to."""
    assert site.rest is not None
    held = {role: getattr(state, role, None) for role in strategy.deploys}
    site.rest.look({role: m for role, m in held.items() if isinstance(m, Model)}, hearing)
    if site.rest.resting and not site.rest.told:
        site.rest.told = True
        data = {"text": f"trains no more: {site.rest.why}"}
        site.journal.add(Event("notice", site.name, number, data=data))


def all_rest(rests: Sequence[Rest | None], churn: Churn, number: int) -> list[str] | None:
    """Why the sites rest, if after this round all of them know that all do; None while somebody works or is still to join."""
    if any(first > number for first in churn.join.values()):
        return None
    return [r.why for r in rests if r is not None] if all(r is not None and r.over for r in rests) else None


def stop_text(clock: Clock, stop: Stop | None, done: int, resting: Sequence[str] | None) -> str:
    """Why a run is over after so many rounds, in words; nothing while it is not."""
    if stop is None or done < 1:
        return ""
    rounds = f"stopped after {done} round{'s' if done > 1 else ''}, as the study says: "
    if resting is not None:
        return f"{rounds}all sites have stopped training ({'; '.join(sorted(set(resting)))})"
    return f"{rounds}{stop.hours:g} hours are over" if clock.up(stop) else ""
