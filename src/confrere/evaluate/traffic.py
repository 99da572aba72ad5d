"""Compute what a study would send, without training anything.

The study's own strategy goes through its rounds with models that stay as they are. So parcels have the tensors, the
numbers and the headers that they would have, and are as long to the byte; only a number that follows from training could
be written longer or shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.parcel import Parcel
from confrere.core.protocols import Transport
from confrere.core.results import Document
from confrere.data.records import Federation
from confrere.evaluate.compare import variant
from confrere.exchange.round_cost import (
    Growth,
    LinkSpeed,
    Load,
    Phase,
    added,
    growth,
    round_seconds,
    seconds,
)
from confrere.learning.local_training.one_site import Job, Trained
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import Source, open_sites
from confrere.study import Study

METHODS = (
    ("proxyfl", "exponential"), ("avgpush", "exponential"), ("cwt", "ring"),
    ("fedavg", "star"), ("fml", "star"), ("fedavg", "complete"),
)  # fmt: skip
"""The methods of Kalra et al. (2023, Fig. 4): by gossip, in a ring, through a server; and averaging without one."""


COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Site counts to extrapolate to."""


@dataclass(frozen=True)
class SiteTraffic(Document):
    """What a site sends and receives in a round, and how long its link is busy with that."""

    parcels: float
    bytes_sent: float
    bytes_received: float
    bytes_sent_in_all: int
    """In all rounds together."""
    seconds: float


@dataclass(frozen=True)
class Traffic(Document):
    """What a study would send; `as_json` is what `confrere traffic --json` prints."""

    study: str
    strategy: str
    topology: str
    rounds: int
    bandwidth_mbit: float
    latency_ms: float
    sites: Mapping[str, SiteTraffic]
    seconds_per_round: float
    """An estimate: each link carries all of a phase at once, and nothing else limits it."""
    growth: tuple[Growth, ...]
    """The same with more sites; empty where the graph has a fixed number of them."""

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"growth": [vars(row) for row in self.growth]}


@dataclass(frozen=True)
class PlannedParcel:
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


class _RecordingTransport:
    """A transport that records what is sent."""

    def __init__(self, inside: Transport, notes: list[PlannedParcel]) -> None:
        self._inside, self._notes = inside, notes

    async def send(self, to: str, parcel: Parcel) -> int:
        size = await self._inside.send(to, parcel)
        self._notes.append(PlannedParcel(parcel.round, parcel.phase, parcel.sender, to, size))
        return size

    async def receive(self) -> Parcel:
        return await self._inside.receive()


def planned_parcels(study: Study, federation: Federation, rounds: int | None = None) -> list[PlannedParcel]:
    """Every parcel that the study would send in its rounds, or in its first ones."""
    simulation = Simulation(study, federation, trainer=NoTraining())
    simulation.prepare()
    notes: list[PlannedParcel] = []
    for peers in simulation.peers.values():
        peers.transport = _RecordingTransport(peers.transport, notes)

    async def run_rounds() -> None:
        async with simulation.delivering():
            for number in range(min(rounds or study.rounds, study.rounds)):
                await simulation.round(number)
                simulation.settle(number)

    asyncio.run(run_rounds())
    return notes


def in_phases(sent: Sequence[PlannedParcel], round: int) -> list[Phase]:
    """The load of all sites in each phase of a round."""
    found = [p for p in sent if p.round == round]
    return [
        added((p.sender, p.receiver, p.bytes) for p in found if p.phase == phase)
        for phase in sorted({p.phase for p in found})
    ]


def traffic(
    study: Study,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    bandwidth: float = 100.0,
    latency: float = 20.0,
    counts: Sequence[int] = COUNTS,
    rounds: int | None = None,
) -> Traffic:
    """Compute what each site would send and receive, and how long a round's exchange takes; nothing is trained.

    `sites` are your own records, as in `simulate`; `bandwidth` is in Mbit/s and `latency` in ms, of every site's link;
    `counts` are the numbers of sites to look ahead to; `rounds` are those to go through, by default all.

    >>> found = confrere.traffic(study, sites, bandwidth=10)
    >>> found.sites["site0"].bytes_sent > 0
    True
    """
    if rounds is not None and rounds < 1:
        raise StudyError(f"--rounds is {rounds}; at least one round is needed")
    link, federation = LinkSpeed(bandwidth, latency), open_sites(study, sites)
    sent = planned_parcels(study, federation, rounds)
    counted = min(rounds or study.rounds, study.rounds)
    by_round = [in_phases(sent, number) for number in range(counted)]
    return Traffic(
        study.hash(),
        study.strategy_name,
        type(study.graph()).__name__.lower(),
        counted,
        bandwidth,
        latency,
        {name: _site(name, by_round, link) for name in sorted(federation.sites)},
        sum(round_seconds(phases, link) for phases in by_round) / counted,
        tuple(grown(study, sent, counts, link)),
    )


def _site(name: str, by_round: Sequence[Sequence[Phase]], link: LinkSpeed) -> SiteTraffic:
    """One site, on the mean over these rounds."""
    loads = [phase.get(name, Load()) for phases in by_round for phase in phases]
    total, rounds = sum(loads, Load()), len(by_round)
    return SiteTraffic(
        total.parcels / rounds,
        total.sent / rounds,
        total.received / rounds,
        total.sent,
        sum(seconds(load, link) for load in loads) / rounds,
    )


def grown(
    study: Study, sent: Sequence[PlannedParcel], counts: Sequence[int], link: LinkSpeed
) -> list[Growth]:
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
    study: Study, federation: Federation, link: LinkSpeed, counts: Sequence[int]
) -> dict[str, list[Growth]]:
    """How a round of each method would grow with the sites, with the study's models."""
    out = {}
    for name, topology in METHODS:
        found = variant(study, name).with_(topology=topology)
        sent = planned_parcels(found, federation, 1)
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
