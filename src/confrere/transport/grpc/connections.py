"""A site's connections to its peers: mutual TLS 1.3 over gRPC, one stream per pair that both use.

    connections = Connections(identity, members, Handlers(greet, deliver, journal.add), listen="0.0.0.0:7000")
    await connections.start()                     # listens, if the site has an address, and dials all peers that it can
    receipt = await connections.send("b", "a/b/7", body)   # PeerMissing if b is not there, or is lost meanwhile
    await connections.stop()

- `members` is the roster: every other site by name (`transport.member.Member`); `node.roster.Roster.members` gives it.
- `Handlers` are the functions of the node that are called at a handshake and with what arrives.

A site dials every peer that has an address. Where both can dial, the site whose name sorts first does so, and the other one
only after a moment; `peer_connection.py` resolves the case that both do. A site that cannot be dialled is served over the
stream that it opened. Attempts go on for as long as the node runs, at growing intervals of up to half a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from confrere.core.errors import ConfrereError, PeerError, PeerMissing, PeerRefused
from confrere.core.events import Event
from confrere.core.terminal import printable
from confrere.transport.body import Body
from confrere.transport.grpc import channel, frames, handshake
from confrere.transport.grpc.greeting import Greeting
from confrere.transport.grpc.identity import CertificateKeeper, Identity
from confrere.transport.grpc.member import Member
from confrere.transport.grpc.peer_connection import ALREADY, AlreadyConnected, PeerConnection
from confrere.transport.link_limits import LinkLimits
from confrere.transport.receipt import Outcome, Receipt
from confrere.transport.spool import Spool
from confrere.version import __version__

LONGEST_HANDSHAKE = 20.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before another attempt; doubled each time, and drawn at random up to that."""
STEADY = 5.0
"""Seconds after which a connection counts as a success, so that the next attempt may follow at once."""
HEAD_START = 1.0
"""Seconds that the site whose name sorts first gets to dial before the other one tries."""


@dataclass(frozen=True)
class Handlers:
    """The functions of a node that its connections call."""

    greet: Callable[[str], Greeting]
    """(peer) → this site's greeting, at every handshake: it may look up the epoch, the ledger and the marks."""
    deliver: Callable[[str, Body], Awaitable[Receipt]]
    """(sender, body) → what was done with a whole parcel of an authenticated peer, once that is durable. Parcels come one
    at a time; a body in a file may be moved away. Raising means «not now»: the sender keeps the parcel and sends it again."""
    notice: Callable[[Event], None] = lambda event: None
    """Receives `connected`, `disconnected`, `unreachable` and `notice`, once per change and not per attempt."""
    met: Callable[[str, Greeting], None] = lambda peer, greeting: None
    """(peer, greeting of an authenticated peer), before anything is exchanged: the place to compare `greeting.seen` with
    the site's own ledger; PeerRefused refuses the peer."""
    agreed: Callable[[str, Greeting], None] = lambda peer, greeting: None
    """(peer, its greeting), once both sides have accepted and before anything is exchanged: the place to store
    `greeting.mark` durably."""


class Connections:
    """All connections of a node."""

    def __init__(
        self,
        identity: Identity,
        members: Mapping[str, Member],
        handlers: Handlers,
        limits: LinkLimits,
        *,
        listen: str | None = None,
    ) -> None:
        """`listen` is host:port to bind (port 0: any, see `port`); None for a site that only dials out."""
        self.name = identity.name
        self.port: int | None = None
        """Where this site listens, once started."""
        self._handlers, self._limits = handlers, limits
        self._listen, self._process = listen, secrets.token_hex(8)
        self._handshake = min(limits.patience, LONGEST_HANDSHAKE)
        self._peers = {
            name: PeerConnection(self.name, member, met=handlers.met, notice=handlers.notice)
            for name, member in members.items()
            if name != self.name
        }
        self._keeper = CertificateKeeper(identity, self._certificate_changed, self._report)
        self._one_delivery = asyncio.Lock()
        self._deliveries: set[asyncio.Future[Receipt]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None

    async def start(self) -> None:
        """Listen and dial. Refuses with IdentityError if the own certificate is expired."""
        self.identity.check()
        if self._listen is not None:
            self._server, self.port = channel.open_server(
                self._listen, lambda: self.identity, self._members, self._receive
            )
            await self._server.start()
        self._spawn(self._keeper.run())
        for peer in self._peers.values():
            if peer.member.address is not None:
                self._spawn(self._keep_dialling(peer))

    async def stop(self) -> None:
        """Hang up. Deliveries that have begun are finished first; what was not answered is sent again later."""
        for peer in self._peers.values():
            if peer.link is not None:
                peer.link.end("this site stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._deliveries, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.5)
            self._server = None

    async def __aenter__(self) -> Connections:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def send(self, to: str, parcel_id: str, body: Body | bytes) -> Receipt:
        """Stream a parcel in chunks; returns once the peer durably credited, refused or put it off."""
        return await self._peer(to).send(parcel_id, Body.of(body))

    async def wait_connected(self, peer: str, timeout: float) -> None:
        """Returns once the peer is connected; PeerMissing after `timeout` seconds, with the last reason."""
        await self._peer(peer).wait_connected(timeout)

    def renew(self, identity: Identity) -> None:
        """Use a new certificate from now on; streams are replaced without losing what is under way."""
        self._keeper.use(identity)

    @property
    def identity(self) -> Identity:
        return self._keeper.identity

    @property
    def connected(self) -> frozenset[str]:
        return frozenset(name for name, peer in self._peers.items() if peer.connected)

    @property
    def processes(self) -> Mapping[str, str]:
        """Which process of each connected peer is at the other end: another one after the peer was started again."""
        links = {name: peer.link for name, peer in self._peers.items() if peer.connected}
        return {name: link.other.process for name, link in links.items() if link is not None}

    @property
    def last_contact(self) -> Mapping[str, float]:
        """When something last arrived from each peer, in seconds since 1970."""
        met = {name: peer.meter.last_contact for name, peer in self._peers.items()}
        return {name: when for name, when in met.items() if when is not None}

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each peer that is not connected is not."""
        return {name: peer.reason for name, peer in self._peers.items() if not peer.connected}

    @property
    def bytes_sent(self) -> Mapping[str, int]:
        return {name: peer.meter.sent for name, peer in self._peers.items()}

    @property
    def bytes_received(self) -> Mapping[str, int]:
        return {name: peer.meter.received for name, peer in self._peers.items()}

    async def _keep_dialling(self, peer: PeerConnection) -> None:
        can_be_dialled = self._listen is not None and self.identity.member.address is not None
        if can_be_dialled and peer.name < self.name:
            await asyncio.sleep(HEAD_START * random.uniform(1, 2))
        pause, began, reached = FIRST_PAUSE, 0.0, False
        while True:
            while peer.connected and not peer.redial:
                await peer.changed.wait()
            if reached and (peer.redial or time.monotonic() - began > STEADY):
                pause = FIRST_PAUSE
            if began and not (reached and peer.redial):
                await asyncio.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, LONGEST_PAUSE)
            began = time.monotonic()
            reached = await self._reach(peer)

    async def _reach(self, peer: PeerConnection) -> bool:
        """One attempt; whether it succeeded. Why it did not is in `peer.reason`."""
        try:
            async with asyncio.timeout(self._handshake):
                await self._dial(peer)
        except AlreadyConnected:
            pass
        except TimeoutError:
            peer.not_reached(f"nothing answers at {peer.member.address}; see the firewalls")
            return False
        except (ConfrereError, OSError) as error:
            peer.not_reached(str(error))
            return False
        peer.redial = False
        return True

    async def _dial(self, peer: PeerConnection) -> None:
        """Open a stream to a peer; returns once both sides use it."""
        identity = self.identity
        identity.check()
        opened = channel.open_channel(identity, peer.member)
        try:
            stream = channel.Stream(channel.open_stream(opened), peer.member)
            theirs = await handshake.introduce(stream, self._own(peer), partial(peer.judge, dialled=True))
            self._handlers.agreed(peer.name, theirs)
            link = peer.adopt(theirs, stream, dialled=True, deliver=self._take, limits=self._limits)
        except handshake.RefusedByPeer as refusal:
            await opened.close(None)
            if str(refusal).endswith(ALREADY):
                raise AlreadyConnected(ALREADY) from None
            raise
        except BaseException:
            await opened.close(None)
            raise

        async def serve() -> None:
            try:
                await peer.serve(link)
            finally:
                await opened.close(None)

        self._spawn(serve())

    async def _receive(self, _: object, context: Any) -> None:
        """One stream that a peer opened to this site."""
        try:
            member, certificate = channel.visitor(context, self._members())
        except PeerRefused as refusal:
            self._report(f"refused: {refusal}")
            await context.write(frames.refusal(str(refusal)))
            return
        peer = self._peers[member.name]
        stream = channel.Stream(context, member)
        try:
            async with asyncio.timeout(self._handshake):
                if not peer.visits.take():
                    await stream.read()  # who dialled reads an answer only after its own greeting
                    await stream.write(frames.refusal("too many connections; try again later"))
                    return
                theirs = await handshake.receive(stream, self._own(peer), partial(peer.judge, dialled=False))
                self._handlers.agreed(peer.name, theirs)
        except (AlreadyConnected, TimeoutError):
            return
        except PeerError as error:
            peer.not_reached(str(error))
            return
        link = peer.adopt(theirs, stream, dialled=False, deliver=self._take, limits=self._limits)
        expires = min(certificate.not_valid_after_utc, self.identity.expires)
        left = max((expires - dt.datetime.now(dt.UTC)).total_seconds(), 0.0)
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(left * 0.9, link.ask_to_move),
            loop.call_later(left, link.end, "a certificate of this connection expired"),
        ]
        try:
            await peer.serve(link)
        finally:
            for timer in timers:
                timer.cancel()

    async def _take(self, sender: str, spool: Spool) -> Receipt:
        """Deliver a whole parcel. A delivery that has begun is finished even if the stream ends."""
        work = asyncio.ensure_future(self._take_in_turn(sender, spool))
        self._deliveries.add(work)
        work.add_done_callback(self._deliveries.discard)
        return await asyncio.shield(work)

    async def _take_in_turn(self, sender: str, spool: Spool) -> Receipt:
        """One at a time, so that a node holds one parcel in memory, however many peers send."""
        async with self._one_delivery:
            try:
                with contextlib.closing(spool):
                    return await self._handlers.deliver(sender, spool.body())
            except Exception as error:  # the sender still has the parcel
                self._report(
                    f'a parcel from "{sender}" could not be taken now: {type(error).__name__}: {error}'
                )
                return Receipt(Outcome.DEFERRED, "it could not be taken now")

    def _own(self, peer: PeerConnection) -> Greeting:
        return replace(self._handlers.greet(peer.name), process=self._process, version=__version__)

    def _certificate_changed(self) -> None:
        for peer in self._peers.values():
            peer.renew()

    def _members(self) -> list[Member]:
        return [peer.member for peer in self._peers.values()]

    def _peer(self, name: str) -> PeerConnection:
        if name not in self._peers:
            raise PeerMissing(f'"{name}" is not in the roster of "{self.name}"')
        return self._peers[name]

    def _report(self, text: str) -> None:
        self._handlers.notice(Event("notice", self.name, data={"text": printable(text)}))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def free_ports(count: int) -> list[int]:
    """Ports on the loopback interface that are free at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
