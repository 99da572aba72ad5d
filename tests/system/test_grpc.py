"""Sites find each other, know each other, and say plainly why not."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import IdentityError, PeerMissing, StudyError
from confrere.core.parcel import LedgerMark
from confrere.transport import ledger_marks
from confrere.transport.grpc import connections as connections
from confrere.transport.grpc import identity as identities
from confrere.transport.grpc.greeting import Greeting
from confrere.transport.grpc.identity import Identity, new_identity
from confrere.transport.receipt import ACCEPTED, Outcome, Receipt
from tests.system.sites import Site, at, pair, two
from tests.system.sites import identities as fresh

DAY = dt.timedelta(days=1)
BLOB = os.urandom(700_000)


def run(work: Coroutine[Any, Any, None], seconds: float = 20) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


async def never_connects(a: Site, b: Site, **options: Any) -> str:
    """The reason at the dialling site."""
    async with pair(a, b, **options):
        with pytest.raises(PeerMissing):
            await a.connections.wait_connected("b", 1.0)
        assert not b.connections.connected
        with pytest.raises(PeerMissing, match="not connected"):
            await a.connections.send("b", "1", BLOB)
        assert not b.took
        return a.connections.reasons["b"]


# -- connected --------------------------------------------------------------------------------------------------


def test_a_site_that_only_dials_out_is_served_over_the_stream_it_opened() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            await b.connections.wait_connected("a", 5)
            assert await a.connections.send("b", "a/b/0", BLOB) == ACCEPTED
            assert await b.connections.send("a", "b/a/0", BLOB[::-1]) == ACCEPTED
            assert b.took == [("a", BLOB)]
            assert a.took == [("b", BLOB[::-1])]
            assert a.connections.bytes_sent["b"] > len(BLOB)
            assert b.connections.bytes_received["a"] == a.connections.bytes_sent["b"]
            assert abs(time.time() - a.connections.last_contact["b"]) < 5
            assert (a.connections.port, a.connections.connected) == (None, frozenset({"b"}))

    run(story())


def test_parcels_of_every_size_arrive_whole_and_both_ways_at_once() -> None:
    sizes = [0, 1, 262_143, 262_144, 262_145, 3_000_000]
    blobs = [os.urandom(size) for size in sizes]

    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            await b.connections.wait_connected("a", 5)
            await asyncio.gather(
                *(a.connections.send("b", str(i), blob) for i, blob in enumerate(blobs)),
                *(b.connections.send("a", str(i), blob) for i, blob in enumerate(blobs)),
            )
            assert sorted(b.took) == sorted(("a", blob) for blob in blobs)
            assert sorted(a.took) == sorted(("b", blob) for blob in blobs)

    run(story())


def test_what_the_receiver_decides_comes_back() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            for answer in (Receipt(Outcome.REFUSED, "negative mass"), Receipt(Outcome.DUPLICATE), ACCEPTED):
                b.answer = lambda sender, blob, answer=answer: answer
                assert await a.connections.send("b", "1", BLOB) == answer

    run(story())


def test_a_receiver_that_fails_puts_the_parcel_off_and_goes_on() -> None:
    async def story() -> None:
        a, b = two()

        def full(sender: str, blob: bytes) -> Receipt:
            raise OSError(28, "No space left on device")

        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            b.answer = full
            assert (await a.connections.send("b", "1", BLOB)).outcome is Outcome.DEFERRED
            assert "No space left" in b.heard("notice")[0]
            b.answer = None
            assert await a.connections.send("b", "1", BLOB) == ACCEPTED

    run(story())


def test_a_parcel_that_is_too_large_is_refused_before_it_is_read() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b, largest=1_000_000):
            await a.connections.wait_connected("b", 5)
            receipt = await a.connections.send("b", "1", bytes(30_000_000))
            assert receipt.outcome is Outcome.REFUSED
            assert "at most 1,000,000" in receipt.reason
            assert b.connections.bytes_received["a"] < 30_000_000
            assert await a.connections.send("b", "2", BLOB) == ACCEPTED
            assert b.took == [("a", BLOB)]

    run(story())


def test_who_is_given_up_while_sending_leaves_the_stream_usable() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(a.connections.send("b", "1", bytes(50_000_000)), 0.05)
            assert await a.connections.send("b", "2", BLOB) == ACCEPTED
            assert b.took == [("a", BLOB)]
            assert len(a.heard("connected")) == 1

    run(story())


def test_two_sites_that_both_dial_end_with_one_stream() -> None:
    async def story() -> None:
        found = fresh("a", "b")
        ports = [_free_port(), _free_port()]
        one, other = Site(found["a"]), Site(found["b"])
        members = {name: at(i.member, port) for (name, i), port in zip(found.items(), ports, strict=True)}
        for site, port in ((one, ports[0]), (other, ports[1])):
            site.identity = dataclasses.replace(site.identity, member=members[site.name])
            site.connect(members, listen=f"127.0.0.1:{port}")
        async with one.connections, other.connections:
            await one.connections.wait_connected("b", 5)
            await other.connections.wait_connected("a", 5)
            await asyncio.gather(
                *(one.connections.send("b", str(i), BLOB) for i in range(20)),
                *(other.connections.send("a", str(i), BLOB) for i in range(20)),
            )
            assert one.heard("disconnected") == other.heard("disconnected") == []

    run(story())


@pytest.mark.parametrize("head_start", [0.0, 0.3])
def test_dialling_each_other_at_the_same_moment_settles(
    monkeypatch: pytest.MonkeyPatch, head_start: float
) -> None:
    monkeypatch.setattr(connections, "HEAD_START", head_start)

    async def story() -> None:
        found = fresh("a", "b", "c", "d")
        ports = {name: _free_port() for name in found}
        members = {name: at(i.member, ports[name]) for name, i in found.items()}
        sites = [Site(dataclasses.replace(i, member=members[n])) for n, i in found.items()]
        for site in sites:
            site.connect(members, listen=f"127.0.0.1:{ports[site.name]}")
        await asyncio.gather(*(site.connections.start() for site in sites))
        try:
            for site in sites:
                for peer in set(found) - {site.name}:
                    await site.connections.wait_connected(peer, 5)
            await asyncio.sleep(1.0)
            links = {(s.name, p): s.connections._peers[p].link for s in sites for p in found if p != s.name}
            for (me, peer), link in links.items():
                assert link is not None
                assert link.open
                assert link.other.dialled != links[peer, me].other.dialled, "both ends use the same stream"
        finally:
            await asyncio.gather(*(site.connections.stop() for site in sites))

    run(story())


# -- certificates -----------------------------------------------------------------------------------------------


def test_there_is_no_connection_without_a_certificate() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            assert await asyncio.to_thread(_dial_by_hand, b.connections.port, None) == "closed"
            assert await asyncio.to_thread(_dial_by_hand, b.connections.port, a.identity) == "TLSv1.3"

    run(story())


def test_tls_before_version_1_3_is_refused() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            done = await asyncio.to_thread(
                _dial_by_hand, b.connections.port, a.identity, ssl.TLSVersion.TLSv1_2
            )
            assert done == "closed"

    run(story())


def test_there_is_no_plaintext() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            reader, writer = await asyncio.open_connection("127.0.0.1", b.connections.port)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100))
            assert b"HTTP" not in await asyncio.wait_for(reader.read(), 5)
            writer.close()
        source = Path(connections.__file__).parent
        text = "".join(p.read_text("utf-8") for p in source.glob("*.py"))
        assert "insecure" not in text

    run(story())


def test_an_expired_certificate_does_not_start() -> None:
    async def story() -> None:
        old = new_identity("a", now=dt.datetime.now(dt.UTC) - 10 * DAY, valid=5 * DAY)
        site = Site(old)
        site.connect({}, listen="127.0.0.1:0")
        with pytest.raises(IdentityError, match=r"expired on .* renew it with"):
            await site.connections.start()
        assert site.connections.port is None

    run(story())


def _without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that does not look at its own certificate: TLS at the other site must."""
    monkeypatch.setattr(Identity, "check", lambda self, now=None: None)


def test_a_peer_with_an_expired_certificate_is_not_dialled_into(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_checks(monkeypatch)
    a = Site(new_identity("a"))
    b = Site(new_identity("b", now=dt.datetime.now(dt.UTC) - 10 * DAY, valid=5 * DAY))
    reasons: list[str] = []

    async def story() -> None:
        reasons.append(await never_connects(a, b))

    run(story())
    assert "its certificate has expired" in reasons[0]


def test_a_visitor_with_an_expired_certificate_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_checks(monkeypatch)
    a = Site(new_identity("a", now=dt.datetime.now(dt.UTC) - 10 * DAY, valid=5 * DAY))
    run(_expect(never_connects(a, Site(new_identity("b"))), "closed the connection"))


def test_a_peer_whose_clock_is_ahead_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate was made two days ahead of the clock here."""
    _without_checks(monkeypatch)
    b = Site(new_identity("b", now=dt.datetime.now(dt.UTC) + 2 * DAY))
    run(_expect(never_connects(Site(new_identity("a")), b), "its clock or the one here is wrong"))


def test_a_visitor_of_another_identity_is_not_let_in() -> None:
    """It has the right name, and a certificate of a key that is not in the roster."""

    async def story() -> None:
        known, stranger, b = new_identity("a"), Site(new_identity("a")), Site(new_identity("b"))
        listening = b.connect({"a": known.member}, listen="127.0.0.1:0")
        async with listening, stranger.connect({"b": at(b.identity.member, listening.port)}) as dialling:
            with pytest.raises(PeerMissing, match="may not have this site in its roster"):
                await dialling.wait_connected("b", 1)
            assert not listening.connected

    run(story())


def test_a_member_that_answers_in_the_place_of_another_is_not_believed() -> None:
    """c is in everybody's roster, and listens at the address of b."""

    async def story() -> None:
        a, b, c = (Site(i) for i in fresh("a", "b", "c").values())
        listening = c.connect({"a": a.identity.member, "b": b.identity.member}, listen="127.0.0.1:0")
        members = {"b": at(b.identity.member, listening.port), "c": c.identity.member}
        async with listening:
            members["b"] = at(b.identity.member, listening.port)
            async with a.connect(members) as dialling:
                with pytest.raises(PeerMissing, match='is not "b" of the roster'):
                    await dialling.wait_connected("b", 1)

    run(story())


def test_a_member_cannot_introduce_itself_as_another() -> None:
    a, b = two()
    a.greeting = {"study": "s" * 16}
    greet = a.greet
    a.greet = lambda peer: dataclasses.replace(greet(peer), sender="c")  # type: ignore[method-assign]
    run(_expect(never_connects(a, b), "introduced itself"))
    assert 'introduced itself to "b" as "c"' in b.heard("unreachable")[0]


def test_certificates_are_renewed_under_traffic_without_losing_anything(tmp_path: Path) -> None:
    async def story() -> None:
        for name in ("a", "b"):
            identities.enroll(name, None, tmp_path / name, declared=100)
        a, b = (Site(identities.load_identity(tmp_path / name)) for name in ("a", "b"))
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            await b.connections.wait_connected("a", 5)
            stop, lost = asyncio.Event(), []

            async def traffic(site: Site, to: str, letter: bytes) -> int:
                number = 0
                while not stop.is_set():
                    try:
                        receipt = await site.connections.send(
                            to, str(number), letter + b"%d" % number + BLOB[:300_000]
                        )
                        assert receipt == ACCEPTED
                        number += 1
                    except PeerMissing as error:
                        lost.append(str(error))
                        await site.connections.wait_connected(to, 5)
                return number

            flows = asyncio.gather(traffic(a, "b", b"a"), traffic(b, "a", b"b"))
            for turn in range(3):
                before = b.connections._peers["a"].link
                renewed = identities.renew(tmp_path / ("a" if turn % 2 else "b"))
                (a if turn % 2 else b).connections.renew(renewed)
                while b.connections._peers["a"].link is before or not b.connections.connected:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
            stop.set()
            counts = tuple(await flows)
            assert (len(b.took), len(a.took)) == counts
            assert min(counts) > 3
            assert not lost, "a stream is replaced before the old one is closed"
            assert a.heard("disconnected") == b.heard("disconnected") == []

    run(story())


def test_certificates_are_renewed_while_many_sites_connect() -> None:
    """gRPC aborts the process if a certificate is exchanged in the middle of another handshake."""

    async def story() -> None:
        found = fresh("hub", *(f"site{i}" for i in range(30)))
        hub = Site(found.pop("hub"))
        async with hub.connect({n: i.member for n, i in found.items()}, listen="127.0.0.1:0") as listening:
            members = {"hub": at(hub.identity.member, listening.port)}
            others = [Site(identity).connect(members) for identity in found.values()]
            renewing = asyncio.ensure_future(_renew_often(hub))
            await asyncio.gather(*(other.start() for other in others))
            for other in others:
                await other.wait_connected("hub", 15)
            renewing.cancel()
            for name in found:
                await listening.wait_connected(name, 15)
            assert all(other.connected == {"hub"} for other in others)
            await asyncio.gather(*(other.stop() for other in others))

    run(story(), 30)


async def _renew_often(site: Site) -> None:
    identity = site.identity
    while True:
        site.connections.renew(
            identities._endorse(identity.member, identity.key, None, dt.datetime.now(dt.UTC), DAY)
        )
        await asyncio.sleep(0.1)


def test_a_connection_ends_when_a_certificate_of_it_expires() -> None:
    async def story() -> None:
        a = Site(new_identity("a", valid=dt.timedelta(seconds=2)))
        b = Site(new_identity("b"))
        async with pair(a, b):
            await b.connections.wait_connected("a", 5)
            async with asyncio.timeout(6):
                while not any("expired" in reason for reason in b.heard("disconnected")):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            assert "renew it with" in a.connections.reasons["b"]

    run(story())


# -- the greeting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"study": "other"}, "another study"),
        ({"roster": "other"}, "another roster"),
        ({"run": "other"}, "another run"),
        ({"epoch": 1}, "another epoch"),
        ({"protocol": 1}, "update the older"),
    ],
)
def test_sites_that_mean_different_things_do_not_connect(change: dict[str, Any], reason: str) -> None:
    a, b = two()
    b.greeting = change
    run(_expect(never_connects(a, b), reason))
    assert any(reason in text for text in b.heard("unreachable"))
    assert len(a.heard("unreachable")) == 1, "said once, not at every attempt"


def mark(site: Site, counter: int) -> LedgerMark:
    return ledger_marks.sign(LedgerMark("1e" * 32, counter, f"{counter:064}"), site.identity.key)


def test_a_ledger_that_was_rolled_back_is_noticed_by_peers_and_proved_to_its_owner() -> None:
    a, b = two()
    a.greeting = {"mark": mark(a, 5)}
    b.marks["a"] = (mark(a, 9),)
    run(_expect(never_connects(a, b), "that ledger was rolled back"))
    peer, greeting = a.met[0]
    assert (peer, greeting.seen) == ("b", (mark(a, 9),))
    assert ledger_marks.genuine(greeting.seen[0], a.identity.member.key), "a peer cannot make this up"


def test_a_greeting_that_was_overtaken_by_another_node_of_its_site_is_no_rollback() -> None:
    """The first greeting is older than the mark that arrived meanwhile; the next one is not."""

    async def story() -> None:
        a, b = two()
        a.greeting, b.marks["a"] = {"mark": mark(a, 31)}, (mark(a, 32),)
        meet = a.meet

        def newer(peer: str, greeting: Greeting) -> None:
            a.greeting = {"mark": mark(a, 32)}
            meet(peer, greeting)

        a.meet = newer  # type: ignore[method-assign]
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
        said = [*a.heard("unreachable"), *b.heard("unreachable")]
        assert any("trying again" in text for text in said)
        assert not any("rolled back" in text for text in said)

    run(story())


def test_a_mark_is_believed_only_with_the_signature_of_its_site() -> None:
    a, b = two()
    a.greeting = {"mark": dataclasses.replace(mark(a, 5), counter=7)}
    run(_expect(never_connects(a, b), "without its own valid signature"))


def test_ledgers_that_grew_are_welcome_and_seen() -> None:
    async def story() -> None:
        a, b = two()
        a.greeting, b.marks["a"] = {"mark": mark(a, 9)}, (mark(a, 9),)
        async with pair(a, b):
            await b.connections.wait_connected("a", 5)
            assert b.met[0][1].mark == mark(a, 9)

    run(story())


def test_receipts_return_the_marks_that_the_receiver_keeps() -> None:
    async def story() -> None:
        a, b = two()
        b.answer = lambda sender, blob: Receipt(Outcome.REFUSED, "no", (mark(a, 9),))
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            assert await a.connections.send("b", "1", BLOB) == Receipt(Outcome.REFUSED, "no", (mark(a, 9),))

    run(story())


# -- peers that are slow, hung, restarted or gone ------------------------------------------------------------------


def test_a_peer_that_restarts_is_found_again() -> None:
    async def story() -> None:
        a, b = two()
        port = _free_port()
        await b.connect({"a": a.identity.member}, listen=f"127.0.0.1:{port}").start()
        async with a.connect({"b": at(b.identity.member, port)}) as dialling:
            await dialling.wait_connected("b", 5)
            await b.connections.stop()
            with pytest.raises(PeerMissing):
                await dialling.send("b", "1", BLOB)
            while "nothing listens" not in dialling.reasons["b"]:
                await asyncio.sleep(0.05)
            async with b.connect({"a": a.identity.member}, listen=f"127.0.0.1:{port}"):
                await dialling.wait_connected("b", 10)
                assert await dialling.send("b", "1", BLOB) == ACCEPTED

    run(story())


def test_two_programs_with_the_same_keys_are_noticed() -> None:
    """A copy of a machine that is started beside it, or a key that was stolen."""

    async def story() -> None:
        a, b = two()
        twin = Site(a.identity)
        async with pair(a, b):
            await b.connections.wait_connected("a", 5)
            async with twin.connect({"b": at(b.identity.member, b.connections.port)}):
                await twin.connections.wait_connected("b", 5)
                async with asyncio.timeout(5):
                    while not any("runs twice" in text for text in a.heard("unreachable")):
                        await asyncio.sleep(0.05)
                assert twin.connections.connected == {"b"}

    run(story())


def test_a_slow_decision_is_waited_for_and_a_hung_one_is_not() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b, patience=1.0):
            await a.connections.wait_connected("b", 5)
            b.pause = 0.7
            assert await a.connections.send("b", "1", BLOB) == ACCEPTED
            b.pause = 2.5
            with pytest.raises(PeerMissing, match="did not say within 1 seconds"):
                await a.connections.send("b", "2", BLOB)

    run(story())


def test_one_hung_peer_holds_up_nobody_else() -> None:
    async def story() -> None:
        a, b, c = (Site(i) for i in fresh("a", "b", "c").values())
        everyone = {s.name: s.identity.member for s in (a, b, c)}
        async with (
            b.connect(everyone, listen="127.0.0.1:0") as to_b,
            c.connect(everyone, listen="127.0.0.1:0") as to_c,
            a.connect(
                everyone | {"b": at(everyone["b"], to_b.port), "c": at(everyone["c"], to_c.port)}
            ) as dialling,
        ):
            for name in ("b", "c"):
                await dialling.wait_connected(name, 5)
            b.pause = 3.0
            slow = asyncio.ensure_future(dialling.send("b", "1", BLOB))
            began = time.monotonic()
            assert await dialling.send("c", "1", BLOB) == ACCEPTED
            assert time.monotonic() - began < 1.5
            assert not slow.done()
            slow.cancel()

    run(story())


def test_an_unknown_site_cannot_be_sent_to() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            with pytest.raises(PeerMissing, match='"z" is not in the roster'):
                await a.connections.send("z", "1", BLOB)

    run(story())


def test_two_nodes_cannot_listen_at_the_same_place() -> None:
    async def story() -> None:
        a, b = two()
        async with a.connect({}, listen="127.0.0.1:0") as first:
            with pytest.raises(StudyError, match="another program does already"):
                await b.connect({}, listen=f"127.0.0.1:{first.port}").start()

    run(story())


def test_a_stopped_site_finishes_the_delivery_that_it_began() -> None:
    async def story() -> None:
        a, b = two()
        async with pair(a, b):
            await a.connections.wait_connected("b", 5)
            b.pause = 0.3
            sending = asyncio.ensure_future(a.connections.send("b", "1", BLOB))
            await asyncio.sleep(0.15)
            await b.connections.stop()
            assert b.took == [("a", BLOB)]
            with pytest.raises(PeerMissing):
                await sending

    run(story())


async def _expect(work: Coroutine[Any, Any, str], reason: str) -> None:
    assert reason in await work


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _dial_by_hand(port: int, identity: Identity | None, version: ssl.TLSVersion | None = None) -> str:
    """What another program gets that speaks TLS and does not look at certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if identity is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(identity.tls_key + identity.chain)
            file.flush()
            context.load_cert_chain(file.name)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as plain,
            context.wrap_socket(plain, server_hostname="x") as secure,
        ):
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return str(secure.version()) if secure.recv(1) else "closed"
    except OSError:
        return "closed"
