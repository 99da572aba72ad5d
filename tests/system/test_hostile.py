"""A member that attacks: whatever it sends, over a real connection or as a stream of its own, changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.custody import Custody, public
from confrere.core.errors import BadParcel, PeerError, PeerRefused, StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.node.conduct import Conduct
from confrere.node.delivery import ParcelReceiver
from confrere.node.inspection import ParcelRules
from confrere.node.store import Store
from confrere.transport import wire
from confrere.transport.grpc import channel, frames, greeting, handshake
from confrere.transport.grpc.identity import new_identity
from confrere.transport.grpc.link import Link, Meter, OtherEnd
from confrere.transport.grpc.member import parse_member
from confrere.transport.grpc.peer_connection import VISITS_BURST
from confrere.transport.link_limits import LinkLimits
from confrere.transport.receipt import ACCEPTED, DUPLICATE, Outcome, Receipt
from confrere.transport.spool import Spool
from tests.system.sites import RUN, Site, at, pair, two
from tests.system.test_grpc import run
from tests.unit.node.sites import arrived

WEIGHTS = {"bias": torch.zeros(3), "weight": torch.ones(3, 4)}
MODEL = Model(Params(WEIGHTS), "tiny", Custody.PROTECTED)
GOOD = Parcel(RUN, 0, 2, 0, "a", "b", 7, MODEL, {"mass": public(0.5)})
LIMITS = wire.Limits(total=100 * 2**20)


def spelled(parcel: Parcel, site: Site) -> bytes:
    return wire.encode(wire.sign(parcel, site.identity.key))


def with_weights(**changes: torch.Tensor) -> Parcel:
    return replace(GOOD, model=replace(MODEL, params=Params({**WEIGHTS, **changes})))


def rewritten(site: Site, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A good parcel whose header was rewritten by its own sender."""
    data = spelled(GOOD, site)
    (length,) = struct.unpack(">I", data[4:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = wire._canonical(header)
    return wire.MAGIC + struct.pack(">I", len(text)) + text + data[8 + length :]


def many_empty_tensors(site: Site) -> bytes:
    data = spelled(GOOD, site)
    (length,) = struct.unpack(">I", data[4:8])
    return data[: 8 + length] + wire._layout([(f"t{i:06}", "F32", [0]) for i in range(100_000)])[0]


ATTACKS: dict[str, Callable[[Site], bytes]] = {
    "NaN": lambda s: spelled(with_weights(bias=torch.full((3,), float("nan"))), s),
    "1e30": lambda s: spelled(with_weights(bias=torch.full((3,), 1e30)), s),
    "another shape": lambda s: spelled(with_weights(bias=torch.zeros(4)), s),
    "another type": lambda s: spelled(with_weights(bias=torch.zeros(3, dtype=torch.float64)), s),
    "one tensor more": lambda s: spelled(with_weights(extra=torch.zeros(3)), s),
    "negative mass": lambda s: rewritten(s, lambda h: h["scalars"]["mass"].update(value=-1.0)),
    "a header of 90 MB": lambda s: wire.MAGIC + struct.pack(">I", 90 * 2**20) + b" " * (90 * 2**20),
    "100,000 empty tensors": many_empty_tensors,
    "truncated": lambda s: spelled(GOOD, s)[:-5],
    "nothing": lambda s: b"",
    "noise": lambda s: bytes(range(256)) * 40,
    "without a signature": lambda s: wire.encode(GOOD),
    "in the name of another": lambda s: spelled(replace(GOOD, sender="c"), s),
    "for somebody else": lambda s: spelled(replace(GOOD, receiver="c"), s),
    "of another run": lambda s: spelled(replace(GOOD, run="another"), s),
    "signed by a stranger": lambda s: spelled(GOOD, Site(new_identity("a"))),
    "a flipped bit": lambda s: bytes([*spelled(GOOD, s)[:-1], spelled(GOOD, s)[-1] ^ 1]),
    "a model without a guarantee": lambda s: spelled(replace(GOOD, model=MODEL.held(Custody.UNPROVEN)), s),
}


def test_hostile_parcels_change_nothing_and_are_logged_with_their_sender(tmp_path: Path) -> None:
    async def story() -> None:
        a, b = two()
        store = Store(tmp_path / "store.sqlite", run=RUN, site="b")
        rules = ParcelRules(
            "b", RUN, 10, {"a": a.identity.member.key}, {"tiny": MODEL.params.shapes}, limits=LIMITS
        )
        reception = ParcelReceiver(rules, store, Conduct("b", ["a"], b.events.append))
        b.deliver = reception.deliver  # type: ignore[method-assign]
        async with pair(a, b, largest=LIMITS.total):
            await a.connections.wait_connected("b", 5)
            for number, (what, attack) in enumerate(ATTACKS.items()):
                receipt = await a.connections.send("b", str(number), attack(a))
                assert receipt.outcome is Outcome.REFUSED, what
                assert receipt.reason, what
            assert arrived(store) == []
            told = [e.data for e in b.events if "refused and changed nothing" in str(e.data.get("text"))]
            assert [d["sender"] for d in told] == ["a"] * len(ATTACKS)
            assert await a.connections.send("b", "good", spelled(GOOD, a)) == ACCEPTED
            assert await a.connections.send("b", "good", spelled(GOOD, a)) == DUPLICATE, "a replay"
            assert len(arrived(store)) == 1
            assert not a.heard("disconnected")
        store.close()

    run(story(), 60)


def test_a_peer_that_connects_again_and_again_is_let_in_at_a_bounded_rate() -> None:
    async def story() -> None:
        a, b = two()
        async with b.connect({"a": a.identity.member}, listen="127.0.0.1:0"):
            here = at(b.identity.member, b.connections.port)

            async def visit() -> bool:
                opened = channel.open_channel(a.identity, here)
                try:
                    stream = channel.Stream(channel.open_stream(opened), here)
                    process = replace(a.greet("b"), process=str(len(b.events)))
                    await handshake.introduce(stream, process, lambda own, theirs: None)
                except PeerRefused:
                    return False
                finally:
                    await opened.close(None)
                return True

            let_in = [await visit() for _ in range(VISITS_BURST + 20)]
            assert VISITS_BURST <= sum(let_in) < VISITS_BURST + 10
            assert len(b.events) <= 2 * sum(let_in)  # who is turned away leaves no line

    run(story(), 60)


def test_connections_without_a_certificate_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a file descriptor. A stream that is open stays, and peers are let in once the strangers are gone."""
    monkeypatch.setattr(channel, "MOST_VISITORS", 20)
    options = [o for o in channel._SERVER_OPTIONS if o[0] != "grpc.server_handshake_timeout_ms"]
    monkeypatch.setattr(channel, "_SERVER_OPTIONS", [*options, ("grpc.server_handshake_timeout_ms", 2000)])

    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            where = ("127.0.0.1", b.connections.port)
            before = len(os.listdir("/proc/self/fd"))
            strangers = [await asyncio.open_connection(*where) for _ in range(100)]
            await asyncio.sleep(1)
            assert len(os.listdir("/proc/self/fd")) - before - len(strangers) <= 20
            async with asyncio.timeout(10):
                for reader, _ in strangers:
                    with contextlib.suppress(ConnectionError):
                        assert await reader.read(1) == b""
            assert await a.connections.send("b", "1", b"x") == ACCEPTED
            for _, writer in strangers:
                writer.close()

    run(story(), 60)


def test_a_connection_of_a_peer_without_a_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [o for o in channel._SERVER_OPTIONS if o[0] != "grpc.max_connection_idle_ms"]
    assert len(options) == len(channel._SERVER_OPTIONS) - 1
    monkeypatch.setattr(channel, "_SERVER_OPTIONS", [*options, ("grpc.max_connection_idle_ms", 500)])

    async def story() -> None:
        a, b = two()
        async with b.connect({"a": a.identity.member}, listen="127.0.0.1:0"):
            opened = channel.open_channel(a.identity, at(b.identity.member, b.connections.port))
            async with asyncio.timeout(20):
                await opened.channel_ready()
                await opened.wait_for_state_change(grpc.ChannelConnectivity.READY)
            await opened.close(None)

    run(story(), 60)


# -- a peer that does not keep to the protocol -----------------------------------------------------------------------


def served(messages: list[bytes], largest: int = 1000) -> tuple[str, list[bytes], list[bytes]]:
    """Let a link read these messages; why it ended, what it delivered, what it said."""
    delivered: list[bytes] = []
    said: list[bytes] = []

    async def story() -> str:
        waiting = list(messages)

        class Told:
            async def read(self) -> bytes | None:
                await asyncio.sleep(0)
                return waiting.pop(0) if waiting else None

            async def write(self, message: bytes) -> None:
                said.append(message)

        async def deliver(sender: str, spool: Spool) -> Receipt:
            delivered.append(spool.body().read())
            spool.close()
            return ACCEPTED

        link = Link(
            OtherEnd("x", "p", False), Told(), deliver=deliver, on_move=lambda: None,
            limits=LinkLimits(largest, 5.0), meter=Meter(),
        )  # fmt: skip
        return await asyncio.wait_for(link.run(), 5)

    return asyncio.run(story()), delivered, said


def data(number: int, chunk: bytes) -> bytes:
    return frames.data(number, chunk)


@pytest.mark.parametrize(
    "messages",
    [
        [b"?"],
        [b""],
        [frames.OFFER],
        [frames.DATA],
        [frames.RECEIPT + b"\0\0\0\1?"],
        [frames.offer(1, 10, "x"), frames.offer(2, 10, "y")],
        [frames.offer(1, 3, "x"), data(1, b"four")],
        [frames.OFFER + bytes(12) + b"\xff\xfe"],
        [frames.DATA + bytes(frames.LARGEST_FRAME)],
    ],
)
def test_who_breaks_the_protocol_is_hung_up_on(messages: list[bytes]) -> None:
    reason, delivered, _ = served([*messages, frames.HEARTBEAT])
    assert reason != "it closed the connection"
    assert delivered == []


def test_chunks_that_nobody_offered_and_receipts_for_nothing_are_passed_over() -> None:
    odd = [data(9, b"abc"), frames.receipt(3, ACCEPTED), frames.numbered(frames.WITHDRAWN, 4)]
    reason, delivered, _ = served([*odd, frames.offer(1, 3, "x"), data(2, b"abc"), data(1, b"abc")])
    assert (reason, delivered) in [("it closed the connection", [b"abc"]), ("it closed the connection", [])]


def test_a_parcel_above_the_cap_is_refused_with_its_offer() -> None:
    _, delivered, said = served([frames.offer(1, 2**60, "x"), *[data(1, bytes(1000))] * 50, frames.HEARTBEAT])
    assert delivered == []
    assert frames.read_receipt(said[0])[1].outcome is Outcome.REFUSED


def test_a_peer_that_floods_with_offers_is_hung_up_on() -> None:
    reason, _, said = served([frames.offer(n, 2**60, "x") for n in range(10_000)])
    assert len(said) <= 10_000
    assert reason


MESSAGES = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda kind, rest: kind + rest, st.sampled_from(list(map(bytes, zip(b"GYNODCRWHMB")))), st.binary(max_size=30)),
    st.builds(frames.offer, st.integers(0, 3), st.integers(0, 40), st.text(max_size=5)),
    st.builds(data, st.integers(0, 3), st.binary(min_size=1, max_size=20)),
    st.builds(frames.numbered, st.sampled_from([frames.COMPLETE, frames.WITHDRAWN]), st.integers(0, 3)),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES, max_size=12))
def test_any_messages_end_in_a_reason_and_deliver_only_what_was_offered(messages: list[bytes]) -> None:
    reason, delivered, _ = served(messages, largest=30)
    assert isinstance(reason, str)
    offered = [frames.read_offer(m).size for m in messages if _is_offer(m)]
    assert all(len(blob) in offered and len(blob) <= 30 for blob in delivered)


def _is_offer(message: bytes) -> bool:
    try:
        frames.read_offer(message)
    except frames.BadFrame:
        return False
    return message[:1] == frames.OFFER


# -- fuzzers: only typed errors ----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
SITE = Site(new_identity("a"))
PARCEL_BYTES = spelled(GOOD, SITE)
FIELDS = ["run", "epoch", "round", "phase", "sender", "receiver", "sequence", "architecture", "custody", "scalars",
          "payload", "signature", "new"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3), st.integers(0, 40))
def test_a_fuzzed_header_is_refused_in_one_way_only(changes: dict[str, Any], cut: int) -> None:
    (length,) = struct.unpack(">I", PARCEL_BYTES[4:8])
    header = json.loads(PARCEL_BYTES[8 : 8 + length]) | changes
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode("utf-8", errors="surrogatepass")
    body = PARCEL_BYTES[8 + length :]
    _decodes_or_is_bad(wire.MAGIC + struct.pack(">I", len(text)) + text + body[: len(body) - cut])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(PARCEL_BYTES) - 1), st.binary(max_size=6)), min_size=1, max_size=6)
)
def test_a_fuzzed_parcel_is_refused_in_one_way_only(edits: list[tuple[int, bytes]]) -> None:
    blob = bytearray(PARCEL_BYTES)
    for start, piece in edits:
        blob[start : start + len(piece)] = piece
    _decodes_or_is_bad(bytes(blob))


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | JSON.map(lambda v: json.dumps(v)), st.integers(0, 300))
def test_a_fuzzed_tensor_table_is_refused_in_one_way_only(table: str, length: int) -> None:
    (head,) = struct.unpack(">I", PARCEL_BYTES[4:8])
    text = table.encode("utf-8", errors="surrogatepass")
    _decodes_or_is_bad(PARCEL_BYTES[: 8 + head] + struct.pack("<Q", length) + text)


def _decodes_or_is_bad(blob: bytes) -> None:
    try:
        parcel = wire.decode(blob, limits=LIMITS)
    except BadParcel:
        return
    assert wire.encode(parcel) == blob


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300) | st.dictionaries(st.sampled_from(["run", "epoch", "mark", "seen", "protocol"]), JSON)
       .map(lambda c: json.dumps(json.loads(greeting.pack(SITE.greet("b"))) | c).encode()))  # fmt: skip
def test_a_fuzzed_greeting_is_refused_in_one_way_only(blob: bytes) -> None:
    with contextlib.suppress(PeerRefused):
        greeting.unpack(blob)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["name", "address", "identity", "fingerprint", "certificate", "x"]), JSON)
)
def test_a_fuzzed_peer_file_is_refused_in_one_way_only(changes: dict[str, Any]) -> None:
    table = {**SITE.identity.member.as_table(), **changes}
    with contextlib.suppress(StudyError):
        assert parse_member(table, "peer.toml").identity == SITE.identity.member.identity


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_fuzzed_frames_are_refused_in_one_way_only(blob: bytes) -> None:
    for read in (
        frames.read_offer,
        frames.read_data,
        frames.read_receipt,
        frames.read_number,
        frames.reason_in,
    ):
        with contextlib.suppress(PeerError):
            read(blob)
