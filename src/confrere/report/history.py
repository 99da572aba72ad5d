"""From a stream of events to tables: who learned how well, who sent what, what it cost, who was missing.

A journal may tell the same fact twice (a parcel that was sent again, a notice that was repeated), and a
resumed run does some rounds again. `standing` keeps what still holds, and every table counts a fact once.
Rounds count from 0, as in the journal; what is shown to people adds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confrere.core.events import Event, Json, verified
from confrere.core.results import PrivacySpent, Tested

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
    others: tuple[tuple[str, float | None], ...] = ()
    """ε for the other units that were ever drawn from these records; None where there is no bound."""
    ceiling: float | None = None
    """The site's ceiling, where ε is above it."""
    condition: str | None = None
    """What ε assumes of the other sites."""


@dataclass(frozen=True)
class Missed:
    """A receiver whose expected parcels did not arrive."""

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
    """A run, read from its journal."""

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
    patients: Mapping[tuple[str, str], Tested] = field(default_factory=dict)
    """By site and kind of records: the patients that figures rest on, where the journal states them."""
    used: Mapping[str, float] = field(default_factory=dict)
    """By site: how much of its own model builds on what peers sent (0 to 1), as cross-validation on its records chose."""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """By site: the verdict on the model of this run, in words."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that the study names or that was ever a member, in that order."""
        seen = dict.fromkeys(self.started.get("sites") or {})
        for members in self.members.values():
            seen.update(dict.fromkeys(members))
        return tuple(seen)

    @property
    def masked(self) -> bool:
        """Whether the sites added up behind masks: then the guarantee has a condition, and nobody saw a single model."""
        return any(s.condition for s in self.spendings)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that something happened in. Models that sites fit to the end afterwards make no round."""
        found = {*self.members, *(s.round for s in self.sendings)}
        return tuple(sorted(found or {p.round for c in self.curves for p in c.points}))

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
        """What a site had spent after each round in which it was charged (its most expensive role)."""
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
    """The events that still hold: when a round was done again, its first events are dropped."""
    kept: list[Event] = []
    for event in events:
        if event.kind == "resumed":
            first = event.data.get("round", event.round) or 0
            kept = [e for e in kept if (e.round is None or e.round < first) and e.kind != "run-finished"]
        kept.append(event)
    return kept


def history(events: Iterable[Event]) -> History:
    """Tables of what happened; a fact that occurs twice counts once."""
    reader = _Reader()
    for event in standing(events):
        reader.take(event)
    return reader.history()


class _Reader:
    """Takes events one by one; there is a method for each kind that tables are made of."""

    def __init__(self) -> None:
        self.started: Mapping[str, Json] = {}
        self.finished: Mapping[str, Json] | None = None
        self.present: dict[int, tuple[str, ...]] = {}
        self.members: dict[int, tuple[str, ...]] = {}
        self.values: dict[tuple[str, str, str, str], dict[int, float]] = {}
        self.sendings: dict[tuple[int, int, str, str], Sending] = {}
        self.spendings: dict[tuple[str, str, int], Spending] = {}
        self.missed: dict[tuple[int, int, str], Missed] = {}
        self.remarks: dict[Remark, None] = {}
        self.weighings: dict[tuple[str, int], Weighing] = {}
        self.majority: dict[tuple[str, str], float] = {}
        self.patients: dict[tuple[str, str], Tested] = {}
        self.used: dict[str, float] = {}
        self.verdicts: dict[str, str] = {}
        self._of_a_round: Mapping[str, Callable[[str, int, Mapping[str, Json]], None]] = {
            "round-started": self._round_started,
            "evaluated": self._evaluated,
            "weighed": self._weighed,
            "fitted": self._fitted,
            "sent": self._sent,
            "charged": self._charged,
            "missing": self._missing,
            "judged": self._judged,
        }

    def take(self, event: Event) -> None:
        if event.kind == "run-started":
            self.started = event.data
        elif event.kind == "run-finished":
            self.finished = event.data
        elif event.kind in REMARKS:
            if event.kind == "notice" and ROUTINE & event.data.keys():
                return
            text = str(event.data.get("text") or "")
            self.remarks[Remark(event.kind, text, event.site, event.round)] = None
        elif event.round is not None and event.kind in self._of_a_round:
            self._of_a_round[event.kind](event.site or "", event.round, event.data)

    def _round_started(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        self.members[turn] = tuple(data.get("members") or ())
        self.present[turn] = tuple(data.get("present") or self.members[turn])

    def _evaluated(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        for key, number in _numbers(site, data):
            self.values.setdefault(key, {})[turn] = number
        self.majority |= {(site, split): float(v) for split, v in (data.get("majority") or {}).items()}
        for split, stated in (data.get("patients") or {}).items():
            if (counts := Tested.from_json(stated)) is not None:
                self.patients[site, split] = counts

    def _weighed(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        shares = {str(n): float(v) for n, v in (data.get("weights") or {}).items()}
        self.weighings[site, turn] = Weighing(site, turn, shares, str(data.get("note") or ""))

    def _fitted(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        shares = [float(v) for v in data.get("shares") or ()]
        if shares and data.get("role") == "private":  # the first share is that of the model without the proxy
            self.used[site] = min(1.0, max(0.0, 1 - shares[0]))

    def _sent(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        phase, receiver = int(data.get("phase") or 0), str(data["to"])
        size, custody = int(data.get("bytes") or 0), str(data.get("custody") or "")
        self.sendings[turn, phase, site, receiver] = Sending(turn, phase, site, receiver, size, custody)

    def _charged(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        spending = _spending(site, turn, data)
        before = self.spendings.get((site, spending.role, turn))
        if before is None or before.epsilon < spending.epsilon:
            self.spendings[site, spending.role, turn] = spending

    def _missing(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        phase = int(data.get("phase") or 0)
        late = self.missed.get((turn, phase, site))
        senders = (*(late.senders if late else ()), *(data.get("senders") or ()))
        self.missed[turn, phase, site] = Missed(turn, site, tuple(dict.fromkeys(senders)), phase)

    def _judged(self, site: str, turn: int, data: Mapping[str, Json]) -> None:
        self.verdicts[site] = str(data.get("text") or "")

    def history(self) -> History:
        curves = (
            Curve(*key, tuple(Point(r, v) for r, v in sorted(rounds.items())))
            for key, rounds in self.values.items()
        )
        return History(
            self.started,
            self.finished,
            self.present,
            self.members,
            tuple(curves),
            tuple(self.sendings.values()),
            tuple(self.spendings.values()),
            tuple(self.missed.values()),
            tuple(self.remarks),
            tuple(self.weighings[at] for at in sorted(self.weighings)),
            self.majority,
            self.patients,
            self.used,
            self.verdicts,
        )


def read_history(path: Path) -> History:
    """The history in a journal file; an edited journal is an error."""
    return history(event for event, _ in verified(path))


REMARKS = frozenset({"notice", "absent", "joined", "left", "lost", "budget-spent"})
ROUTINE = frozenset({"cancelled", "finished", "leaving", "rehearsal", "settled", "waiting"})
"""Notices about how a node runs, by a key of their data: for its log and its status, not for a report on the study."""


def _numbers(site: str, data: Mapping[str, Json]) -> Iterable[tuple[tuple[str, str, str, str], float]]:
    for split in ("validation", "test", "common_test"):
        for role, metrics in (data.get(split) or {}).items():
            for metric, number in (metrics or {}).items():
                if isinstance(number, int | float) and math.isfinite(number):
                    yield (site, split, role, metric), float(number)


def _spending(site: str, turn: int, data: Mapping[str, Json]) -> Spending:
    spent = PrivacySpent.from_json(data)
    assert spent is not None  # a charge states its ε
    return Spending(
        site,
        str(data.get("role") or ""),
        turn,
        spent.epsilon,
        spent.delta,
        spent.budget,
        spent.unit,
        spent.accountant,
        spent.proven,
        spent.others,
        spent.exceeded_ceiling,
        spent.condition,
    )
