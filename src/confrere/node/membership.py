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
from confrere.node.config import NodeConfig
from confrere.node.delivery import LEAVING_SEQUENCE
from confrere.node.equivocation import LEAVING
from confrere.study.churn import Churn
from confrere.transport import wire


def churn_of(setting: NodeConfig, leaving: Mapping[str, int]) -> Churn:
    """When sites join and leave. Presence depends on the network, except in a rehearsal, which plans it."""
    planned = setting.study.churn
    own = planned if setting.rehearsal else Churn(join=planned.join, leave=planned.leave)
    leave = dict(own.leave)
    for site, number in leaving.items():
        leave[site] = min(number, leave.get(site, number))
    return replace(own, leave=leave)


def leave_messages(setting: NodeConfig, first: int, left: Collection[str]) -> list[wire.Sealed]:
    """To each peer that has not left itself: this site takes no part from round `first` on.

    Made again, they are the same bytes.
    """
    number = min(first, setting.study.rounds - 1)
    out = []
    for peer in sorted(set(setting.peers) - set(left)):
        message = Parcel(
            setting.run, 0, number, LEAVING, setting.me, peer, LEAVING_SEQUENCE, None,
            {"leaves": public(first)},
        )  # fmt: skip
        out.append(wire.seal(message, setting.identity.key))
    return out


def exchanges(setting: NodeConfig, round: int) -> bool:
    """Whether this study sends anything at all."""
    graph, members = setting.study.graph(), sorted(setting.members)
    return any(set(graph.column(round, members, s)) - {s} for s in members)


def front(latest: Mapping[str, int], peers: list[str]) -> int:
    """The round in which most peers are: the lower median, so that neither a minority nor a single peer can push a site
    ahead."""
    rounds = sorted(latest.get(p, -1) for p in peers)
    return rounds[(len(rounds) - 1) // 2] if len(rounds) > 1 else -1
