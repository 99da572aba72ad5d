"""A study that a benchmark steps round by round, so that each round can be timed by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import torch

from confrere.core.events import Journal
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task
from confrere.simulation.simulation import Simulation
from confrere.study import Study

WIDTH, CLASSES = 784, 10


def sites_with(records: int, count: int) -> dict[str, SiteData]:
    """Sites with random images of ten classes, for training only."""
    draw = torch.Generator().manual_seed(7)
    none = Records(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64))
    found = {}
    for k in range(count):
        x = torch.rand(records, WIDTH, generator=draw)
        y = torch.randint(0, CLASSES, (records,), generator=draw)
        found[f"site{k}"] = SiteData(f"site{k}", Records(x, y), none, none, records)
    return found


class SteppedStudy:
    """A study, put together once; each call of `round` is one more round of it."""

    def __init__(self, study: Study, sites: Mapping[str, SiteData], trainer: str) -> None:
        task = Task("multiclass", tuple(str(c) for c in range(CLASSES)), (WIDTH,))
        self.simulation = Simulation(study, Federation("made up", task, dict(sites)), trainer=trainer)
        self.simulation.prepare(Journal(None))
        self.number, self.loop = 0, asyncio.new_event_loop()

    def round(self) -> None:
        async def one() -> None:
            async with self.simulation.delivering():
                await self.simulation.round(self.number)
                self.simulation.settle(self.number)

        self.loop.run_until_complete(one())
        self.number += 1
