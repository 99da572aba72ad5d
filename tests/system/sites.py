"""Sites on loopback for tests: each with an identity of its own, connected as real ones are."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confrere.core.events import Event
from confrere.core.parcel import LedgerMark
from confrere.transport.body import Body
from confrere.transport.grpc.connections import Connections, Handlers
from confrere.transport.grpc.greeting import Greeting
from confrere.transport.grpc.identity import Identity, new_identity
from confrere.transport.grpc.member import Member
from confrere.transport.link_limits import LinkLimits
from confrere.transport.receipt import ACCEPTED, DUPLICATE, Receipt

RUN = "a-run"


def identities(*names: str, **options: Any) -> dict[str, Identity]:
    return {name: new_identity(name, **options) for name in names}


def at(member: Member, port: int | None) -> Member:
    """A member who can be dialled on this machine."""
    return dataclasses.replace(member, address=None if port is None else f"127.0.0.1:{port}")


@dataclass
class Site:
    """A site that remembers what it was given, and counts each parcel once."""

    identity: Identity
    marks: dict[str, tuple[LedgerMark, ...]] = field(default_factory=dict)
    greeting: dict[str, Any] = field(default_factory=dict)
    took: list[tuple[str, bytes]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    met: list[tuple[str, Greeting]] = field(default_factory=list)
    answer: Callable[[str, bytes], Receipt] | None = None
    pause: float = 0.0
    connections: Connections = field(init=False)

    @property
    def name(self) -> str:
        return self.identity.name

    def greet(self, peer: str) -> Greeting:
        facts: dict[str, Any] = {
            "run": RUN,
            "study": "s" * 16,
            "roster": "r" * 16,
            "epoch": 0,
        } | self.greeting
        return Greeting(sender=self.name, receiver=peer, seen=self.marks.get(peer, ()), **facts)

    async def deliver(self, sender: str, body: Body) -> Receipt:
        blob = body.read()
        if self.pause:
            await asyncio.sleep(self.pause)
        if self.answer is not None:
            return self.answer(sender, blob)
        if (sender, blob) in self.took:
            return DUPLICATE
        self.took.append((sender, blob))
        return ACCEPTED

    def meet(self, peer: str, greeting: Greeting) -> None:
        self.met.append((peer, greeting))

    def connect(self, members: Mapping[str, Member], **options: Any) -> Connections:
        handlers = Handlers(self.greet, self.deliver, self.events.append, self.meet)
        listen = options.pop("listen", None)
        self.connections = Connections(self.identity, members, handlers, LinkLimits(**options), listen=listen)
        return self.connections

    def heard(self, kind: str) -> list[str]:
        return [str(e.data.get("text", e.data.get("peer"))) for e in self.events if e.kind == kind]


@contextlib.asynccontextmanager
async def pair(
    a: Site, b: Site, *, between: Callable[[int], Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Site, Site]]:
    """`b` listens, `a` dials it and cannot be dialled itself; `between` gives another port to dial."""
    listening = b.connect({a.name: a.identity.member}, listen="127.0.0.1:0", **options)
    await listening.start()
    try:
        port = listening.port if between is None else between(listening.port or 0)
        dialling = a.connect({b.name: at(b.identity.member, port)}, **options)
        await dialling.start()
        try:
            yield a, b
        finally:
            await dialling.stop()
    finally:
        await listening.stop()


def two(**options: Any) -> tuple[Site, Site]:
    found = identities("a", "b", **options)
    return Site(found["a"]), Site(found["b"])
