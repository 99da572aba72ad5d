"""What each strategy does with models, on sites whose training can be foretold."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, Scalar
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Inbox, Parcel
from confrere.core.protocols import Objective
from confrere.exchange.topology import topologies
from confrere.learning.objectives import Near
from confrere.strategies import discover, strategies

discover()


class Clerk:
    """A site that «trains» by adding its own number to every weight."""

    def __init__(self, name: str, adds: float, size: int) -> None:
        self.name, self.adds, self.size = name, adds, size
        self.objectives: list[Objective] = []

    def build(self, role: str) -> Model:
        return Model(Params({"w": torch.zeros(1, dtype=torch.float64)}), "one", Custody.PUBLIC)

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        self.objectives.append(objective)
        moved = {}
        for role in objective:
            params = Params({"w": models[role].params["w"] + self.adds})
            moved[role] = Model(params, "one", Custody.PROTECTED if role in protect else Custody.PRIVATE)
        return {**models, **moved}


class Round:
    """Peers of one round; what is sent lands in the others' boxes."""

    def __init__(
        self, me: str, number: int, members: tuple[str, ...], graph: Any, boxes: dict[tuple[str, int], Any]
    ) -> None:
        self.me, self.round, self.epoch, self.members = me, number, 0, members
        self.centre, self.combiner = graph.centre(number, members), None
        self.column = dict(graph.column(number, members, me))
        self.kept = self.column.pop(me, 0.0)
        self.largest, self.diverged = math.inf, False
        self.boxes, self.asked = boxes, list[str]()

    async def latest_common(self, models: int = 1) -> tuple[Parcel, ...]:
        return ()

    async def send_common(self, *models: Model, **scalars: Scalar) -> None:
        return None

    async def exchange(self, model: Model | None, **scalars: Scalar) -> Inbox:
        for to, share in self.column.items():
            shared = {k: v * share if k == "mass" else v for k, v in scalars.items()}
            self.boxes[to, 0].append(Parcel("run", 0, self.round, 0, self.me, to, self.round, model, shared))
        await asyncio.sleep(0)
        inbox = Inbox(tuple(self.boxes[self.me, 0]), (), self.round, 0)
        self.asked = [p.sender for p in inbox]
        return inbox

    async def answer(self, models: Mapping[str, Model], **scalars: Scalar) -> Inbox:
        for to in self.asked:
            parcel = Parcel("run", 0, self.round, 1, self.me, to, self.round, models.get(to), dict(scalars))
            self.boxes[to, 1].append(parcel)
        for _ in range(3):
            await asyncio.sleep(0)
        return Inbox(tuple(self.boxes[self.me, 1]), (), self.round, 1)


def play(strategy: Any, clerks: list[Clerk], rounds: int, topology: str = "", **options: Any) -> list[float]:
    """The weights of all sites after so many rounds."""
    graph: Any = topologies[topology or strategy.topology](**options)
    names = tuple(c.name for c in clerks)

    async def work() -> list[float]:
        states = {c.name: strategy.init(c) for c in clerks}
        for number in range(rounds):
            boxes: dict[tuple[str, int], Any] = {(n, phase): [] for n in names for phase in (0, 1)}
            done = await asyncio.gather(
                *(
                    strategy.round(states[c.name], c, Round(c.name, number, names, graph, boxes))
                    for c in clerks
                )
            )
            states = dict(zip(names, done, strict=True))
        return [float(getattr(states[n], strategy.deploys[-1]).params["w"]) for n in names]

    return asyncio.run(work())


def clerks() -> list[Clerk]:
    return [Clerk("a", 1.0, 10), Clerk("b", 2.0, 30), Clerk("c", 6.0, 60)]


MEAN = (1.0 * 10 + 2.0 * 30 + 6.0 * 60) / 100


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
@pytest.mark.parametrize(
    ("topology", "options"), [("complete", {}), ("star", {"leader": "b"}), ("star", {"leader": "elected"})]
)
def test_averaging_gives_everybody_the_mean_by_declared_size(name: str, topology: str, options: Any) -> None:
    assert play(strategies[name](), clerks(), 1, topology, **options) == pytest.approx([MEAN] * 3)
    assert play(strategies[name](), clerks(), 4, topology, **options) == pytest.approx([4 * MEAN] * 3)


def test_cyclical_transfer_trains_what_the_neighbour_sent() -> None:
    assert play(strategies["cwt"](), clerks(), 1) == [6.0, 1.0, 2.0]
    assert play(strategies["cwt"](), clerks(), 3) == [9.0, 9.0, 9.0]  # each model has been everywhere once


def test_training_alone_hears_nobody() -> None:
    assert play(strategies["local"](), clerks(), 3, "none") == [3.0, 6.0, 18.0]


def test_gossip_with_equal_mass_reaches_the_plain_mean() -> None:
    still = clerks()
    found = play(strategies["avgpush"](mass="equal"), still, 1, "complete")
    assert found == pytest.approx([3.0] * 3)


def test_gossip_by_size_moves_everybody_by_the_mean_weighted_by_size() -> None:
    assert play(strategies["avgpush"](mass="size"), clerks(), 1, "complete") == pytest.approx([MEAN] * 3)


def test_the_published_permutation_averages_nothing() -> None:
    found = play(strategies["avgpush"](mass="equal"), clerks(), 1, "exponential", keep=0.0, rota="published")
    assert found == [6.0, 1.0, 2.0]


def test_fedprox_pulls_towards_where_the_round_began() -> None:
    site = clerks()
    play(strategies["fedprox"](pull=0.3), site, 2)
    assert site[0].objectives == [{"model": Near("start", 0.3)}] * 2
