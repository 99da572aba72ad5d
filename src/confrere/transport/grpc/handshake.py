"""The handshake on a new stream: the two sites exchange greetings, then each accepts or refuses.

    dialler                        listener
    G greeting, E memory     →
                             ←     G greeting, E memory, Y or N with the reason
    Y or N                   →

Both messages are always sent, also by a side that is going to refuse: a site whose ledger was rolled back must see
the mark that proves it. Only where the protocols differ nothing follows a greeting but the refusal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from confrere.core.errors import PeerRefused
from confrere.transport.grpc import frames
from confrere.transport.grpc.channel import Stream
from confrere.transport.grpc.greeting import (
    Greeting,
    pack,
    pack_memory,
    refuse_version,
    unpack,
    unpack_memory,
)
from confrere.transport.grpc.link import Broken

Judge = Callable[[Greeting, Greeting], None]
"""Raises PeerRefused unless (own, theirs) fit and the stream is wanted."""


async def introduce(stream: Stream, own: Greeting, judge: Judge) -> Greeting:
    """The dialler's part; returns the other side's greeting."""
    await stream.write(frames.GREETING + pack(own))
    await stream.write(frames.MEMORY + pack_memory(own))
    theirs = _greeting(await stream.read())
    try:
        refuse_version(own, theirs)
        theirs = _completed(theirs, await stream.read())
        verdict = await stream.read()
        judge(own, theirs)
    except PeerRefused as refusal:
        await _refuse(stream, refusal)
        raise
    _agreed(verdict, own.receiver)
    await stream.write(frames.AGREED)
    return theirs


async def receive(stream: Stream, own: Greeting, judge: Judge) -> Greeting:
    """The listener's part; returns the other side's greeting."""
    theirs = _greeting(await stream.read())
    await stream.write(frames.GREETING + pack(own))
    try:
        refuse_version(own, theirs)
        theirs = _completed(theirs, await stream.read())
        await stream.write(frames.MEMORY + pack_memory(own))
        judge(own, theirs)
    except PeerRefused as refusal:
        await _refuse(stream, refusal)
        raise
    await stream.write(frames.AGREED)
    _agreed(await stream.read(), own.receiver)
    return theirs


async def _refuse(stream: Stream, refusal: PeerRefused) -> None:
    with contextlib.suppress(Broken):  # it may have closed the stream already
        await stream.write(frames.refusal(str(refusal)))


def _greeting(frame: bytes | None) -> Greeting:
    return unpack(_body(frame, frames.GREETING))


def _completed(greeting: Greeting, frame: bytes | None) -> Greeting:
    return unpack_memory(greeting, _body(frame, frames.MEMORY))


def _body(frame: bytes | None, kind: bytes) -> bytes:
    if frame is None:
        raise PeerRefused("it closed the connection instead of greeting")
    if frames.kind_of(frame) == frames.REFUSAL:
        raise PeerRefused(frames.reason_in(frame))
    if frames.kind_of(frame) != kind:
        raise PeerRefused("it sent something else instead of a greeting")
    return frames.body(frame)


def _agreed(frame: bytes | None, peer: str) -> None:
    if frame is None:
        raise PeerRefused("it closed the connection instead of agreeing")
    if frames.kind_of(frame) == frames.REFUSAL:
        raise RefusedByPeer(f'refused by "{peer}": {frames.reason_in(frame)}')
    if frame != frames.AGREED:
        raise PeerRefused("it sent something else instead of agreeing")


class RefusedByPeer(PeerRefused):
    """The other side refused; the text holds its reason."""
