"""Where the time of a simulation goes: CPU seconds by what they were spent on.

While a profile is open, the functions through which each kind of work goes are timed; what runs inside of another is
counted there and not twice. When it is closed, everything is as before, so a run without a profile pays nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from confrere.core import model as models
from confrere.core.events import Journal
from confrere.learning.local_training import cohort, one_site
from confrere.privacy.gate import Gate
from confrere.privacy.ledger import Ledger
from confrere.simulation import backends, simulation
from confrere.simulation.run_folder import RunFolder
from confrere.simulation.simulation import Simulation
from confrere.site import deployment, participant, site_round
from confrere.site import training as site_training
from confrere.site.mailbox import Mailbox
from confrere.transport.memory import MemoryNetwork

REST = "strategies, event loop and the rest"

PARTS: tuple[tuple[str, Any, str], ...] = (
    ("training", cohort, "train_group"),
    ("training", one_site, "train_site"),
    ("training", site_training, "train_site"),
    ("fitting own models to the end", site_round, "fit"),
    ("training alone, to compare", deployment, "train_alone"),
    ("privacy checks of networks and losses", site_training, "check_safe"),
    ("privacy checks of networks and losses", site_training, "check_loss_on_site"),
    ("accounting", Ledger, "spend"),
    ("accounting", participant.Participant, "guarantee"),
    ("exchange: gate", Gate, "admit"),
    ("exchange: parcels", MemoryNetwork, "size"),
    ("exchange: parcels", Mailbox, "deliver"),
    ("exchange: mixing", models, "combine"),
    ("evaluation", participant.Participant, "scores"),
    ("evaluation", site_round, "best_scale"),
    ("journal", Journal, "add"),
    ("checkpoints", RunFolder, "checkpoint"),
    ("models and folders of sites", simulation, "write_site_folders"),
    ("opening records", backends, "open_sites"),
    ("preparation", Simulation, "prepare"),
)
"""Kind of work, and the function that is timed as an attribute of the module or class through which its callers find it.
A coroutine function must not stand here: the call returns before its work is done."""


@dataclass
class Profile:
    """CPU seconds and calls by kind of work."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    total: float = 0.0
    _inside: list[float] = field(default_factory=list)

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed; functions timed inside it are not counted twice."""

        @wraps(work)
        def wrapped(*given: Any, **options: Any) -> Any:
            self._inside.append(0.0)
            began = time.process_time()
            try:
                return work(*given, **options)
            finally:
                took = time.process_time() - began
                self.seconds[part] = self.seconds.get(part, 0.0) + took - self._inside.pop()
                self.calls[part] = self.calls.get(part, 0) + 1
                if self._inside:
                    self._inside[-1] += took

        return wrapped

    def as_json(self) -> dict[str, Any]:
        """What `simulate --profile --json` adds to its result, most expensive part first."""
        rest = max(0.0, self.total - sum(self.seconds.values()))
        parts = {**self.seconds, REST: rest}
        return {
            "cpu_seconds": round(self.total, 4),
            "parts": {
                part: {
                    "cpu_seconds": round(seconds, 4),
                    "share": round(seconds / self.total, 4) if self.total else 0.0,
                    "calls": self.calls.get(part),
                }
                for part, seconds in sorted(parts.items(), key=lambda found: -found[1])
            },
        }


@contextmanager
def profiled() -> Iterator[Profile]:
    """Profile what this process does while the context is open."""
    profile, before = Profile(), [(owner, name, getattr(owner, name)) for _, owner, name in PARTS]
    for part, owner, name in PARTS:
        setattr(owner, name, profile.timed(part, getattr(owner, name)))
    began = time.process_time()
    try:
        yield profile
    finally:
        profile.total = time.process_time() - began
        for owner, name, work in before:
            setattr(owner, name, work)
