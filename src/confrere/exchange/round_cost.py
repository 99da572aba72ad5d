"""The cost of a round of exchange at each site: bytes, and how long its network link is busy with them.

Who sends to whom is the topology's affair, how large a parcel is the wire's; this module only adds up. The model is
plain, and an estimate: each site has one link that carries so much in either direction at once, all parcels of a phase
go out together, nothing else limits them, and a phase ends when the slowest site is done:

    seconds of a phase at a site = latency + max(bytes sent, bytes received) · 8 / bandwidth
    seconds of a round           = Σ over phases of the slowest site's

So a site that gossips with one peer takes the same time however many sites there are, and a centre takes time in
proportion to their number, as in Kalra et al. (2023, «ProxyFL», Fig. 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from confrere.core.errors import StudyError
from confrere.core.protocols import Topology

Size = Callable[[str, str], int]
"""Bytes of the parcel that a sender has for a receiver."""


@dataclass(frozen=True)
class LinkSpeed:
    """A site's connection to all others."""

    bandwidth: float = 100.0
    """Mbit/s, in each direction."""
    latency: float = 20.0
    """Milliseconds until a first byte arrives."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise StudyError(
                f"a bandwidth is a positive number of megabit per second, not {self.bandwidth:g}"
            )
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise StudyError(f"a latency is a number of milliseconds, not {self.latency:g}")


@dataclass(frozen=True)
class Load:
    """What passes a site's link in a phase, or in a round."""

    parcels: int = 0
    sent: int = 0
    received: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.parcels + other.parcels, self.sent + other.sent, self.received + other.received)


Phase = Mapping[str, Load]
"""The load of every site that sends or receives anything."""


def phases(
    graph: Topology, round: int, members: Sequence[str], size: Size, answer: Size | None = None
) -> list[Phase]:
    """A round along the edges of a graph, and with `answer` the way back along them."""
    edges = [
        (sender, receiver)
        for sender in members
        for receiver, share in graph.column(round, members, sender).items()
        if receiver != sender and share > 0
    ]
    out = [added((s, r, size(s, r)) for s, r in edges)]
    if answer is not None:
        out.append(added((r, s, answer(r, s)) for s, r in edges))
    return out


def added(parcels: Iterable[tuple[str, str, int]]) -> Phase:
    """The load of every site from (sender, receiver, bytes) of each parcel."""
    counts: dict[str, list[int]] = {}
    for sender, receiver, size in parcels:
        mine = counts.setdefault(sender, [0, 0, 0])
        mine[0] += 1
        mine[1] += size
        counts.setdefault(receiver, [0, 0, 0])[2] += size
    return {name: Load(*numbers) for name, numbers in counts.items()}


def seconds(load: Load, link: LinkSpeed) -> float:
    """How long a site's link is busy with a phase."""
    busiest = max(load.sent, load.received)
    return link.latency / 1e3 + busiest * 8 / (link.bandwidth * 1e6) if busiest else 0.0


def round_seconds(round: Sequence[Phase], link: LinkSpeed) -> float:
    """How long a round takes, if every site has this link."""
    return sum(max((seconds(load, link) for load in phase.values()), default=0.0) for phase in round)


@dataclass(frozen=True)
class Growth:
    """One round among this number of sites."""

    sites: int
    parcels: int
    """Of all sites together."""
    bytes_all: int
    bytes_busiest: int
    """Sent by the site that sends most."""
    bytes_median: int
    """Sent by a site in the middle."""
    seconds: float


def growth(
    graph: Topology,
    counts: Sequence[int],
    parcel: int,
    link: LinkSpeed,
    answer: int | None = None,
    round: int = 0,
) -> list[Growth]:
    """What a round costs among more and more sites, with parcels (and answers) of these sizes."""
    out = []
    for count in counts:
        members = [f"site-{n:06d}" for n in range(count)]
        back = None if answer is None else (lambda _s, _r: answer)
        found = phases(graph, round, members, lambda _s, _r: parcel, back)
        loads = [sum((p.get(m, Load()) for p in found), Load()) for m in members]
        sent = sorted(load.sent for load in loads)
        out.append(
            Growth(
                count, sum(load.parcels for load in loads), sum(sent), sent[-1], sent[len(sent) // 2],
                round_seconds(found, link),
            )
        )  # fmt: skip
    return out
