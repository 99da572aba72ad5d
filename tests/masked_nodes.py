"""Nodes of a masked study as tasks of one process, killed at failpoints, and what must hold whatever happens to them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from confrere.core.errors import BadParcel
from confrere.exchange.secure.masking import from_ring, unpacked
from confrere.exchange.secure.messages import MaskedVector, Message, OpenedShares, SumResult, Vote, encode
from confrere.node import node_sums, replay, setup, store, sum_log, sum_messages
from confrere.node.config import NodeConfig
from confrere.node.node import Node
from confrere.privacy.ledger import Ledger
from confrere.site.masked_messages import content_of, divided, is_masked
from confrere.site.masked_share import SiteShare
from confrere.study import Models, Privacy, Study
from confrere.study.masked_settings import Masked
from confrere.transport import wire
from tests.unit.node.wires import Network
from tests.unit.quick import quick


class Killed(BaseException):
    """The plug was pulled."""


def masked_study(strategy: Any = "fedavg", **changes: Any) -> Study:
    """Four sites, of which one may collude and one be missing. No budget ends: each vector has a charge."""
    return quick(
        strategy,
        **{
            "rounds": 3,
            "patience": 6.0,
            "combiner": "masked-sum",
            "masked": Masked(1, 1),
            "privacy": Privacy(noise_multiplier=8.0, delta=1e-4),
            "models": Models("linear", "linear"),
            **changes,
        },
    )


@dataclass
class Plug:
    """Kills the node that comes to a failpoint for the n-th time; with `at` empty, nobody."""

    at: str = ""
    time: int = 1
    only: str = ""
    deaths: list[str] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)

    def __call__(self, point: str) -> None:
        self.passed[point] += 1
        if point == self.at and self.passed[point] == self.time:
            raise Killed

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Plug:
        for module in (replay, setup, store, sum_log, sum_messages, node_sums):
            monkeypatch.setattr(module, "reach", self)
        return self


@dataclass
class World:
    """All nodes, everything that was sent, and every vector that was drawn."""

    places: Mapping[str, NodeConfig]
    plug: Plug
    network: Network = field(default_factory=Network)
    nodes: dict[str, Node] = field(default_factory=dict)
    drawn: dict[tuple[str, int], list[NDArray[np.int64]]] = field(default_factory=lambda: defaultdict(list))
    away: frozenset[str] = frozenset()
    """Sites whose nodes are not started, or not started again after a death."""
    events: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> World:
        real = SiteShare.draw

        def draw(share: SiteShare) -> NDArray[np.int64]:
            found = real(share)
            self.drawn[share.site.name, share.round].append(found.copy())
            return found

        monkeypatch.setattr(SiteShare, "draw", draw)
        return self

    async def _lives(self, place: NodeConfig) -> None:
        while True:
            listen = self.events[place.me].append
            node = self.nodes[place.me] = Node(place, connect=self.network.connect, listeners=(listen,))
            try:
                return await node.run()
            except Killed:
                self.plug.deaths.append(place.me)
                if place.me in self.away:
                    del self.nodes[place.me]
                    return

    async def _until(self, over: Callable[[World], bool], seconds: float) -> None:
        tasks = [asyncio.create_task(self._lives(p)) for n, p in self.places.items()]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(seconds):
                while not over(self):
                    for task in tasks:
                        if task.done():
                            task.result()
                    await asyncio.sleep(0.05)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def run(self, seconds: float = 240.0, over: Callable[[World], bool] | None = None) -> World:
        asyncio.run(self._until(over or all_finished, seconds))
        return self

    # -- what must hold ---------------------------------------------------------------------------------

    def messages(self) -> list[tuple[int, str, Message]]:
        """(round, sender, message) of every message of a masked sum that was ever sent."""
        found = []
        for sender, _, blob in self.network.left:
            parcel = wire.decode(blob)
            if is_masked(parcel.phase):
                content = content_of(parcel)
                if content.startswith(b"{"):
                    _, _, content = content.partition(b"\n")
                found += [(parcel.round, sender, message) for message in divided(content)]
        return found

    def check(self, restored: Iterable[str] = ()) -> int:
        """The invariants of masked sums over everything that was ever sent; returns how many sums were opened."""
        messages = self.messages()
        opened: dict[bytes, set[tuple[tuple[str, ...], bytes]]] = defaultdict(set)
        rounds: dict[bytes, int] = {}
        for number, _, message in messages:
            rounds[message.context] = number
            if isinstance(message, SumResult):
                opened[message.context].add((message.certificate.survivors, message.vector))
        for context, sums_of in opened.items():
            assert len(sums_of) == 1, "two sums of one attempt were opened"
            self._check_sum(rounds[context], *next(iter(sums_of)))
        _check_single(messages, set(restored))
        books = sum_books({name: place.ledger for name, place in self.places.items()})
        assert books.problems == []
        return len(opened)

    def _check_sum(self, number: int, survivors: tuple[str, ...], vector: bytes) -> None:
        size = len(vector) // 8
        steps = from_ring(unpacked(vector, size, 64), 64)
        chosen = product(*(self.drawn[name, number] for name in survivors))
        assert any((steps == sum(parts)).all() for parts in chosen), "not the sum of the signed survivors"


def all_finished(world: World) -> bool:
    there = [n for name, n in world.nodes.items()]
    expected = len(world.places) - len([d for d in world.plug.deaths if d in world.away])
    return len(there) >= expected and all(n.doing == "finished" and not n.store.owed() for n in there)


def _check_single(messages: list[tuple[int, str, Message]], restored: set[str]) -> None:
    """One vector and one list per attempt and site; of each site one half of its secrets."""
    vectors: dict[tuple[bytes, str], set[bytes]] = defaultdict(set)
    votes: dict[tuple[bytes, str], set[bytes]] = defaultdict(set)
    halves: dict[tuple[bytes, bytes, str], set[str]] = defaultdict(set)
    for _, sender, message in messages:
        if isinstance(message, MaskedVector):
            vectors[message.context, sender].add(encode(message))
        elif isinstance(message, Vote):
            votes[message.context, sender].add(message.signed_part())
        elif isinstance(message, OpenedShares):
            for half, given in (("seed", message.seed_shares), ("key", message.key_shares)):
                for site in given:
                    halves[message.context, message.statement, site].add(half)
    assert all(len(found) == 1 for (_, site), found in vectors.items() if site not in restored)
    assert all(len(found) == 1 for (_, site), found in votes.items() if site not in restored)
    by_site: dict[tuple[bytes, str], set[str]] = defaultdict(set)
    for (context, _, site), found in halves.items():
        by_site[context, site] |= found
    assert all(len(found) == 1 for found in by_site.values()), "both halves of one site were opened"


@dataclass
class SumBooks:
    """The charges of masked sums, and what they paid for; `problems` is empty if all is well."""

    charges: int = 0
    vectors: int = 0
    votes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def without_vector(self) -> int:
        """Charges of attempts that ended at this site before its vector could leave."""
        return self.charges - self.vectors


def sum_books(ledgers: Mapping[str, Path]) -> SumBooks:
    """Read the ledgers of nodes: a charge before each vector, one for each attempt, and each fact once."""
    books = SumBooks()
    for name, path in ledgers.items():
        if not path.exists():
            continue
        with Ledger(path) as ledger:
            entries = ledger.entries()
        keys: Counter[str] = Counter()
        facts: Counter[str] = Counter()
        charged = vectors = 0
        for entry in entries:
            key = str(entry["key"])
            if key.startswith("fact/"):
                subject = key.partition("=")[0]
                facts[subject] += 1
                if subject.endswith("/vector"):
                    vectors += 1
                    if vectors > charged:
                        books.problems.append(f"{name}: vector {vectors} was recorded with {charged} charges")
                books.votes += subject.endswith("/vote")
            elif entry["charges"]:
                charged += 1
                keys[key] += 1
        books.problems += [f"{name}: {key} was charged {n} times" for key, n in keys.items() if n > 1]
        books.problems += [f"{name}: {fact} was written {n} times" for fact, n in facts.items() if n > 1]
        books.charges, books.vectors = books.charges + charged, books.vectors + vectors
    return books


def states(world: World) -> dict[str, Any]:
    return {name: node.site_run.state for name, node in world.nodes.items()}


def check_common(world: World) -> None:
    """Sites whose state is of the same sums have the same model to the bit."""
    by_version: dict[int, list[Any]] = defaultdict(list)
    for state in states(world).values():
        common = getattr(state, "common", None)
        if common is not None:
            by_version[common.version].append(common.model.params)
    for first, *others in by_version.values():
        assert all(first.equals(other) for other in others)


__all__ = ["BadParcel", "Killed", "Plug", "World", "check_common", "masked_study", "sum_books"]
