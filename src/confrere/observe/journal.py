"""From a stream of events to tables: who learned how well, who sent what, what it cost, who was missing.

A journal may tell the same fact twice (a parcel that was sent again, a notice that was repeated), and a
resumed run does some rounds again. `standing` keeps what still holds, and every table counts a fact once.
Rounds count from 0, as in the journal; whoever shows them to people adds one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confrere.core.events import Event, Json, verified

DEPLOYED = ("private", "model")
"""The roles that a site would use, best first; any role but the proxy comes next, the proxy last."""


@dataclass(frozen=True)
class Point:
    round: int
    value: float


@dataclass(frozen=True)
class Sending:
    """One parcel on an edge."""

    round: int
    phase: int
    sender: str
    receiver: str
    bytes: int
    custody: str


@dataclass(frozen=True)
class Spending:
    """What a site had spent of its privacy budget, so far, in a round."""

    site: str
    role: str
    round: int
    epsilon: float
    delta: float
    budget: float | None
    unit: str
    accountant: str | None
    proven: bool


@dataclass(frozen=True)
class Missed:
    """A receiver that waited in vain."""

    round: int
    receiver: str
    senders: tuple[str, ...]
    phase: int


@dataclass(frozen=True)
class Remark:
    """Something worth saying: a notice, an absence, a joining, a leaving, a budget that is spent."""

    kind: str
    text: str
    site: str | None = None
    round: int | None = None


@dataclass(frozen=True)
class Curve:
    site: str
    split: str
    role: str
    metric: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Weighing:
    """How much each peer counts in a site's model from a round on."""

    site: str
    round: int
    shares: Mapping[str, float]
    note: str = ""


@dataclass(frozen=True)
class History:
    """A run, as its journal tells it."""

    started: Mapping[str, Json] = field(default_factory=dict)
    finished: Mapping[str, Json] | None = None
    present: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    members: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    sendings: tuple[Sending, ...] = ()
    spendings: tuple[Spending, ...] = ()
    missed: tuple[Missed, ...] = ()
    remarks: tuple[Remark, ...] = ()
    weighings: tuple[Weighing, ...] = ()
    majority: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By site and kind of records: the accuracy of always saying the class that is most frequent at the site."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that the study names or that was ever a member, in that order."""
        seen = dict.fromkeys(self.started.get("sites") or {})
        for members in self.members.values():
            seen.update(dict.fromkeys(members))
        return tuple(seen)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that something happened in. Models that sites fit to the end afterwards make no round."""
        told = {*self.members, *(s.round for s in self.sendings)}
        return tuple(sorted(told or {p.round for c in self.curves for p in c.points}))

    def bytes_by_sender(self) -> dict[str, int]:
        total = dict.fromkeys(self.sites, 0)
        for sending in self.sendings:
            total[sending.sender] = total.get(sending.sender, 0) + sending.bytes
        return total

    def edges(self) -> dict[int, dict[tuple[str, str], int]]:
        """For each round the bytes on every edge (sender, receiver)."""
        rounds: dict[int, dict[tuple[str, str], int]] = {r: {} for r in self.rounds}
        for s in self.sendings:
            edges = rounds.setdefault(s.round, {})
            edges[s.sender, s.receiver] = edges.get((s.sender, s.receiver), 0) + s.bytes
        return dict(sorted(rounds.items()))

    def epsilon(self, site: str) -> tuple[Spending, ...]:
        """What a site had spent after each round in which it was charged (the dearest of its roles)."""
        dearest: dict[int, Spending] = {}
        for s in self.spendings:
            if s.site == site and (s.round not in dearest or s.epsilon > dearest[s.round].epsilon):
                dearest[s.round] = s
        return tuple(dearest[r] for r in sorted(dearest))

    def deployed(self, site: str, metric: str, split: str = "validation") -> Curve | None:
        """The learning curve of the model that the site would use."""
        curves = {c.role: c for c in self.curves if (c.site, c.split, c.metric) == (site, split, metric)}
        roles = [r for r in DEPLOYED if r in curves] + [r for r in curves if r != "proxy"] + list(curves)
        return curves[roles[0]] if roles else None

    def absent(self) -> dict[int, tuple[str, ...]]:
        """For each round the members that did not take part."""
        return {
            r: tuple(m for m in members if m not in self.present.get(r, members))
            for r, members in sorted(self.members.items())
        }


def standing(events: Iterable[Event]) -> list[Event]:
    """The events that still hold: those of a round that was done again give way to its second telling."""
    kept: list[Event] = []
    for event in events:
        if event.kind == "resumed":
            first = event.data.get("round", event.round) or 0
            kept = [e for e in kept if (e.round is None or e.round < first) and e.kind != "run-finished"]
        kept.append(event)
    return kept


def history(events: Iterable[Event]) -> History:
    """Tables of what happened; a fact that is told twice counts once."""
    started: Mapping[str, Json] = {}
    finished: Mapping[str, Json] | None = None
    present: dict[int, tuple[str, ...]] = {}
    members: dict[int, tuple[str, ...]] = {}
    values: dict[tuple[str, str, str, str], dict[int, float]] = {}
    sendings: dict[tuple[int, int, str, str], Sending] = {}
    spendings: dict[tuple[str, str, int], Spending] = {}
    missed: dict[tuple[int, int, str], Missed] = {}
    remarks: dict[Remark, None] = {}
    weighings: dict[tuple[str, int], Weighing] = {}
    majority: dict[tuple[str, str], float] = {}
    for event in standing(events):
        data, site, turn = event.data, event.site or "", event.round
        if event.kind == "run-started":
            started = data
        elif event.kind == "run-finished":
            finished = data
        elif event.kind in REMARKS:
            text = str(data.get("text") or "")
            remarks[Remark(event.kind, text, event.site, turn)] = None
        elif turn is None:
            continue
        elif event.kind == "round-started":
            members[turn] = tuple(data.get("members") or ())
            present[turn] = tuple(data.get("present") or members[turn])
        elif event.kind == "evaluated":
            for key, number in _numbers(site, data):
                values.setdefault(key, {})[turn] = number
            majority |= {(site, split): float(v) for split, v in (data.get("majority") or {}).items()}
        elif event.kind == "weighed":
            shares = {str(n): float(v) for n, v in (data.get("weights") or {}).items()}
            weighings[site, turn] = Weighing(site, turn, shares, str(data.get("note") or ""))
        elif event.kind == "sent":
            sending = Sending(
                turn,
                int(data.get("phase") or 0),
                site,
                str(data["to"]),
                int(data.get("bytes") or 0),
                str(data.get("custody") or ""),
            )
            sendings[turn, sending.phase, site, sending.receiver] = sending
        elif event.kind == "charged":
            spending = _spending(site, turn, data)
            before = spendings.get((site, spending.role, turn))
            if before is None or before.epsilon < spending.epsilon:
                spendings[site, spending.role, turn] = spending
        elif event.kind == "missing":
            phase = int(data.get("phase") or 0)
            late = missed.get((turn, phase, site))
            senders = (*(late.senders if late else ()), *(data.get("senders") or ()))
            missed[turn, phase, site] = Missed(turn, site, tuple(dict.fromkeys(senders)), phase)
    curves = (
        Curve(*key, tuple(Point(r, v) for r, v in sorted(rounds.items()))) for key, rounds in values.items()
    )
    return History(
        started,
        finished,
        present,
        members,
        tuple(curves),
        tuple(sendings.values()),
        tuple(spendings.values()),
        tuple(missed.values()),
        tuple(remarks),
        tuple(weighings[at] for at in sorted(weighings)),
        majority,
    )


def read_history(path: Path) -> History:
    """The history in a journal file; an edited journal is an error."""
    return history(event for event, _ in verified(path))


REMARKS = frozenset({"notice", "absent", "joined", "left", "lost", "budget-spent"})


def _numbers(site: str, data: Mapping[str, Json]) -> Iterable[tuple[tuple[str, str, str, str], float]]:
    for split in ("validation", "test", "common_test"):
        for role, metrics in (data.get(split) or {}).items():
            for metric, number in (metrics or {}).items():
                if isinstance(number, int | float) and math.isfinite(number):
                    yield (site, split, role, metric), float(number)


def _spending(site: str, turn: int, data: Mapping[str, Json]) -> Spending:
    return Spending(
        site,
        str(data.get("role") or ""),
        turn,
        float(data["epsilon"]),
        float(data["delta"]),
        None if data.get("budget") is None else float(data["budget"]),
        str(data.get("unit") or "record"),
        data.get("accountant"),
        bool(data.get("proven", False)),
    )
