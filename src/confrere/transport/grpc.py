"""A site's connections to its peers: mutual TLS 1.3 over gRPC, one stream per pair that both use.

    connections = Connections(identity, members, greet=greet, deliver=deliver, notice=journal.add, ...)
    await connections.start()                     # listens, if the site has an address, and dials everybody it can
    receipt = await connections.send("b", "a/b/7", blob)   # PeerMissing if b is not there, or is lost meanwhile
    await connections.stop()

- `members` is the roster: every other site by name (`transport.member.Member`); `node.roster.Roster.members` gives it.
- `greet(peer) -> Greeting` is called at every handshake, so it may look up the epoch, the ledger and the marks.
- `met(peer, greeting)`, if given, sees the greeting of an authenticated peer before anything is exchanged. It is the
  place to store `greeting.mark` durably and to compare `greeting.seen` with one's own ledger; PeerRefused refuses.
- `deliver(sender, blob) -> Receipt` gets each whole parcel of an authenticated peer, one at a time, and returns what it
  did with it once that is durable. Raising means «not now»: the sender keeps the parcel and sends it again.
- `notice(event)` hears `connected`, `disconnected`, `unreachable` and `notice`, once per change and not per attempt.

Whoever can dial dials. Where both can, the site whose name sorts first does, and the other one only after a moment, so
one of two is enough to get through. If both do, both keep the stream of the first one. A stream that is
replaced (a new certificate) finishes what is under way; that of a peer that was restarted is dropped, and a process
that another one has replaced is not let in again: two programs that use the same keys are noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confrere.core.errors import ConfrereError, PeerError, PeerMissing, PeerRefused
from confrere.core.events import Event
from confrere.transport import channel, frames, handshake
from confrere.transport.certificates import CertificateKeeper
from confrere.transport.greeting import Greeting, printable, refuse
from confrere.transport.identity import Identity
from confrere.transport.link import Link, Meter
from confrere.transport.member import Member
from confrere.transport.receipt import Outcome, Receipt
from confrere.transport.spool import Spool, Terms
from confrere.version import __version__

LONGEST_SILENCE = 60.0
LONGEST_HANDSHAKE = 20.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before another attempt; doubled each time, and drawn at random up to that."""
STEADY = 5.0
"""Seconds after which a connection counts as a success, so that the next attempt may follow at once."""
HEAD_START = 1.0
"""Seconds that the site whose name sorts first gets to dial before the other one tries."""
ALREADY = "already connected"


class _AlreadyConnected(PeerRefused):
    """There is a better stream between the two."""


@dataclass
class _Peer:
    """What this site knows of another one."""

    member: Member
    meter: Meter = field(default_factory=Meter)
    link: Link | None = None
    reason: str = "it was not reached yet"
    redial: bool = False
    past: set[str] = field(default_factory=set)
    """Processes of this peer that another one has replaced."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def connected(self) -> bool:
        return self.link is not None and self.link.open

    def tell(self) -> None:
        """Wake up whoever waits for a change."""
        previous, self.changed = self.changed, asyncio.Event()
        previous.set()


class Connections:
    """Everything that a node needs to know about its peers being there or not."""

    def __init__(
        self,
        identity: Identity,
        members: Mapping[str, Member],
        *,
        greet: Callable[[str], Greeting],
        deliver: Callable[[str, bytes], Awaitable[Receipt]],
        notice: Callable[[Event], None] = lambda event: None,
        met: Callable[[str, Greeting], None] = lambda peer, greeting: None,
        listen: str | None = None,
        largest: int = 256 * 2**20,
        patience: float = 60.0,
        folder: Path | None = None,
    ) -> None:
        """`listen` is host:port to bind (port 0: any, see `port`); None for a site that only dials out.

        `largest` bounds a parcel before a byte of it is read; take it from the study's expected parcel.
        A peer that is silent for `patience` (at most a minute) is lost. Large parcels are spooled in `folder`.
        """
        self.name = identity.name
        self.port: int | None = None
        """Where this site listens, once started."""
        self._greet, self._deliver, self._notice, self._met = greet, deliver, notice, met
        self._handshake = min(patience, LONGEST_HANDSHAKE)
        self._listen, self._process = listen, secrets.token_hex(8)
        self._terms = Terms(largest, min(patience, LONGEST_SILENCE), patience, folder)
        self._peers = {name: _Peer(member) for name, member in members.items() if name != self.name}
        self._keeper = CertificateKeeper(identity, self._certificate_changed, self._say)
        self._one_delivery = asyncio.Lock()
        self._deliveries: set[asyncio.Future[Receipt]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None

    # -- what a node calls --------------------------------------------------------------------------------------

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

    async def send(self, to: str, parcel_id: str, blob: bytes) -> Receipt:
        """Stream a parcel in chunks; returns once the peer durably credited, refused or put it off."""
        peer = self._peer(to)
        if peer.link is None or not peer.link.open:
            raise PeerMissing(f'"{to}" is not connected: {peer.reason}')
        return await peer.link.send(parcel_id, blob)

    async def wait_connected(self, peer: str, timeout: float) -> None:
        """Returns once the peer is there; PeerMissing after `timeout` seconds, with the last reason."""
        found = self._peer(peer)
        try:
            async with asyncio.timeout(timeout):
                while not found.connected:
                    await found.changed.wait()
        except TimeoutError:
            raise PeerMissing(
                f'"{peer}" is not connected after {timeout:g} seconds: {found.reason}'
            ) from None

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
    def last_contact(self) -> Mapping[str, float]:
        """When each peer that was heard was last heard, in seconds since 1970."""
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

    # -- dialling -----------------------------------------------------------------------------------------------

    async def _keep_dialling(self, peer: _Peer) -> None:
        can_be_dialled = self._listen is not None and self.identity.member.address is not None
        if can_be_dialled and peer.member.name < self.name:
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

    async def _reach(self, peer: _Peer) -> bool:
        """One attempt; whether it succeeded. Why it did not is in `peer.reason`."""
        try:
            async with asyncio.timeout(self._handshake):
                await self._dial(peer)
        except _AlreadyConnected:
            peer.redial = False
            return True
        except TimeoutError:
            self._not_reached(peer, f"nobody answers at {peer.member.address}; see the firewalls")
            return False
        except ConfrereError as error:
            self._not_reached(peer, str(error))
            return False
        peer.redial = False
        return True

    async def _dial(self, peer: _Peer) -> None:
        """Open a stream to a peer; returns once both sides use it."""
        identity = self.identity
        identity.check()
        opened = channel.open_channel(identity, peer.member)
        try:
            call = channel.open_stream(opened)
            stream = channel.Stream(call, peer.member)
            try:
                theirs = await handshake.introduce(stream, self._own(peer), self._judge(peer, dialled=True))
            except handshake.RefusedByPeer as refusal:
                if str(refusal).endswith(ALREADY):
                    raise _AlreadyConnected(ALREADY) from None
                raise
            link = self._adopt(peer, theirs, stream, dialled=True)
        except BaseException:
            await opened.close(None)
            raise
        self._spawn(self._serve_dialled(peer, link, opened))

    async def _serve_dialled(self, peer: _Peer, link: Link, opened: Any) -> None:
        try:
            await self._serve(peer, link)
        finally:
            await opened.close(None)

    # -- being dialled ------------------------------------------------------------------------------------------

    async def _receive(self, _: object, context: Any) -> None:
        """One stream that somebody opened to this site."""
        try:
            member, certificate = channel.visitor(context, self._members())
        except PeerRefused as refusal:
            self._say(f"refused: {refusal}")
            await context.write(frames.refusal(str(refusal)))
            return
        peer = self._peers[member.name]
        stream = channel.Stream(context, member)
        try:
            async with asyncio.timeout(self._handshake):
                theirs = await handshake.receive(stream, self._own(peer), self._judge(peer, dialled=False))
        except (_AlreadyConnected, TimeoutError):
            return
        except PeerError as error:
            self._not_reached(peer, str(error))
            return
        link = self._adopt(peer, theirs, stream, dialled=False)
        expires = min(certificate.not_valid_after_utc, self.identity.expires)
        left = max((expires - dt.datetime.now(dt.UTC)).total_seconds(), 0.0)
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(left * 0.9, link.ask_to_move),
            loop.call_later(left, link.end, "a certificate of this connection expired"),
        ]
        try:
            await self._serve(peer, link)
        finally:
            for timer in timers:
                timer.cancel()

    # -- both ---------------------------------------------------------------------------------------------------

    def _own(self, peer: _Peer) -> Greeting:
        return replace(self._greet(peer.member.name), process=self._process, version=__version__)

    def _judge(self, peer: _Peer, *, dialled: bool) -> handshake.Judge:
        def judge(own: Greeting, theirs: Greeting) -> None:
            try:
                refuse(own, theirs, peer.member.key)
            finally:  # a site whose ledger was rolled back must learn it also from who refuses it
                self._met(peer.member.name, theirs)
            if theirs.process in peer.past:
                raise PeerRefused(
                    f'"{peer.member.name}" runs twice: another program has connected with its keys since. '
                    "Stop one of them, and find out why there are two"
                )
            if peer.link is not None and peer.link.open and not self._wanted(peer.link, theirs, dialled):
                peer.link.probe()
                raise _AlreadyConnected(ALREADY)

        return judge

    def _wanted(self, current: Link, theirs: Greeting, dialled: bool) -> bool:
        """Whether a new stream takes the place of the current one. Both sides must come to the same answer."""
        if current.process != theirs.process or current.dialled == dialled:
            return True
        dialler = self.name if dialled else current.peer
        return dialler == min(self.name, current.peer)

    def _adopt(self, peer: _Peer, theirs: Greeting, stream: channel.Stream, *, dialled: bool) -> Link:
        link = Link(
            peer.member.name, dialled=dialled, process=theirs.process, read=stream.read, write=stream.write,
            deliver=self._take, on_move=lambda: self._move(peer), terms=self._terms, meter=peer.meter,
        )  # fmt: skip
        previous, peer.link = peer.link, link
        if previous is not None and previous.process == theirs.process:
            previous.retire()
        elif previous is not None:
            peer.past.add(previous.process)
            previous.end("it was restarted")
        if previous is None or not previous.open:
            self._event("connected", peer, dialled=dialled)
        peer.tell()
        return link

    async def _serve(self, peer: _Peer, link: Link) -> None:
        reason = "the connection was closed here"
        try:
            reason = await link.run()
        finally:
            if peer.link is link:
                peer.link, peer.reason = None, reason
                self._event("disconnected", peer, text=f'"{peer.member.name}" was lost: {reason}')
            peer.tell()

    async def _take(self, sender: str, spool: Spool) -> Receipt:
        """One whole parcel, one at a time: so a node holds one of them in memory, however many peers send."""
        work = asyncio.ensure_future(self._take_in_turn(sender, spool))
        self._deliveries.add(work)
        work.add_done_callback(self._deliveries.discard)
        return await asyncio.shield(work)

    async def _take_in_turn(self, sender: str, spool: Spool) -> Receipt:
        async with self._one_delivery:
            try:
                with contextlib.closing(spool):
                    return await self._deliver(sender, spool.read())
            except Exception as error:  # whatever it is, the sender still has the parcel
                self._say(f'a parcel from "{sender}" could not be taken now: {type(error).__name__}: {error}')
                return Receipt(Outcome.DEFERRED, "it could not be taken now")

    def _move(self, peer: _Peer) -> None:
        peer.redial = True
        peer.tell()

    def _certificate_changed(self) -> None:
        for peer in self._peers.values():
            if peer.link is not None and peer.link.open:
                if peer.link.dialled:
                    self._move(peer)
                else:
                    peer.link.ask_to_move()

    def _members(self) -> list[Member]:
        return [peer.member for peer in self._peers.values()]

    def _peer(self, name: str) -> _Peer:
        if name not in self._peers:
            raise PeerMissing(f'"{name}" is not in the roster of "{self.name}"')
        return self._peers[name]

    def _not_reached(self, peer: _Peer, reason: str) -> None:
        if peer.reason != reason and not peer.connected:
            peer.reason = reason
            self._event("unreachable", peer, text=f'"{peer.member.name}" cannot be reached: {reason}')
            peer.tell()

    def _event(self, kind: str, peer: _Peer, **data: Any) -> None:
        self._notice(Event(kind, self.name, data={"peer": peer.member.name, **data}))

    def _say(self, text: str) -> None:
        self._notice(Event("notice", self.name, data={"text": printable(text)}))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
