"""What arrives is taken in whole: in the store and in the mailbox, or in neither."""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from confrere.cli.status import lines
from confrere.core.custody import public
from confrere.core.errors import CheckpointError
from confrere.core.events import Event
from confrere.core.parcel import Parcel
from confrere.node.blob_files import BlobStore
from confrere.node.equivocation import PROOFS
from confrere.node.node import Node
from confrere.node.node_status import NodeStatus
from confrere.node.shortage import DiskFull
from confrere.node.status import resting_status, status_of
from confrere.node.store import Store
from confrere.transport import body as bodies
from confrere.transport import spool as spools
from confrere.transport import wire
from confrere.transport.receipt import Outcome
from confrere.transport.spool import Spool
from tests.unit.node.sites import arrived, settings
from tests.unit.node.wires import Network
from tests.unit.quick import quick


def test_a_parcel_is_in_the_mailroom_even_if_its_bringer_is_gone_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credit = Store.credit

    def slowly(self: Store, *what: Any, **more: Any) -> Any:
        time.sleep(0.2)
        return credit(self, *what, **more)

    monkeypatch.setattr(Store, "credit", slowly)

    async def story() -> None:
        places = settings(tmp_path)
        node, key = Node(places["site0"], connect=Network().connect), places["site1"].identity.key
        parcel = Parcel(
            places["site0"].run, 0, 0, 0, "site1", "site0", 1, node.site.build("proxy"), {"mass": public(1.0)}
        )
        bringing = asyncio.create_task(
            node.parcel_receiver.deliver("site1", wire.encode(wire.sign(parcel, key)))
        )
        await asyncio.sleep(0.1)
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)
        assert bringing.cancelled()
        await node.parcel_receiver.finish()
        assert len(arrived(node.store)) == 1
        assert [p.id for p in node.mailbox.waiting()] == [("site1", "site0", 1)]
        node.close()

    asyncio.run(story())


def large(node: Node, run: str, sequence: int = 1) -> Parcel:
    return Parcel(run, 0, 0, 0, "site1", "site0", sequence, node.site.build("proxy"), {"mass": public(1.0)})


def test_a_large_parcel_is_taken_over_as_the_file_in_which_it_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "IN_MEMORY", 0)
    monkeypatch.setattr(spools, "IN_MEMORY", 0)

    async def story() -> None:
        places = settings(tmp_path)
        node, key = Node(places["site0"], connect=Network().connect), places["site1"].identity.key
        shelf = node.store.blobs.folder
        for twice in range(2):
            blob = wire.encode(wire.sign(large(node, places["site0"].run), key))
            spool = Spool(1, len(blob), shelf)
            for at in range(0, len(blob), 500):
                spool.add(memoryview(blob)[at : at + 500])
            before = set(shelf.iterdir())
            receipt = await node.parcel_receiver.deliver("site1", spool.body())
            spool.close()
            assert receipt.outcome == (Outcome.DUPLICATE if twice else Outcome.ACCEPTED)
            assert len(before) - len(set(shelf.iterdir())) == twice  # what is not kept is not left behind
        assert [body.read() for body in node.store.waiting()] == [blob]
        node.close()

    asyncio.run(story())


def test_there_is_no_room_before_there_is_enough_for_what_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node would say again and again that it is full and that it goes on."""
    store = Store(tmp_path / "node.sqlite", run="r", site="a")
    put = BlobStore.put

    def full(self: BlobStore, pieces: Any) -> str:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(BlobStore, "put", full)
    with pytest.raises(DiskFull):
        store.keep(0, 0, bytes(10_000_000))
    assert list(store.blobs.folder.iterdir()) == []
    monkeypatch.setattr(BlobStore, "put", put)
    free = SimpleNamespace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    assert not store.has_room()
    free.free = 100_000_000
    assert store.has_room()
    store.keep(0, 0, bytes(10_000_000))
    assert store.kept(0, 0, "training") == bytes(10_000_000)
    store.close()


def test_files_that_a_crash_has_left_behind_are_swept_away_at_the_next_start(tmp_path: Path) -> None:
    async def begin() -> None:
        Node(settings(tmp_path)["site0"], connect=Network().connect).close()

    asyncio.run(begin())
    (tmp_path / "site0" / "parcels" / "arriving-xyz").write_bytes(b"half a parcel")
    asyncio.run(begin())
    assert not list((tmp_path / "site0" / "parcels").glob("arriving*"))


def test_a_refused_parcel_is_not_sent_again_and_its_sender_knows(tmp_path: Path) -> None:
    heard: list[Event] = []

    async def story() -> None:
        places, network = settings(tmp_path), Network()
        node = Node(places["site1"], connect=network.connect, listeners=(heard.append,))
        peer = Node(places["site0"], connect=network.connect)
        await node.links.start()
        await peer.links.start()
        node.store.debit([wire.seal(large(node, "another run"), places["site1"].identity.key)])
        courier = asyncio.create_task(node.peer_senders["site0"].run(node.links))
        async with asyncio.timeout(10):
            while node.store.owed():
                await asyncio.sleep(0.01)
        courier.cancel()
        assert len(network.left) == 1
        for one in (node, peer):
            one.close()

    asyncio.run(story())
    assert [e.data["text"] for e in heard] == ['"site0" refused parcel 1: it belongs to another run']


def test_an_owed_parcel_whose_file_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "IN_MEMORY", 0)

    async def story() -> None:
        places, network = settings(tmp_path), Network()
        node = Node(places["site1"], connect=network.connect)
        peer = Node(places["site0"], connect=network.connect)
        await node.links.start()
        await peer.links.start()
        node.store.debit([wire.seal(large(node, places["site1"].run), places["site1"].identity.key)])
        for file in node.store.blobs.folder.iterdir():
            file.unlink()
        with pytest.raises(CheckpointError, match="never the ledger"):
            await asyncio.wait_for(node.peer_senders["site0"].run(node.links), 10)
        for one in (node, peer):
            one.close()

    asyncio.run(story())


@pytest.mark.parametrize(("weight", "outcome"), [(0, Outcome.ACCEPTED), (1, Outcome.REFUSED)])
def test_a_peer_counts_by_the_size_in_the_signed_roster_whatever_it_says(
    tmp_path: Path, weight: int, outcome: Outcome
) -> None:
    async def story() -> None:
        places = settings(tmp_path, quick("fedavg", rounds=4, patience=5.0))
        node, key = Node(places["site0"], connect=Network().connect), places["site1"].identity.key
        said = {"weight": public(places["site0"].sizes["site1"] + weight)}
        parcel = Parcel(places["site0"].run, 0, 0, 0, "site1", "site0", 1, node.site.build("proxy"), said)
        receipt = await node.parcel_receiver.deliver("site1", wire.encode(wire.sign(parcel, key)))
        assert receipt.outcome == outcome
        node.close()

    asyncio.run(story())


def test_other_content_under_a_used_number_is_flagged_with_both_signatures(tmp_path: Path) -> None:
    async def story() -> None:
        places = settings(tmp_path)
        node, key = Node(places["site0"], connect=Network().connect), places["site1"].identity.key
        run, public_key = places["site0"].run, places["site1"].identity.key.public_key()

        async def bring(sequence: int, mass: float, round: int = 0) -> Outcome:
            made = Parcel(
                run, 0, round, 0, "site1", "site0", sequence, node.site.build("proxy"), {"mass": public(mass)}
            )
            return (await node.parcel_receiver.deliver("site1", wire.encode(wire.sign(made, key)))).outcome

        assert await bring(1, 1.0) == Outcome.ACCEPTED
        assert await bring(1, 1.0) == Outcome.DUPLICATE
        assert node.store.equivocations() == {}
        with node.store._writing() as database:
            database.execute("UPDATE inbox SET body = NULL")  # as after the round that absorbed it
        for _ in range(3):
            assert await bring(1, 2.0) == Outcome.REFUSED
        assert await bring(2, 1.0) == Outcome.REFUSED  # another number for the same phase of the round
        assert node.store.equivocations() == {"site1": 2}
        events = [e for e in node.journal.events if e.kind == "equivocated"]
        assert [e.data["sender"] for e in events] == ["site1", "site1"]
        signed = [wire.proven(events[0].data[part], public_key) for part in ("first", "second")]
        assert [h is not None and (h.sequence, h.scalars["mass"].value) for h in signed] == [
            (1, 1.0),
            (1, 2.0),
        ]
        told = lines(NodeStatus.from_json(status_of(node)))
        assert any("site1 has signed two different parcels under one number" in line for line in told)
        for round in range(1, node.study.rounds):  # a hostile peer does not fill the disk with proofs
            assert await bring(10 + round, 1.0, round) == Outcome.ACCEPTED
            assert await bring(10 + round, 2.0, round) == Outcome.REFUSED
        assert node.store.equivocations()["site1"] <= PROOFS
        node.close()
        told = lines(NodeStatus.from_json(resting_status(places["site0"].home)))
        assert any("site1 has signed two different parcels under one number" in line for line in told)

    asyncio.run(story())
