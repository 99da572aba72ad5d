"""Bad networks: whatever happens between two sites, each parcel arrives once and as it was sent, or not at all."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from confrere.core.errors import PeerMissing
from confrere.transport.grpc import connections as connections
from confrere.transport.receipt import ACCEPTED, Receipt
from tests.system import fault_proxy
from tests.system.fault_proxy import FaultProxy, Mangle
from tests.system.sites import Site, at, two
from tests.system.test_grpc import run

BLOB = os.urandom(600_000)


@asynccontextmanager
async def through_proxy(a: Site, b: Site, **options: Any) -> AsyncIterator[FaultProxy]:
    """`a` dials `b` through a bad network."""
    async with b.connect({"a": a.identity.member}, listen="127.0.0.1:0", **options) as listening:
        assert listening.port is not None
        async with (
            FaultProxy(listening.port) as proxy,
            a.connect({"b": at(b.identity.member, proxy.port)}, **options),
        ):
            yield proxy


async def insist(site: Site, to: str, number: int, blob: bytes) -> Receipt:
    """Send the same bytes until they are credited, as an outbox does."""
    while True:
        try:
            receipt = await site.connections.send(to, str(number), blob)
            if receipt.credited:
                return receipt
        except PeerMissing:
            await asyncio.sleep(0.02)


FAULTS: dict[str, Callable[[float, int], Mangle]] = {
    "flips bits": fault_proxy.flips,
    "loses": fault_proxy.loses,
    "doubles": fault_proxy.doubles,
    "truncates": fault_proxy.truncates,
    "reorders": fault_proxy.swaps,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_wrong_is_ever_delivered(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece in fifty is damaged; the proxy stops damaging after a while, and everything arrives."""
    monkeypatch.setattr(connections, "LONGEST_PAUSE", 0.4)

    async def story() -> None:
        a, b = two()
        async with through_proxy(a, b, patience=1.0) as proxy:
            await a.connections.wait_connected("b", 5)
            proxy.mangle = FAULTS[fault](0.02, 7)
            blobs = [b"%d" % i + random.Random(i).randbytes(100_000 + 70_000 * i) for i in range(6)]
            back = [blob[::-1] for blob in blobs]
            sending = [insist(a, "b", i, blob) for i, blob in enumerate(blobs)]
            sending += [insist(b, "a", i, blob) for i, blob in enumerate(back)]
            asyncio.get_running_loop().call_later(4, lambda: setattr(proxy, "mangle", None))
            await asyncio.gather(*sending)
            assert sorted(b.took) == sorted(("a", blob) for blob in blobs)
            assert sorted(a.took) == sorted(("b", blob) for blob in back)
            assert proxy.connections > 1, "the damage was noticed"

    run(story(), 40)


def test_a_slow_network_is_waited_for() -> None:
    """300 kB/s and 20 ms: a parcel takes twice as long as the silence that ends a connection."""

    async def story() -> None:
        a, b = two()
        async with through_proxy(a, b, patience=1.0) as proxy:
            await a.connections.wait_connected("b", 5)
            proxy.rate, proxy.delay = 300_000, 0.02
            began = time.monotonic()
            assert await a.connections.send("b", "1", BLOB) == ACCEPTED
            assert time.monotonic() - began > 1.5
            assert proxy.connections == 1

    run(story(), 30)


def test_a_peer_that_vanishes_without_a_word_is_noticed_and_found_again() -> None:
    """Half-open: the connection stands, and nothing passes."""

    async def story() -> None:
        a, b = two()
        async with through_proxy(a, b, patience=1.0) as proxy:
            await a.connections.wait_connected("b", 5)
            await b.connections.wait_connected("a", 5)
            proxy.hung = True
            began = time.monotonic()
            with pytest.raises(PeerMissing, match="nothing was received from it for 1 second"):
                await a.connections.send("b", "1", BLOB * 20)
            assert time.monotonic() - began < 3
            async with asyncio.timeout(3):
                while b.connections.connected:
                    await asyncio.sleep(0.05)
            assert not b.took
            proxy.cut()
            proxy.hung = False
            await a.connections.wait_connected("b", 10)
            assert (await insist(a, "b", 1, BLOB)).credited

    run(story(), 30)


def test_an_idle_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        a, b = two()
        async with through_proxy(a, b, patience=0.4) as proxy:
            await a.connections.wait_connected("b", 5)
            await asyncio.sleep(2.0)
            assert proxy.connections == 1
            assert a.connections.connected == {"b"}
            assert not a.heard("disconnected")

    run(story())


def test_a_partition_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LONGEST_PAUSE", 0.5)

    async def story() -> None:
        a, b = two()
        async with through_proxy(a, b) as proxy:
            await a.connections.wait_connected("b", 5)
            for number in range(3):
                proxy.refuse = True
                proxy.cut()
                with pytest.raises(PeerMissing):
                    await a.connections.send("b", str(number), BLOB)
                await asyncio.sleep(0.3)
                proxy.refuse = False
                await a.connections.wait_connected("b", 5)
                assert (await insist(a, "b", number, b"%d" % number + BLOB)).credited
            assert len(b.took) == 3
            assert len(a.heard("disconnected")) == 3

    run(story())


def test_a_cut_in_the_middle_of_a_parcel_delivers_nothing_of_it() -> None:
    async def story() -> None:
        a, b = two()
        async with through_proxy(a, b) as proxy:
            await a.connections.wait_connected("b", 5)
            proxy.rate = 2_000_000
            sending = asyncio.ensure_future(a.connections.send("b", "1", BLOB * 10))
            await asyncio.sleep(0.5)
            proxy.cut()
            with pytest.raises(PeerMissing, match="was lost"):
                await sending
            assert not b.took
            proxy.rate = 0
            assert (await insist(a, "b", 1, BLOB * 10)).credited
            assert b.took == [("a", BLOB * 10)]

    run(story())


def test_attempts_become_rarer_while_a_peer_is_away() -> None:
    async def story() -> None:
        a, b = two()
        async with through_proxy(a, b) as proxy:
            proxy.refuse = True
            proxy.cut()
            before = proxy.connections
            await asyncio.sleep(2.5)
            attempts = proxy.connections - before
            assert 1 <= attempts <= 12
            assert len(a.heard("unreachable")) <= 2

    run(story())
