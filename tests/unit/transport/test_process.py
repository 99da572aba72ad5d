"""Sites as processes of one machine: parcels arrive once, whoever is missing, killed or hostile."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, public
from confrere.core.errors import CustodyError, PeerError, StudyError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.transport import wire
from confrere.transport.process import ProcessTransport, address, meeting_place

MODEL = Model(Params({"w": torch.arange(4.0)}), "t", Custody.PROTECTED)


@pytest.fixture
def folder() -> Iterator[Path]:
    with meeting_place() as place:
        yield place


def parcel(sender: str, receiver: str, sequence: int = 0, numbers: int = 4) -> Parcel:
    model = replace(MODEL, params=Params({"w": torch.arange(float(numbers)) + sequence}))
    return Parcel("run", 0, sequence, 0, sender, receiver, sequence, model, {"mass": public(0.5)})


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


@asynccontextmanager
async def sites(folder: Path, *names: str, **options: Any) -> AsyncIterator[list[ProcessTransport]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ProcessTransport(n, folder, **options)) for n in names]


async def raw(folder: Path, site: str, data: bytes) -> bytes:
    """What a site answers to a stranger that sends these bytes and then no more."""
    reader, writer = await asyncio.open_unix_connection(address(folder, site))
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def frame(kind: bytes, data: bytes) -> bytes:
    return kind + len(data).to_bytes(4, "big") + data


def test_parcels_arrive_whole_and_in_order(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a", "b", "c") as (a, b, c):
            for i in range(5):
                sent = parcel("a", "b", i)
                assert await a.send("b", sent) == wire.size(sent)
                await b.send("c", parcel("b", "c", i))
            for i in range(5):
                got = await b.receive()
                assert (got.sender, got.sequence, got.scalar("mass")) == ("a", i, 0.5)
                assert got.model is not None
                assert got.model.params["w"].tolist() == [i, i + 1, i + 2, i + 3]
                assert (await c.receive()).sequence == i
            assert await a.drain(5)
            assert a.waiting() == {}

    run(work())


def test_a_large_parcel_arrives(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a", "b") as (a, b):
            sent = parcel("a", "b", numbers=2_500_000)
            assert await a.send("b", sent) > 10_000_000
            got = await b.receive()
            assert got.model is not None
            assert sent.model is not None
            assert got.model.params.equals(sent.model.params)

    run(work())


def test_a_parcel_waits_for_a_peer_that_is_not_there_yet_and_holds_up_nobody_else(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a", "b") as (a, b):
            await a.send("late", parcel("a", "late"))
            await a.send("b", parcel("a", "b"))
            assert (await b.receive()).sender == "a"
            assert not await a.drain(0.1)
            assert a.waiting() == {"late": 1}
            async with sites(folder, "late") as (late,):
                assert (await late.receive()).sender == "a"
                assert await a.drain(5)

    run(work())


def test_a_site_that_comes_back_gets_what_was_sent_in_between(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a") as (a,):
            async with sites(folder, "b") as (b,):
                await a.send("b", parcel("a", "b", 0))
                await b.receive()
            await a.send("b", parcel("a", "b", 1))
            async with sites(folder, "b") as (b,):
                assert (await b.receive()).sequence == 1

    run(work())


def test_a_parcel_that_arrives_twice_counts_once(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a", "b") as (a, b):
            data = frame(b"P", wire.encode(parcel("a", "b", 0)))
            assert await raw(folder, "b", data + data) == b"++"
            await a.send("b", parcel("a", "b", 0))
            await a.send("b", parcel("a", "b", 1))
            assert [(await b.receive()).sequence for _ in range(2)] == [0, 1]
            assert await a.drain(5)
            assert b._arrived.empty()

    run(work())


GOOD = wire.encode(parcel("a", "b"))
HOSTILE = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", b""),
    "an unknown kind": (frame(b"X", GOOD), b""),
    "an endless frame": (b"P" + b"\xff" * 4, b""),
    "an endless control message": (b"C" + (10**6).to_bytes(4, "big"), b""),
    "half a head": (b"P\0", b""),
    "half a frame": (frame(b"P", GOOD)[:-5], b""),
    "no parcel": (frame(b"P", b"\x80\x04K\x01."), b"-"),
    "an empty parcel": (frame(b"P", b""), b"-"),
    "a damaged parcel": (frame(b"P", GOOD[:-1] + b"\xff"), b"-"),
    "a parcel for somebody else": (frame(b"P", wire.encode(parcel("a", "c"))), b"-"),
    "a parcel of another run": (frame(b"P", wire.encode(replace(parcel("a", "b"), run="x"))), b"-"),
    "a parcel with other tensors": (frame(b"P", wire.encode(parcel("a", "b", numbers=5))), b"-"),
    "control that is not JSON": (frame(b"C", b"{"), b"-"),
    "control that is a nest": (frame(b"C", b"[" * 60_000), b"-"),
    "control that is a list": (frame(b"C", b"[]"), b"-"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_or_broken_frame_is_dropped_with_a_notice_and_the_next_parcel_arrives(
    what: str, folder: Path
) -> None:
    data, answer = HOSTILE[what]
    heard: list[Event] = []

    async def work() -> None:
        options = {"on_event": heard.append, "run": "run", "expect": MODEL.params.shapes}
        async with sites(folder, "b", **options) as (b,), sites(folder, "a") as (a,):
            assert await raw(folder, "b", data) == answer
            assert [e.kind for e in heard] == ([] if what.startswith("half") else ["notice"])
            await a.send("b", parcel("a", "b", 3))
            assert (await b.receive()).sequence == 3
            assert b._arrived.empty()

    run(work())


def test_a_refused_parcel_is_not_sent_again_and_its_sender_is_told(folder: Path) -> None:
    heard: list[Event] = []

    async def work() -> None:
        async with sites(folder, "a", on_event=heard.append) as (a,), sites(folder, "b", run="other") as (_,):
            await a.send("b", parcel("a", "b"))
            assert await a.drain(5)

    run(work())
    assert ['"b" refused' in e.data["text"] for e in heard] == [True]


def test_a_private_model_does_not_get_this_far(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a") as (a,):
            with pytest.raises(CustodyError):
                await a.send("b", replace(parcel("a", "b"), model=MODEL.held(Custody.PRIVATE)))
            assert a.waiting() == {}

    run(work())


def test_a_supervisor_tells_all_sites_who_is_gone(folder: Path) -> None:
    heard: list[tuple[str, object]] = []

    def hear(name: str, message: object) -> None:
        heard.append((name, message))

    async def work() -> None:
        async with AsyncExitStack() as stack:
            for name in ("a", "b"):
                listener = ProcessTransport(name, folder, on_control=partial(hear, name))
                await stack.enter_async_context(listener)
            (supervisor,) = await stack.enter_async_context(sites(folder, "supervisor"))
            for name in ("a", "b"):
                await supervisor.tell(name, {"kind": "gone", "site": "c"})
            assert await supervisor.drain(5)

    run(work())
    assert sorted(heard, key=str) == [(n, {"kind": "gone", "site": "c"}) for n in ("a", "b")]


def test_a_listener_that_fails_does_not_stop_the_post(folder: Path) -> None:
    heard: list[Event] = []

    def fails(message: object) -> None:
        raise KeyError("site")

    async def work() -> None:
        async with sites(folder, "a", "b", on_event=heard.append, on_control=fails) as (a, b):
            await a.tell("b", {})
            await a.send("b", parcel("a", "b"))
            await b.receive()

    run(work())
    assert "KeyError" in heard[0].data["text"]


def test_a_peer_that_is_gone_for_good_is_forgotten(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a") as (a,):
            await a.send("gone", parcel("a", "gone", 0))
            await a.send("gone", parcel("a", "gone", 1))
            draining = asyncio.create_task(a.drain(20))
            await asyncio.sleep(0.05)
            assert a.forget("gone") == 2
            assert await draining
            assert a.forget("gone") == 0

    run(work())


def test_closing_ends_every_task_and_removes_the_socket(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a", "b") as (a, b):
            await a.send("b", parcel("a", "b"))
            await a.send("missing", parcel("a", "missing"))
            await b.receive()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert list(folder.iterdir()) == []
        with pytest.raises(PeerError, match="not open"):
            await a.send("b", parcel("a", "b", 1))

    run(work())


def test_the_folder_is_the_owners_alone_and_gone_afterwards() -> None:
    with meeting_place() as place:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert len(os.fsencode(address(place, "x" * 300 + "/é"))) < 100
    assert not place.exists()


def test_a_path_that_is_too_long_for_a_socket_says_so(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="TMPDIR"):
        address(tmp_path / ("x" * 100), "a")


CHILD = textwrap.dedent(
    """
    import asyncio, json, sys
    from pathlib import Path
    from confrere.transport.process import ProcessTransport

    async def main():
        async with ProcessTransport("child", Path(sys.argv[1])) as post:
            print("ready", flush=True)
            while True:
                parcel = await post.receive()
                print(json.dumps([parcel.sender, parcel.sequence]), flush=True)

    asyncio.run(main())
    """
)


async def child(folder: Path) -> asyncio.subprocess.Process:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(folder), stdout=subprocess.PIPE
    )
    assert await line(started) == "ready"
    return started


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def test_a_killed_process_is_waited_for_and_its_successor_gets_the_rest(folder: Path) -> None:
    async def work() -> None:
        async with sites(folder, "a") as (a,):
            first = await child(folder)
            await a.send("child", parcel("a", "child", 0))
            assert json.loads(await line(first)) == ["a", 0]
            assert await a.drain(5)
            first.kill()
            await first.wait()
            for i in (1, 2):
                await a.send("child", parcel("a", "child", i))
            assert not await a.drain(0.1)
            second = await child(folder)
            try:
                assert [json.loads(await line(second)) for _ in range(2)] == [["a", 1], ["a", 2]]
                assert await a.drain(5)
            finally:
                second.kill()
                await second.wait()

    run(work())
