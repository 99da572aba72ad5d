"""Every strategy, one row: what it needs beside its defaults to learn something in a few rounds.

And what only one runtime has, where all others agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from confrere.core.events import Event


@dataclass(frozen=True)
class Row:
    """A strategy under test. `sends` says whether it exchanges anything at all."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    topology: dict[str, Any] | str | None = None
    sends: bool = True
    gossips: bool = False
    memory_only: bool = False
    proxy: Any = "linear"
    label: str = ""

    @property
    def strategy(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}

    @property
    def id(self) -> str:
        return self.label or self.name


ROWS = [
    Row("local", sends=False),
    Row("local", {"noise": True}, sends=False, label="local-noise"),
    Row("pooled", sends=False, memory_only=True),
    Row("fedavg"),
    Row("fedavg", topology="star", label="fedavg-star"),
    Row("fedavg", topology={"name": "star", "leader": "elected"}, label="fedavg-elected"),
    Row("fedavg", {"exchange": "gradients"}, label="fedavg-gradients"),
    Row("fedavg", {"exchange": "gradients"}, topology="star", label="fedavg-gradients-star"),
    Row("fml", {"exchange": "gradients"}, label="fml-gradients"),
    Row("swarm", {"exchange": "gradients"}, label="swarm-gradients"),
    Row("proxyfl", {"exchange": "gradients"}, topology="complete", label="proxyfl-gradients"),
    Row("fedprox", {"pull": 0.1}),
    Row("avgpush", gossips=True),
    Row("cwt"),
    Row("fml"),
    Row("coln"),
    Row("coln", topology="star", label="coln-star"),
    Row("swarm"),
    Row("afl"),
    Row("afl", topology="complete", label="afl-complete"),
    Row("fedma", {"spread": 0.3}, proxy={"name": "mlp", "hidden": [5]}),
    Row("fedma", topology="complete", label="fedma-complete"),
    Row("pfnm", proxy={"name": "mlp", "hidden": [5]}),
    Row("pfnm", topology="star", label="pfnm-star"),
    Row("weight_erosion"),
    Row("personal"),
    Row("personal", {"how": "interpolate"}, label="personal-interpolated"),
    Row("proxyfl", gossips=True),
    Row("proxyfl", {"alpha": 0.3, "beta": 0.3, "teacher": "peers"}, gossips=True, label="proxyfl-peers"),
]


MASKED_ROWS = [
    Row("fedavg"),
    Row("fedavg", topology="star", label="fedavg-star"),
    Row("fml"),
    Row("swarm"),
    Row("proxyfl", topology="complete"),
    Row("proxyfl", {"average": 0.5, "private": "distil"}, topology="star", label="proxyfl-star"),
    Row("proxyfl", {"settle": 2}, topology="complete", proxy="centred-linear", label="proxyfl-centred"),
    Row("afl", topology="complete", label="afl-complete"),
    Row("afl"),
]
"""Strategies with a masked form, where the sites share the noise of one release."""


BY_SERVERS = Row(
    "weight_erosion",
    {"user": "site0", "distances": "two-servers", "p_d": 0.05},
    label="weight-erosion-by-servers",
)
"""Distances that two servers compute. It takes four sites, and then a round has messages in every direction."""


@dataclass(frozen=True)
class OnlyIn:
    """Events, or one key of their data, that only one runtime has. All others are the same, site by site, in every one."""

    runtime: str
    kind: str
    notice: str = ""
    """Of notices: the key of their data that marks those that are meant."""
    key: str = ""
    """If only one key of their data is: its name."""

    def covers(self, event: Event) -> bool:
        """Whether no other runtime has this event."""
        return not self.key and event.kind == self.kind and (not self.notice or self.notice in event.data)


ONLY_IN = (
    OnlyIn("nodes", "connected"),
    OnlyIn("nodes", "disconnected"),
    OnlyIn("nodes", "unreachable"),
    OnlyIn("nodes", "notice", notice="finished"),
    OnlyIn("nodes", "notice", notice="settled"),
    OnlyIn("nodes", "notice", notice="rehearsal"),
    OnlyIn("nodes", "notice", notice="waiting"),
    OnlyIn("nodes", "notice", notice="sum_terms"),
    OnlyIn("nodes", "notice", notice="leaving"),  # announced to peers, before the event `left`
    OnlyIn(
        "nodes", "notice", notice="cancelled"
    ),  # a peer refused a parcel of an epoch that was over when it arrived
    OnlyIn("nodes", "round-started", key="present"),  # the peers that were connected at that moment
)
"""Everything about events that is not the same in all runtimes."""
FILES_OF_NODES = frozenset(
    {"keys", "ledger.key", "ledger.sqlite", "lock", "log.jsonl", "node.sqlite", "parcels"}
)
"""What the folder of a node has in addition to that of a simulated site."""


def common_events(events: Iterable[Event]) -> list[Event]:
    """The events that every runtime has, with the data that every runtime has."""
    left = [e for e in events if not any(row.covers(e) for row in ONLY_IN)]
    keys = {(row.kind, row.key) for row in ONLY_IN if row.key}
    return [
        replace(e, data={k: v for k, v in e.data.items() if (e.kind, k) not in keys})
        if e.kind in dict(keys)
        else e
        for e in left
    ]
