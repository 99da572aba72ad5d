"""Count the files and functions that one ProxyFL round passes in a simulation: `python scripts/walk.py [--list]`.

Traces every call into the package during the second round of a small study (three sites with noise, no files), from
the start of the round until it is evaluated. A *hop* is a package function on the call stack.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import confrere
from confrere.core.events import Journal
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites

PACKAGE = str(Path(confrere.__file__).parent)


class Walk:
    """The package functions that were called, by file, and the longest stack of them."""

    def __init__(self) -> None:
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.longest: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _inside(frame):
            return
        self.functions[_file(frame)].add(frame.f_code.co_qualname)
        stack: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            if _inside(at):
                stack.append(f"{_file(at)}: {at.f_code.co_qualname}")
            at = at.f_back
        if len(stack) > len(self.longest):
            self.longest = stack[::-1]


def _inside(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    return frame.f_code.co_filename.startswith(PACKAGE) and not name.startswith("<")


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(PACKAGE + "/")


def walked() -> Walk:
    rng = np.random.default_rng(0)
    sites = {}
    for name in ("a", "b", "c"):
        inputs = rng.normal(size=(120, 4)).astype("float32")
        sites[name] = (inputs, (inputs[:, 0] > 0).astype(int))
    privacy = confrere.Privacy(epsilon=3.0, delta=1e-5)
    study = confrere.Study(name="walk", rounds=3, strategy="proxyfl", privacy=privacy)
    simulation, walk = Simulation(study, open_sites(study, sites)), Walk()
    simulation.prepare(journal := Journal(None))

    async def rounds() -> None:
        async with simulation.delivering():
            for number in simulation.rounds(0, journal):
                await simulation.round(number)
                simulation.settle(number)
                simulation.evaluate(number)
                if number == 1:
                    break
                sys.setprofile(walk)
            sys.setprofile(None)

    asyncio.run(rounds())
    return walk


if __name__ == "__main__":
    found = walked()
    total = sum(map(len, found.functions.values()))
    print(f"{len(found.functions)} files, {total} functions, {len(found.longest)} hops at most")
    if "--list" in sys.argv:
        for file, names in sorted(found.functions.items()):
            print(f"{file}: {', '.join(sorted(names))}")
        print("\nThe longest stack:", *found.longest, sep="\n  ")
