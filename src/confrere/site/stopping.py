"""When training stops before the last round, and how all sites come to agree that it has.

A site *stops* when the time limit, its budget or convergence says so: it trains no more and spends no more, but still
passes on what it receives, so that no mass is lost. None of this reads a record. Convergence is judged by the model that
a site shares, after mixing: its movement in a round relative to its length. That model is made of releases alone
(docs/privacy.md), so the round in which a site stops reveals nothing more about its records. A PRIVATE model is judged
only where nothing is sent (training alone).

No server counts the sites that have stopped. Each parcel states for how many rounds its sender, and all sites that it
knows of, have stopped. After `Schedule.rounds_to_reach_all` rounds a message from any site has reached every other. A
site that has counted that many rounds knows that all have stopped, and all sites reach that count in the same round. A
missing parcel resets the count: the rounds then go on, without training and at no cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confrere.core.custody import Custody, Scalar, may_leave, strictest
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Inbox
from confrere.study import Stop
from confrere.study.churn import Churn

TRAINING = -1
"""The count of a site that still trains."""
STOPPED_ROUNDS = "rest"
"""The name of the count in a parcel."""


@dataclass
class Clock:
    """The time that a run has taken, including the time before an interruption."""

    before: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._began

    def up(self, stop: Stop | None) -> bool:
        return stop is not None and stop.hours is not None and self.seconds >= stop.hours * 3600


@dataclass
class Stopping:
    """Whether one site still trains, and what it knows about the others."""

    stop: Stop
    reason: str = ""
    """Why this site has stopped; empty while it trains."""
    announced: bool = False
    """Whether its journal has the notice that it has stopped."""
    over: bool = False
    """Whether all sites have stopped, so that no further round is needed."""
    _still: int = 0
    """For how many rounds in a row the model has moved by at most `stop.change`."""
    _counted: int = TRAINING
    """For how many rounds, at the end of the last one, all known sites had stopped."""
    _received: int = TRAINING
    """The same with what peers reported in this round."""
    _asked: bool = False
    _custody: Custody = Custody.PUBLIC
    _before: dict[str, Params] = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        return bool(self.reason)

    def begin(self, *, time_is_up: bool = False, spent: bool = False) -> None:
        """Begin a round."""
        if time_is_up:
            self._stop(f"{self.stop.hours:g} hours are over")
        elif spent and self.stop.budget:
            self._stop("its budget is spent")
        self._received, self._asked = self._counted, False

    def count(self) -> Scalar:
        """What a parcel states; it depends on nothing that the model in the parcel does not."""
        return Scalar(float(self._received), self._custody)

    def receive(self, inbox: Inbox, all_present: bool) -> None:
        """Combine the counts of the peers with this site's."""
        self._asked = True
        counts = [
            int(p.scalar(STOPPED_ROUNDS).value) if STOPPED_ROUNDS in p.scalars else TRAINING
            for p in inbox.current
        ]
        if inbox.missing or not all_present:
            counts.append(TRAINING)
        self._received = max(TRAINING, min([self._received, *counts]))

    def end_round(self, models: Mapping[str, Model], rounds_to_reach_all: int) -> None:
        """Judge after a round whether the shared model has converged, and whether all sites have stopped.

        `rounds_to_reach_all` is 0 where there are no peers.
        """
        watched = {r: m for r, m in models.items() if may_leave(m.custody, consent=True)}
        if not watched and not rounds_to_reach_all:  # nothing is sent, so the private model may be judged
            watched = dict(models)
        moved = max((_moved(m.params, self._before.get(r)) for r, m in watched.items()), default=math.inf)
        self._before = {r: m.params for r, m in watched.items()}
        self._custody = strictest(m.custody for m in watched.values())
        if self.stop.change is not None:
            self._still = self._still + 1 if moved <= self.stop.change else 0
            if self._still >= self.stop.in_a_row:
                rounds = f"{self._still} rounds" if self._still > 1 else "a round"
                self._stop(f"its model moved by at most {self.stop.change:g} of its length for {rounds}")
        received = self._received if self._asked or not rounds_to_reach_all else TRAINING
        if not self.stopped:
            self._counted = TRAINING
        else:
            self._counted = received + 1 if self._counted > TRAINING else 0
        self.over = self.stopped and self._counted >= rounds_to_reach_all

    def _stop(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason

    def reset(self) -> None:
        self.restore(Stopping(self.stop).state())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "why": self.reason, "told": self.announced, "over": self.over, "still": self._still,
            "counted": self._counted, "custody": self._custody.name, "before": dict(self._before),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to what `state` gave."""
        self.reason, self.announced, self.over = str(state["why"]), bool(state["told"]), bool(state["over"])
        self._still, self._counted = int(state["still"]), int(state["counted"])
        self._custody, self._before = Custody[state["custody"]], dict(state["before"])


def _moved(now: Params, before: Params | None) -> float:
    """How far a model has moved relative to its length; infinite where its shape has changed."""
    if before is None or now.shapes != before.shapes:
        return math.inf
    length = now.norm()
    return now.distance(before) / length if length > 0 else 0.0


def stop_reasons(sites: Sequence[Stopping | None], churn: Churn, number: int) -> list[str] | None:
    """Why the sites have stopped, if all know after this round that all have; None while one trains or is yet to join."""
    if any(first > number for first in churn.join.values()):
        return None
    return (
        [s.reason for s in sites if s is not None] if all(s is not None and s.over for s in sites) else None
    )


def stop_text(clock: Clock, stop: Stop | None, done: int, reasons: Sequence[str] | None) -> str:
    """Why a run is over after `done` rounds, in words; empty while it is not."""
    if stop is None or done < 1:
        return ""
    rounds = f"stopped after {done} round{'s' if done > 1 else ''}, as the study says: "
    if reasons is not None:
        return f"{rounds}all sites have stopped training ({'; '.join(sorted(set(reasons)))})"
    return f"{rounds}{stop.hours:g} hours are over" if clock.up(stop) else ""
