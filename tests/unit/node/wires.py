"""Connections inside one process: the face of `transport.grpc.Connections`, and a network that can be broken."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from confrere.core.errors import PeerMissing, PeerRefused
from confrere.transport.body import Body
from confrere.transport.grpc.connections import Handlers
from confrere.transport.grpc.greeting import refuse
from confrere.transport.grpc.identity import Identity
from confrere.transport.grpc.member import Member
from confrere.transport.receipt import Outcome, Receipt


class Network:
    """All wires of a test. `cut` holds pairs that cannot talk; `left` is everything that was ever sent.

    A parcel, and then its receipt, takes a random time of up to `delay` seconds.
    """

    def __init__(self, seed: int = 0, lose: float = 0.0, repeat: float = 0.0, delay: float = 0.0) -> None:
        self.wires: dict[str, Wire] = {}
        self.cut: set[frozenset[str]] = set()
        self.left: list[tuple[str, str, bytes]] = []
        self.chance = random.Random(seed)
        self.lose, self.repeat, self.delay = lose, repeat, delay

    def connect(
        self, identity: Identity, members: Mapping[str, Member], handlers: Handlers, *_: Any, **__: Any
    ) -> Wire:
        return Wire(self, identity, members, handlers)

    async def travel(self) -> None:
        """Wait as long as a parcel or its receipt takes."""
        await asyncio.sleep(self.delay * self.chance.random() if self.delay else 0)

    def apart(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cut


class Wire:
    """One site's end of the network."""

    def __init__(
        self,
        network: Network,
        identity: Identity,
        members: Mapping[str, Member],
        handlers: Handlers,
    ) -> None:
        self.network, self.identity, self.members = network, identity, dict(members)
        self.me = identity.name
        self.greet, self.deliver = handlers.greet, handlers.deliver
        self.notice, self.met, self.agreed = handlers.notice, handlers.met, handlers.agreed
        self.up, self.process = False, secrets.token_hex(8)
        self._greeted: dict[str, Wire] = {}
        self.last_contact: dict[str, float] = {}
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()

    async def start(self) -> None:
        self.up = True
        self.network.wires[self.me] = self

    async def stop(self) -> None:
        self.up = False
        if self.network.wires.get(self.me) is self:
            del self.network.wires[self.me]

    @property
    def processes(self) -> dict[str, str]:
        return {peer: self.network.wires[peer].process for peer in self.connected}

    @property
    def connected(self) -> frozenset[str]:
        return frozenset(p for p in self.members if self._reach(p) is not None)

    def _reach(self, peer: str) -> Wire | None:
        other = self.network.wires.get(peer)
        if not self.up or other is None or not other.up or self.network.apart(self.me, peer):
            return None
        if self._greeted.get(peer) is not other:
            ours, theirs = self.greet(peer), other.greet(self.me)
            if not (self._judges(peer, ours, theirs) & other._judges(self.me, theirs, ours)):
                return None
            self.agreed(peer, theirs)
            other.agreed(self.me, ours)
            self._greeted[peer], other._greeted[self.me] = other, self
        return other

    def _judges(self, peer: str, ours: Any, theirs: Any) -> bool:
        """As the real ones do: who refuses still hears what the other one knows."""
        try:
            try:
                refuse(ours, theirs, self.members[peer].key)
            finally:
                self.met(peer, theirs)
        except PeerRefused:
            return False
        return True

    async def wait_connected(self, peer: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._reach(peer) is None:
            if time.monotonic() > deadline:
                raise PeerMissing(peer)
            await asyncio.sleep(0.02)

    async def send(self, to: str, parcel_id: str, body: Body) -> Receipt:
        blob = body.read()
        await self.network.travel()
        other = self._reach(to)
        if other is None:
            raise PeerMissing(to)
        self.network.left.append((self.me, to, blob))
        if self.network.chance.random() < self.network.lose:
            raise PeerMissing(f"{to}: lost on the way")
        self.bytes_sent[to] += len(blob)
        times = 2 if self.network.chance.random() < self.network.repeat else 1
        receipt = Receipt(Outcome.DEFERRED)
        for _ in range(times):
            try:
                receipt = await other.deliver(self.me, Body.of(blob))
            except Exception:
                return Receipt(Outcome.DEFERRED)
        other.last_contact[self.me] = self.last_contact[to] = time.time()
        if self.network.delay:
            await self.network.travel()
        if self.network.chance.random() < self.network.lose:
            raise PeerMissing(f"{to}: its answer was lost")
        return receipt
