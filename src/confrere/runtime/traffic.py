"""What a study would send, found out without training anything.

The study's own strategy goes through its rounds with models that stay as they are. So parcels have the tensors, the
numbers and the headers that they would have, and are as long to the byte; only a number that follows from training could
be written longer or shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.parcel import Parcel
from confrere.core.protocols import Transport
from confrere.data.records import Federation
from confrere.exchange.communication import Growth, Link, Load, Phase, added, growth, round_seconds, seconds
from confrere.learning.engine import Job, Trained
from confrere.runtime.compare import variant
from confrere.runtime.simulate import Simulation
from confrere.study import Study

METHODS = (
    ("proxyfl", "exponential"), ("avgpush", "exponential"), ("cwt", "ring"),
    ("fedavg", "star"), ("fml", "star"), ("fedavg", "complete"),
)  # fmt: skip
"""The methods of Kalra et al. (2023, Fig. 4): by gossip, in a ring, through a server; and averaging without one."""


@dataclass(frozen=True)
class Sent:
    """One parcel that a study would send."""

    round: int
    phase: int
    sender: str
    receiver: str
    bytes: int


class NoTraining:
    """A trainer that gives every model back as it was."""

    async def run(self, job: Job) -> Trained:
        return Trained(params={r: job.weights[r] for r in job.objective})


class _Noted:
    """A transport that notes what is sent."""

    def __init__(self, inside: Transport, notes: list[Sent]) -> None:
        self._inside, self._notes = inside, notes

    async def send(self, to: str, parcel: Parcel) -> int:
        size = await self._inside.send(to, parcel)
        self._notes.append(Sent(parcel.round, parcel.phase, parcel.sender, to, size))
        return size

    async def receive(self) -> Parcel:
        return await self._inside.receive()


def correspondence(study: Study, federation: Federation, rounds: int | None = None) -> list[Sent]:
    """Every parcel that the study would send in its rounds, or in its first ones."""
    simulation = Simulation(study, federation, trainer=NoTraining())
    simulation.prepare()
    notes: list[Sent] = []
    for office in simulation.offices.values():
        office.transport = _Noted(office.transport, notes)

    async def play() -> None:
        async with simulation.at_work():
            for number in range(min(rounds or study.rounds, study.rounds)):
                await simulation.round(number)
                simulation.settle(number)

    asyncio.run(play())
    return notes


def in_phases(sent: Sequence[Sent], round: int) -> list[Phase]:
    """The load of all sites in each phase of a round."""
    found = [p for p in sent if p.round == round]
    return [
        added((p.sender, p.receiver, p.bytes) for p in found if p.phase == phase)
        for phase in sorted({p.phase for p in found})
    ]


def traffic(
    study: Study, federation: Federation, link: Link, counts: Sequence[int], rounds: int | None = None
) -> dict[str, Any]:
    """What each site sends and receives in a round, how long that takes, and how it grows with the sites."""
    sent = correspondence(study, federation, rounds)
    played = min(rounds or study.rounds, study.rounds)
    by_round = [in_phases(sent, number) for number in range(played)]
    sites: dict[str, Any] = {}
    for name in sorted(federation.sites):
        loads = [[phase.get(name, Load()) for phase in phases] for phases in by_round]
        total = sum((load for phases in loads for load in phases), Load())
        sites[name] = {
            "parcels": total.parcels / played,
            "bytes_sent": total.sent / played,
            "bytes_received": total.received / played,
            "bytes_sent_in_all": total.sent,
            "seconds": sum(seconds(load, link) for phases in loads for load in phases) / played,
        }
    return {
        "study": study.hash(),
        "strategy": study.strategy_name,
        "topology": type(study.graph()).__name__.lower(),
        "rounds": played,
        "bandwidth_mbit": link.bandwidth,
        "latency_ms": link.latency,
        "sites": sites,
        "seconds_per_round": sum(round_seconds(phases, link) for phases in by_round) / played,
        "growth": [vars(g) for g in grown(study, sent, counts, link)],
    }


def grown(study: Study, sent: Sequence[Sent], counts: Sequence[int], link: Link) -> list[Growth]:
    """How a round would grow with the sites, with parcels as large as the study's own."""
    sizes = {phase: max(p.bytes for p in sent if p.phase == phase) for phase in {p.phase for p in sent}}
    if 0 not in sizes:
        return []
    graph = study.graph()
    if getattr(graph, "matrix", None) or getattr(graph, "leader", "elected") != "elected":
        graph = replace(study, topology=_anonymous(study)).graph() if _anonymous(study) else graph
    if getattr(graph, "matrix", None):
        return []  # a matrix has as many sites as it has rows
    drawn = study.churn.participation  # where sites are drawn for each round, only these exchange anything
    taking_part = [min(n, drawn or n) for n in counts]
    found = growth(graph, taking_part, sizes[0], link, sizes.get(1))
    return [replace(g, sites=n) for g, n in zip(found, counts, strict=True)]


def methods(
    study: Study, federation: Federation, link: Link, counts: Sequence[int]
) -> dict[str, list[Growth]]:
    """How a round of each method would grow with the sites, with the study's models."""
    out = {}
    for name, topology in METHODS:
        found = variant(study, name).with_(topology=topology)
        sent = correspondence(found, federation, 1)
        out[f"{name}, {topology}"] = grown(found, sent, counts, link)
    return out


def read_counts(text: str) -> list[int]:
    """Numbers of sites as a person writes them: 8,64,512."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 2 or max(found) > 100_000:
        raise StudyError(f'--sites "{text}": give numbers of sites from 2 to 100000, as 8,64,1024')
    return found


def _anonymous(study: Study) -> str | None:
    """A star whose centre has a name becomes one whose centre is any site: as many parcels."""
    return "star" if type(study.graph()).__name__ == "Star" else None
