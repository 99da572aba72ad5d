"""How much memory a simulation will take, estimated before it starts.

A site costs its records, the weights that its state holds, what its optimisers remember, what compressed parcels have left
unsent, and a fixed part (ledger, mailbox, events). Networks are shared by all sites of a process, so they count once and
are left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from confrere.core.errors import StudyError
from confrere.core.protocols import Optimiser
from confrere.core.strategy_traits import traits
from confrere.core.strict_reader import named
from confrere.data.records import Federation, Records
from confrere.learning.networks.architectures import architecture
from confrere.study import Study
from confrere.study.exchange_settings import combines, compression_of, sends

FIXED = 250_000
"""Bytes of a site besides its tensors: its ledger, mailbox and events. On the safe side: `benchmarks/scale.py` measures less."""
NUMBER = 4
"""Bytes of a weight."""
DOUBLE = 8
"""Bytes of a number in the memory of compressed parcels."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What all sites together will take, in bytes; an estimate."""

    sites: int
    records: int
    weights: int
    optimisers: int
    unsent: int = 0
    """What sites remember of compressed parcels."""

    @property
    def to_come(self) -> int:
        """What is not in memory yet once the records have been read."""
        return self.weights + self.optimisers + self.unsent + FIXED * self.sites

    @property
    def total(self) -> int:
        return self.records + self.to_come


def estimate_memory(study: Study, federation: Federation) -> MemoryEstimate:
    """An estimate from the numbers of weights, the optimisers' states and the records."""
    counts: dict[str, int] = {}
    slots = {
        role: _slots(study.training.build_optimiser(role == "proxy" and study.privacy is not None))
        for role in ("private", "proxy")
    }
    deploys = set(getattr(study.build_strategy(), "deploys", ("private", "proxy")))
    roles = [r for r in ("private", "proxy") if r in deploys] or [
        getattr(study.build_strategy(), "architecture", "proxy")
    ]
    weights = optimisers = unsent = 0
    remembered = _remembered(study, len(federation.sites))
    for name in federation.sites:
        for role in roles:
            spec = study.models.of(name, role)
            if (key := repr(spec)) not in counts:
                task = federation.task
                built = architecture(spec, task.inputs, task.outputs, task.branches).build()
                counts[key] = sum(p.numel() for p in built.parameters())
            held = 2 if role != "private" else 1  # what peers sent is kept beside one's own
            weights += held * counts[key] * NUMBER
            optimisers += slots[role] * counts[key] * NUMBER
            if role != "private" or len(roles) == 1:  # what travels
                unsent += remembered * counts[key] * DOUBLE
    records = sum(_bytes(r) for s in federation.sites.values() for r in (s.train, s.validation, s.test))
    return MemoryEstimate(len(federation.sites), records, weights, optimisers, unsent)


def _remembered(study: Study, sites: int) -> int:
    """How many numbers a site remembers for every weight that travels compressed: see `exchange/packing.py`."""
    compression, strategy = compression_of(study), study.build_strategy()
    if compression is None or not sends(study):
        return 0
    each = (3 if combines(study) == "by gossip" else 2) if compression.sparse else 1
    graph = study.topology or traits(strategy).topology
    kinds = (
        2 if graph is not None and named(graph, "topology")[0] == "star" else 1
    )  # answers are a kind of their own
    if study.strategy_name == "weight_erosion" and not getattr(strategy, "user", None):
        kinds = sites  # a gradient for each user
    return 1 + kinds * each  # and what all sites started from


def available() -> int | None:
    """Bytes that this process could still use: of the machine, or of the container it is in; None if unknown."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        if limit != "max":
            found.append(int(limit) - int(used))
    except (OSError, ValueError, IndexError):
        pass
    if not found and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def check_memory(study: Study, federation: Federation, free: int | None = None) -> None:
    """Refuse a simulation that would not fit into memory, before anything is built."""
    free = available() if free is None else free
    if free is None:
        return
    needed = estimate_memory(study, federation)
    if needed.to_come <= free:
        return
    each = needed.to_come / needed.sites
    fit = max(0, int(free / each))
    raise StudyError(
        f"{needed.sites:,} sites need about {_words(needed.to_come)} more memory ({_words(each)} each), and"
        f" {_words(free)} are free: about {fit:,} sites fit. Use fewer sites, smaller models, or a larger machine"
    )


def _slots(optimiser: Optimiser) -> int:
    return sum(t.numel() > 1 for t in optimiser.start(2).values())


def _bytes(records: Records) -> int:
    parts = (records.inputs, records.targets, records.units)
    return sum(t.numel() * t.element_size() for t in parts if t is not None)


def _words(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
