"""The connection to one peer: whether it is up, if not why, and which stream is kept if there are two.

Where both sides can dial and both did, both keep the stream of the site whose name sorts first. A stream that is
replaced (a new certificate) finishes what is under way; that of a peer that was restarted is dropped, and a process
that another one has replaced is not let in again: two programs that use the same keys are noticed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from confrere.core.errors import PeerMissing, PeerRefused
from confrere.core.events import Event
from confrere.transport.body import Body
from confrere.transport.grpc.channel import Stream
from confrere.transport.grpc.greeting import Greeting, LedgerBehind, refuse
from confrere.transport.grpc.link import Link, Meter, OtherEnd
from confrere.transport.grpc.member import Member
from confrere.transport.link_limits import LinkLimits
from confrere.transport.receipt import Receipt
from confrere.transport.spool import Spool
from confrere.transport.token_bucket import TokenBucket

ALREADY = "already connected"
REMEMBERED = 64
"""Processes of a peer that were replaced and are not let in again."""
VISITS_BURST, VISITS_SECONDS = 30, 5.0
"""Streams that one peer may open: the burst, and the seconds for each one more."""


class AlreadyConnected(PeerRefused):
    """There is a better stream between the two."""


class PeerConnection:
    """What a site knows of another one, over all of its connections."""

    def __init__(
        self,
        me: str,
        member: Member,
        *,
        met: Callable[[str, Greeting], None],
        notice: Callable[[Event], None],
    ) -> None:
        self.me, self.member, self.name = me, member, member.name
        self.meter = Meter()
        self.link: Link | None = None
        self.reason = "it was not reached yet"
        """Why it is not connected, when it is not."""
        self.redial = False
        """Whether another stream is wanted although there is one."""
        self.changed = asyncio.Event()
        self._met, self._notice = met, notice
        self._behind: int | None = None
        """The entry that was seen of its ledger when it first showed a lower one; its next greeting must be newer."""
        self._replaced: deque[str] = deque(maxlen=REMEMBERED)
        self.visits = TokenBucket(VISITS_BURST, VISITS_SECONDS)
        """How often it may open a stream; a peer whose network is bad stays below that."""

    @property
    def connected(self) -> bool:
        return self.link is not None and self.link.open

    async def send(self, parcel_id: str, body: Body) -> Receipt:
        if self.link is None or not self.link.open:
            raise PeerMissing(f'"{self.name}" is not connected: {self.reason}')
        return await self.link.send(parcel_id, body)

    async def wait_connected(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not self.connected:
                    await self.changed.wait()
        except TimeoutError:
            raise PeerMissing(
                f'"{self.name}" is not connected after {timeout:g} seconds: {self.reason}'
            ) from None

    def judge(self, own: Greeting, theirs: Greeting, *, dialled: bool) -> None:
        """Raises PeerRefused unless both mean the same and this stream is wanted."""
        try:
            refuse(own, theirs, self.member.key)
            self._behind = None
        except LedgerBehind as error:
            raise self._outdated(error) from None
        finally:  # a site whose ledger was rolled back must learn it also from a peer that refuses it
            self._met(self.name, theirs)
        if theirs.process in self._replaced:
            raise PeerRefused(
                f'"{self.name}" runs twice: another program has connected with its keys since. '
                "Stop one of them, and find out why there are two"
            )
        if self.link is not None and self.link.open and not self._better(self.link, theirs, dialled):
            self.link.probe()
            raise AlreadyConnected(ALREADY)

    def _outdated(self, error: LedgerBehind) -> PeerRefused:
        """A greeting may be older than what another node of the same institution has sent since: it may try once more."""
        if self._behind is not None and error.shown < self._behind:
            return error
        self._behind = error.seen
        return PeerRefused(
            f'"{self.name}" showed entry {error.shown} of its ledger, and "{self.me}" has seen entry {error.seen} since;'
            " trying again with a new greeting"
        )

    def adopt(
        self,
        theirs: Greeting,
        stream: Stream,
        *,
        dialled: bool,
        deliver: Callable[[str, Spool], Awaitable[Receipt]],
        limits: LinkLimits,
    ) -> Link:
        """Use a new stream from now on."""
        link = Link(
            OtherEnd(self.name, theirs.process, dialled),
            stream,
            deliver=deliver,
            on_move=self.ask_for_another,
            limits=limits,
            meter=self.meter,
        )
        previous, was_connected, self.link = self.link, self.connected, link
        if previous is not None and previous.other.process == theirs.process:
            previous.retire()
        elif previous is not None:
            self._replaced.append(previous.other.process)
            previous.end("it was restarted")
        if not was_connected:
            self._event("connected", dialled=dialled)
        self._signal_change()
        return link

    async def serve(self, link: Link) -> None:
        """Let a stream run until it ends."""
        reason = "the connection was closed here"
        try:
            reason = await link.run()
        finally:
            if self.link is link:
                self.link, self.reason = None, reason
                self._event("disconnected", text=f'"{self.name}" was lost: {reason}')
            self._signal_change()

    def ask_for_another(self) -> None:
        self.redial = True
        self._signal_change()

    def renew(self) -> None:
        """The certificate here has changed: replace the stream, from whichever side can."""
        if self.link is not None and self.link.open:
            if self.link.other.dialled:
                self.ask_for_another()
            else:
                self.link.ask_to_move()

    def not_reached(self, reason: str) -> None:
        if self.reason != reason and not self.connected:
            self.reason = reason
            self._event("unreachable", text=f'"{self.name}" cannot be reached: {reason}')
            self._signal_change()

    def _better(self, current: Link, theirs: Greeting, dialled: bool) -> bool:
        """Whether a new stream takes the place of the current one. Both sides must come to the same answer."""
        if current.other.process != theirs.process or current.other.dialled == dialled:
            return True
        dialler = self.me if dialled else self.name
        return dialler == min(self.me, self.name)

    def _signal_change(self) -> None:
        """Wake up those that wait for a change."""
        previous, self.changed = self.changed, asyncio.Event()
        previous.set()

    def _event(self, kind: str, **data: Any) -> None:
        self._notice(Event(kind, self.me, data={"peer": self.name, **data}))
