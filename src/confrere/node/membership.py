"""Members of a run: when sites join and leave, what a leaving site sends, and the round that most peers have reached.

A change starts a new epoch at a round that every site can compute, so that sites need not switch at the same
time. Only the receiver knows which epoch it is in: it refuses parcels of an earlier one, and those of a later one
wait until it is there too. A sender therefore delivers everything, also to a site that is still in the last
round before the change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from confrere.core.custody import public
from confrere.core.parcel import Parcel
from confrere.node import roster
from confrere.node.config import NodeConfig
from confrere.node.delivery import LEAVING_SEQUENCE
from confrere.node.equivocation import LEAVING
from confrere.study.churn import Churn
from confrere.transport import wire


def churn_of(config: NodeConfig, leaving: Mapping[str, int]) -> Churn:
    """When sites join and leave. Presence depends on the network, except in a rehearsal, which plans it."""
    planned = config.study.churn
    own = planned if config.rehearsal else Churn(join=planned.join, leave=planned.leave)
    leave = dict(own.leave)
    for site, number in leaving.items():
        leave[site] = min(number, leave.get(site, number))
    return replace(own, leave=leave)


def leave_messages(config: NodeConfig, first: int, left: Collection[str]) -> list[wire.Sealed]:
    """To each peer that has not left itself: this site takes no part from round `first` on.

    Made again, they are the same bytes.
    """
    number = min(first, config.study.rounds - 1)
    out = []
    for peer in sorted(set(config.peers) - set(left)):
        message = Parcel(
            config.run, 0, number, LEAVING, config.me, peer, LEAVING_SEQUENCE, None,
            {"leaves": public(first)},
        )  # fmt: skip
        out.append(wire.seal(message, config.identity.key))
    return out


def first_round_away(config: NodeConfig, done: int, latest: Mapping[str, int]) -> int:
    """The round from which a site that leaves now takes no part: none of the known peers has reached it."""
    ahead = max(done, front(latest, sorted(config.peers)))
    most = ahead + len(config.members)  # whatever one peer claims
    return min(max([done, *latest.values()]), most) + 1


def sign_leave(config: NodeConfig) -> None:
    """Keep the signature of a site that leaves, for the roster of the members who stay."""
    if config.roster_path is not None:
        signed = roster.leave(roster.load_roster(config.roster_path), config.identity)
        roster.keep_signature(signed, config.roster_path)


def exchanges(config: NodeConfig, round: int) -> bool:
    """Whether this study sends anything at all."""
    graph, members = config.study.graph(), sorted(config.members)
    return any(set(graph.column(round, members, s)) - {s} for s in members)


def front(latest: Mapping[str, int], peers: list[str]) -> int:
    """The round in which most peers are: the lower median, so that neither a minority nor a single peer can push a site
    ahead."""
    rounds = sorted(latest.get(p, -1) for p in peers)
    return rounds[(len(rounds) - 1) // 2] if len(rounds) > 1 else -1
