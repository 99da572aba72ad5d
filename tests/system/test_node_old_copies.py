"""A folder or a ledger that was put back from an old copy is noticed, and the node does not go on with it."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from confrere.core.custody import public
from confrere.core.errors import CheckpointError, ConfrereError, PeerRefused, PrivacyError
from confrere.core.parcel import Parcel
from confrere.node.daemon import Node
from confrere.node.setting import Setting
from confrere.transport import wire
from confrere.transport.body import Body
from tests.system.test_node_faults import start, study_of, until
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network

UNPROTECTED = {"strategy": "avgpush", "privacy": None}


async def up_to(places: dict[str, Setting], done: int) -> None:
    """All nodes until everybody has so many rounds behind it; whatever ends one of them is raised."""
    nodes = start(places, Network())
    running = [asyncio.create_task(n.run()) for n in nodes.values()]
    try:
        await until(lambda: min(n.done for n in nodes.values()) >= done or any(t.done() for t in running))
    finally:
        for task in running:
            task.cancel()
        found = await asyncio.gather(*running, return_exceptions=True)
    for trouble in found:
        if isinstance(trouble, ConfrereError):
            raise trouble


def put_back(places: dict[str, Setting], copy: Path | None) -> None:
    """The folder of site0 as it was, or none; its ledger stays."""
    home = places["site0"].home
    shutil.rmtree(home)
    if copy is not None:
        shutil.copytree(copy, home)


def apart(tmp_path: Path, **changes: object) -> dict[str, Setting]:
    """Sites whose ledgers are not in their folders."""
    found = settings(tmp_path, study_of(8, **changes), rehearsal=False)
    return {n: replace(s, ledger=tmp_path / f"{n}-ledger.sqlite") for n, s in found.items()}


def test_a_ledger_that_was_rolled_back_is_noticed_by_its_peers(tmp_path: Path) -> None:
    places = settings(tmp_path, study_of(6), rehearsal=False)
    asyncio.run(up_to(places, 1))
    shutil.copy(places["site0"].ledger, tmp_path / "old copy")
    asyncio.run(up_to(places, 3))
    asyncio.run(up_to(places, 4))  # at this handshake its peers see where its ledger stands
    for beside in places["site0"].home.glob("ledger.sqlite*"):
        beside.unlink()
    shutil.copy(tmp_path / "old copy", places["site0"].ledger)
    with pytest.raises(PrivacyError, match="rolled back"):
        asyncio.run(up_to(places, 5))


@pytest.mark.parametrize("empty", [False, True])
def test_an_old_folder_is_noticed_by_the_sites_own_ledger_before_anything_is_sent(
    tmp_path: Path, empty: bool
) -> None:
    places = apart(tmp_path)
    asyncio.run(up_to(places, 1))
    shutil.copytree(places["site0"].home, tmp_path / "copy")
    asyncio.run(up_to(places, 4))
    put_back(places, None if empty else tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"old copy.* has paid for round [45] of this run"):
        asyncio.run(up_to(places, 5))


@pytest.mark.parametrize("empty", [False, True])
def test_an_old_folder_is_noticed_by_peers_that_have_later_parcels_with_its_signature(
    tmp_path: Path, empty: bool
) -> None:
    """Where nothing is charged, or no more, the ledger cannot tell."""
    places = apart(tmp_path, **UNPROTECTED)
    asyncio.run(up_to(places, 1))
    shutil.copytree(places["site0"].home, tmp_path / "copy")
    asyncio.run(up_to(places, 4))
    put_back(places, None if empty else tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"old copy.* of this site, with its signature"):
        asyncio.run(up_to(places, 5))


def test_a_node_that_crashed_is_not_taken_for_an_old_copy(tmp_path: Path) -> None:
    places = apart(tmp_path)
    for done in (1, 2, 3):
        asyncio.run(up_to(places, done))  # each time ended in the middle of something


def test_a_peer_cannot_stop_a_node_with_a_parcel_that_it_made_up(tmp_path: Path) -> None:
    places = apart(tmp_path, **UNPROTECTED)

    async def story() -> None:
        node = Node(places["site0"], connect=Network().connect)
        run = places["site0"].run
        claimed = Parcel(run, 0, 3, 0, "site0", "site1", 99, None, {"mass": public(1.0)})
        forged = Body.of(wire.encode(wire.sign(claimed, places["site1"].identity.key)))
        greeting = replace(
            Node(places["site1"], connect=Network().connect).introductions.greet("site0"),
            last=wire.header_of(forged),
        )
        node.introductions.met("site1", greeting)
        for text in ("", "{", json.dumps({"sequence": 99}), "\ud800"):
            node.introductions.met("site1", replace(greeting, last=text))
        assert node.introductions.rolled_back is None
        genuine = Body.of(wire.encode(wire.sign(claimed, places["site0"].identity.key)))
        with pytest.raises(PeerRefused, match="old copy"):
            node.introductions.met("site1", replace(greeting, last=wire.header_of(genuine)))
        to_another = replace(claimed, receiver="site2")
        node.introductions.rolled_back = None
        about = Body.of(wire.encode(wire.sign(to_another, places["site0"].identity.key)))
        node.introductions.met("site1", replace(greeting, last=wire.header_of(about)))
        assert node.introductions.rolled_back is None

    asyncio.run(story())
