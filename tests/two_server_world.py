"""Two servers, a dealer and some sites in one place, and everything that each server sees."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from confrere.exchange.secure.masking import Ring, unpacked
from confrere.exchange.secure.two_servers import (
    BITS,
    DistanceServer,
    Masks,
    context_of,
    deal,
    divide_vector,
    mean_of_halves,
    part_of_seed,
    squared_distance,
)

Seeds = Callable[[int], bytes]


@dataclass
class View:
    """What one server sees in a round, beside its own secrets."""

    parts: dict[str, Ring] = field(default_factory=dict)
    masks: Masks | None = None
    received: dict[str, Ring] = field(default_factory=dict)
    halves: dict[str, int] = field(default_factory=dict)


@dataclass
class Round:
    """One round with these vectors in fixed point; the user is "u"."""

    vectors: Mapping[str, Ring]
    number: int = 0
    seeds: Seeds = random.Random(0).randbytes
    dealers_seeds: Seeds | None = None

    def __post_init__(self) -> None:
        sites = sorted(self.vectors)
        self.size = len(self.vectors["u"])
        self.context = context_of("run", 0, self.number, ("u", "a", "b", "d"), sites, self.size)
        self.a, self.b = View(), View()
        for name, vector in self.vectors.items():
            seed, rest = divide_vector(vector, self.context, name, self.seeds)
            self.a.parts[name] = part_of_seed(seed, self.context, name, self.size)
            self.b.parts[name] = unpacked(rest, self.size, BITS)
        dealt = deal(
            self.context, [s for s in sites if s != "u"], self.size, self.dealers_seeds or self.seeds
        )
        self.a.masks, self.b.masks = dealt
        self.servers = tuple(
            DistanceServer(first, "u", self.size, view.parts, masks)
            for first, view, masks in ((True, self.a, dealt[0]), (False, self.b, dealt[1]))
        )
        one, other = self.servers
        to_b, to_a = one.masked_differences(), other.masked_differences()
        self.a.received = {n: unpacked(v, self.size, BITS) for n, v in to_a.items()}
        self.b.received = {n: unpacked(v, self.size, BITS) for n, v in to_b.items()}
        self.b.halves, self.a.halves = one.halves(to_a), other.halves(to_b)

    @property
    def squared(self) -> dict[str, float]:
        return {name: squared_distance(half, self.b.halves[name]) for name, half in self.a.halves.items()}

    def mean(self, weights: Mapping[str, float]) -> NDArray[np.float64]:
        halves = (unpacked(server.weighted(weights), self.size, BITS) for server in self.servers)
        return mean_of_halves(*halves)
