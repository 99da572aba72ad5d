"""A folder or a ledger that was put back from an old copy is noticed, and the node does not go on with it."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from confrere.core.custody import public
from confrere.core.errors import CheckpointError, ConfrereError, LedgerRolledBack, PeerRefused, PrivacyError
from confrere.core.parcel import LedgerMark, Parcel
from confrere.node.config import NodeConfig
from confrere.node.delivery import ParcelReceiver
from confrere.node.handshake_state import HandshakeCallbacks
from confrere.node.node import Node
from confrere.privacy.charges import gaussian
from confrere.privacy.ledger import Ledger
from confrere.transport import ledger_marks, wire
from confrere.transport.body import Body
from confrere.transport.receipt import Outcome
from tests.system.test_node_faults import start, study_of, until
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network

UNPROTECTED = {"strategy": "avgpush", "privacy": None}


async def up_to(places: dict[str, NodeConfig], done: int) -> None:
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


def put_back(places: dict[str, NodeConfig], copy: Path | None) -> None:
    """The folder of site0 as it was, or none; its ledger stays."""
    home = places["site0"].home
    shutil.rmtree(home)
    if copy is not None:
        shutil.copytree(copy, home)


def apart(tmp_path: Path, **changes: object) -> dict[str, NodeConfig]:
    """Sites whose ledgers are not in their folders."""
    found = settings(tmp_path, study_of(8, **changes), rehearsal=False)
    return {n: replace(s, ledger=tmp_path / f"{n}-ledger.sqlite") for n, s in found.items()}


def restore_ledger(place: NodeConfig, copy: Path | None, *, memory: Collection[str] = ()) -> None:
    """Put an old copy of a ledger back, or none, and let the site itself remember it in these places only."""
    for file in (place.ledger, *place.ledger.parent.glob(f"{place.ledger.stem}.sqlite-*")):
        file.unlink(missing_ok=True)
    if copy is not None:
        shutil.copy(copy, place.ledger)
    else:
        place.ledger.with_suffix(".key").unlink()
    for file, statement in (
        ("node.sqlite", "DELETE FROM facts WHERE key LIKE 'ledger:%'"),
        ("witness.sqlite", "DELETE FROM ledgers"),
    ):
        if file not in memory:
            with closing(sqlite3.connect(place.home / file)) as database:
                database.execute(statement)
                database.commit()


async def backed_up(places: dict[str, NodeConfig], copy: Path, more: int) -> None:
    """Copy the ledger of site0 while it trains, and go on for `more` rounds without another handshake."""
    nodes = start(places, Network())
    running = [asyncio.create_task(n.run()) for n in nodes.values()]
    try:
        await until(lambda: nodes["site0"].done >= 1)
        with closing(sqlite3.connect(places["site0"].ledger)) as ledger:
            ledger.execute("VACUUM INTO ?", (str(copy),))
        copy.chmod(0o600)
        await until(lambda: min(n.done for n in nodes.values()) >= 1 + more)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def silent(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Peers return no marks here: at handshakes, or with receipts."""
    if where == "handshakes":
        greet = HandshakeCallbacks.greet
        monkeypatch.setattr(
            HandshakeCallbacks, "greet", lambda self, peer: replace(greet(self, peer), seen=())
        )
    else:
        monkeypatch.setattr("confrere.node.delivery.ParcelReceiver._take_in", ParcelReceiver._decide)


@pytest.mark.parametrize("witness", ["node.sqlite", "witness.sqlite", "handshakes", "receipts"])
def test_an_old_ledger_is_noticed_by_each_witness_alone(
    tmp_path: Path, witness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers saw the later entries in parcels only: there was one handshake, before the copy was made."""
    places = apart(tmp_path)
    asyncio.run(backed_up(places, tmp_path / "copy", 3))
    restore_ledger(places["site0"], tmp_path / "copy", memory=[witness])
    for other in {"handshakes", "receipts"} - {witness}:
        silent(monkeypatch, other)
    seen_later = (
        r"but .* entry \d+|without the charge"  # the latter for a result that was kept and not yet sent
    )
    with pytest.raises(LedgerRolledBack, match=rf"ends at entry \d+, ({seen_later}).*: it was rolled back"):
        asyncio.run(up_to(places, 8))


def test_a_ledger_that_was_wiped_between_two_studies_is_noticed_by_peers(tmp_path: Path) -> None:
    """Everything is gone at the site but its key; its peers have kept its marks from another run."""
    first = apart(tmp_path)
    asyncio.run(up_to(first, 2))
    restore_ledger(first["site0"], None)
    second = {
        n: replace(s, study=replace(s.study, seed=99), home=tmp_path / f"{n}-2", ledger=s.ledger)
        for n, s in first.items()
    }
    for name in ("site1", "site2"):  # as if beside their keys, where it is for all runs
        second[name].home.mkdir(mode=0o700)
        shutil.copy(first[name].home / "witness.sqlite", second[name].home)
    with pytest.raises(LedgerRolledBack, match="another one than this site has used: peers saw entry"):
        asyncio.run(up_to(second, 2))


def test_a_forged_mark_is_no_evidence(tmp_path: Path) -> None:
    places = apart(tmp_path)

    async def story() -> None:
        nodes = start(places, Network())
        node, peer = nodes["site0"], nodes["site1"]
        own = node.handshake.mark()
        higher = replace(own, counter=99)
        forged = [
            higher,
            ledger_marks.sign(higher, places["site1"].identity.key),
            replace(higher, signature=""),
        ]
        for mark in forged:
            node.handshake.compare([mark])
            node.handshake.met("site1", replace(peer.handshake.greet("site0"), seen=(mark,)))
            assert not peer.handshake.keep("site0", mark)
        assert node.handshake.rolled_back is None
        assert peer.handshake.seen("site0") == ()
        parcel = Parcel(places["site1"].run, 0, 0, 0, "site0", "site1", 1, None, mark=higher)
        body = wire.encode(wire.sign(parcel, places["site0"].identity.key))
        receipt = await peer.parcel_receiver.deliver("site0", body)
        assert (receipt.outcome, receipt.seen) == (Outcome.REFUSED, ())
        node.handshake.compare([ledger_marks.sign(higher, places["site0"].identity.key)])
        assert isinstance(node.handshake.rolled_back, LedgerRolledBack)
        for one in nodes.values():
            one.close()

    asyncio.run(story())


def test_a_site_cannot_push_out_its_marks_by_signing_many(tmp_path: Path) -> None:
    places = apart(tmp_path)

    async def story() -> None:
        nodes = start(places, Network())
        key, peer = places["site0"].identity.key, nodes["site1"]
        for number in range(100):
            mark = LedgerMark(f"{number:064x}", 7, "ab" * 32)
            assert peer.handshake.keep("site0", ledger_marks.sign(mark, key))
        kept = peer.handshake.seen("site0")
        assert [int(m.ledger, 16) for m in kept] == list(range(ledger_marks.MOST_LEDGERS))
        for one in nodes.values():
            one.close()

    asyncio.run(story())


def test_a_rolled_back_ledger_ends_a_command_with_an_exit_code_of_its_own() -> None:
    """So that whatever restarts a node after failures can leave this one to a person."""
    assert LedgerRolledBack("").exit_code == 3
    assert {PrivacyError("").exit_code, CheckpointError("").exit_code} == {2}


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
            Node(places["site1"], connect=Network().connect).handshake.greet("site0"),
            last=wire.header_of(forged),
        )
        node.handshake.met("site1", greeting)
        for text in ("", "{", json.dumps({"sequence": 99}), "\ud800"):
            node.handshake.met("site1", replace(greeting, last=text))
        assert node.handshake.rolled_back is None
        genuine = Body.of(wire.encode(wire.sign(claimed, places["site0"].identity.key)))
        with pytest.raises(PeerRefused, match="old copy"):
            node.handshake.met("site1", replace(greeting, last=wire.header_of(genuine)))
        to_another = replace(claimed, receiver="site2")
        node.handshake.rolled_back = None
        about = Body.of(wire.encode(wire.sign(to_another, places["site0"].identity.key)))
        node.handshake.met("site1", replace(greeting, last=wire.header_of(about)))
        assert node.handshake.rolled_back is None

    asyncio.run(story())


def test_a_restart_does_not_help_a_forked_ledger(tmp_path: Path) -> None:
    """An old copy that has grown past what peers saw: its number is higher, and it does not contain what they keep."""
    first = apart(tmp_path)
    asyncio.run(backed_up(first, tmp_path / "copy", 2))
    newest = tmp_path / "newest"
    with closing(sqlite3.connect(first["site0"].ledger)) as ledger:
        ledger.execute("VACUUM INTO ?", (str(newest),))
    newest.chmod(0o600)
    restore_ledger(first["site0"], tmp_path / "copy")
    with Ledger(first["site0"].ledger) as forked:
        for number in range(60):
            forked.spend([gaussian(50.0)], key=f"elsewhere/{number}", budget=None)
    places = {
        n: replace(s, study=replace(s.study, seed=99), home=tmp_path / f"{n}-2", ledger=s.ledger)
        for n, s in first.items()
    }
    for name in ("site1", "site2"):
        places[name].home.mkdir(mode=0o700)
        shutil.copy(first[name].home / "witness.sqlite", places[name].home)

    def ends() -> None:
        with pytest.raises(LedgerRolledBack, match=r"has another entry \d+ than peers saw"):
            asyncio.run(up_to(places, 2))

    ends()
    with pytest.raises(LedgerRolledBack, match="has another entry"):  # by its own memory, without any peer
        asyncio.run(up_to({"site0": places["site0"]}, 1))
    with closing(sqlite3.connect(places["site0"].home / "witness.sqlite")) as database:
        database.execute("DELETE FROM rollbacks")
        database.commit()
    ends()  # by what its peers still keep
    restore_ledger(places["site0"], newest)
    asyncio.run(up_to(places, 1))


def test_two_signatures_for_one_entry_are_kept_and_late_marks_accuse_no_site(tmp_path: Path) -> None:
    places = apart(tmp_path)

    async def story() -> None:
        nodes = start(places, Network())
        key, peer = places["site0"].identity.key, nodes["site1"].handshake
        plain = replace(nodes["site0"].handshake.greet("site1"), seen=())
        ledger = plain.mark.ledger if plain.mark is not None else ""

        def shown(counter: int, head: str) -> None:
            signed = ledger_marks.sign(LedgerMark(ledger, counter, head * 64), key)
            greeting = replace(plain, mark=signed)
            peer.met("site0", greeting)
            peer.agreed("site0", greeting)

        for counter, head in ((5, "a"), (7, "b"), (5, "a"), (7, "b"), (6, "c"), (8, "d")):
            shown(counter, head)
        assert [m.counter for m in peer.seen("site0")] == [8]
        for counter, head in ((8, "e"), (8, "d"), (9, "f")):
            with pytest.raises(PeerRefused, match="two different entries"):
                shown(counter, head)
            assert [(m.counter, m.head[0]) for m in peer.seen("site0")] == [(8, "d")]
        nodes["site1"].close()
        again = Node(places["site1"], connect=Network().connect).handshake
        with pytest.raises(PeerRefused, match="two different entries"):
            again.met("site0", plain)

    asyncio.run(story())


def test_a_mark_is_replaced_only_once_its_site_has_accepted_the_handshake(tmp_path: Path) -> None:
    places = apart(tmp_path)

    async def story() -> None:
        nodes = start(places, Network())
        peer, greeting = nodes["site1"].handshake, nodes["site0"].handshake.greet("site1")
        peer.met("site0", greeting)
        assert peer.seen("site0") == ()
        peer.agreed("site0", greeting)
        assert peer.seen("site0") == (greeting.mark,)
        for one in nodes.values():
            one.close()

    asyncio.run(story())
