"""Every strategy, one row: what it needs beside its defaults to learn something in a few rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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


OF_ONE_RUNTIME: dict[str, frozenset[str]] = {
    "workers": frozenset(),
    "ray": frozenset(),
    "nodes": frozenset({"connected", "disconnected", "unreachable"}),
}
"""Kinds of events that a simulation in memory does not have; all others are the same, site by site, in every runtime."""
NOTICES_OF_NODES = frozenset({"finished", "settled", "rehearsal"})
"""Notices that only nodes have, by the key of their data that says what they are."""
