"""What a node does when things go wrong around it: disks, files, links, peers, owners."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch

from confrere.core.custody import public
from confrere.core.errors import CheckpointError, CustodyError, PrivacyError, StudyError
from confrere.core.events import verified
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.node import metrics_endpoint, open_files
from confrere.node.config import NodeConfig, check_partners, within
from confrere.node.control import ask
from confrere.node.node import Node
from confrere.node.service import serve
from confrere.node.shortage import DiskFull
from confrere.node.status import missing, resting_status, status_of
from confrere.node.store import Store
from confrere.simulation.backends import simulate
from confrere.site.open_sites import open_sites
from confrere.study import Caps, Models, Privacy, SiteConfig, Study
from confrere.transport import body as bodies
from confrere.transport import wire
from confrere.transport.receipt import Outcome
from tests.conftest import arrays
from tests.system.invariants import check_nodes
from tests.unit.node.sites import arrived, settings
from tests.unit.node.wires import Network
from tests.unit.quick import PRIVACY, quick


def study_of(rounds: int = 4, **changes: Any) -> Study:
    return quick(changes.pop("strategy", "proxyfl"), rounds=rounds, **{"patience": 20.0, **changes})


def start(places: dict[str, NodeConfig], network: Network) -> dict[str, Node]:
    return {name: Node(place, connect=network.connect) for name, place in places.items()}


def scraped(node: Node) -> str:
    """What Prometheus reads from a node's port; a port that is taken is named."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stop = metrics_endpoint.serve(port, node)
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
        with pytest.raises(StudyError, match=f"127.0.0.1:{port}: .*state another `metrics`"):
            metrics_endpoint.serve(port, node)
    finally:
        stop()
    return text


async def through(*nodes: Node, seconds: float = 120.0) -> None:
    """All of these nodes to their end; they stay for each other until nobody owes anybody anything."""
    await settled({n: asyncio.create_task(n.run()) for n in nodes}, seconds)


async def settled(running: dict[Node, asyncio.Task[None]], seconds: float = 120.0) -> None:
    def over() -> bool:
        for task in running.values():
            if task.done():
                task.result()
        return all(n.doing in ("finished", "left") and not n.store.owed() for n in running)

    try:
        await until(over, seconds)
    finally:
        for task in running.values():
            await ends(task)


async def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def ends(task: asyncio.Task[None]) -> None:
    """As a kill does, as far as one process can."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def events(place: NodeConfig, kind: str) -> list[Any]:
    return [e for e, _ in verified(place.home / "journal.jsonl") if e.kind == kind]


def books(study: Study, places: dict[str, NodeConfig]) -> Any:
    found = check_nodes(
        study, open_sites(study, arrays(len(places), 60)), {n: p.home for n, p in places.items()}
    )
    assert found.problems == []
    return found


def same_as_simulated(study: Study, nodes: dict[str, Node]) -> None:
    whole = simulate(study, arrays(len(nodes), 60))
    for name, node in nodes.items():
        for role, model in whole.models[name].items():
            assert getattr(node.site_run.state, role).params.distance(model.params) < 1e-5


# -- links -----------------------------------------------------------------------------------------


def test_parcels_that_are_lost_and_repeated_change_nothing(tmp_path: Path) -> None:
    study, network = study_of(), Network(seed=3, lose=0.3, repeat=0.3)
    places = settings(tmp_path, study)

    async def story() -> dict[str, Node]:
        nodes = start(places, network)
        await through(*nodes.values())
        return nodes

    nodes = asyncio.run(story())
    same_as_simulated(study, nodes)
    assert len(network.left) > len(
        {body for _, _, body in network.left}
    )  # some went more than once, byte for byte
    books(study, places)


def test_sites_that_were_cut_off_go_on_together_and_lose_no_mass(tmp_path: Path) -> None:
    study, network = study_of(6, patience=0.5, topology="complete"), Network()
    places = settings(tmp_path, study)

    async def story() -> None:
        nodes = start(places, network)
        running = asyncio.create_task(through(*nodes.values()))
        await until(lambda: nodes["site2"].done >= 1)
        network.cut = {frozenset(("site2", other)) for other in ("site0", "site1")}
        await until(lambda: nodes["site0"].done >= 4)
        assert nodes["site2"].done < 4  # alone, it begins no round
        network.cut = set()
        await running

    asyncio.run(story())
    assert "site2" in missing([e for e, _ in verified(places["site0"].home / "journal.jsonl")])
    books(study, places)


def test_a_peer_that_is_gone_for_good_costs_one_patience_and_is_named(tmp_path: Path) -> None:
    study, network = study_of(8, patience=1.0, topology="complete"), Network()
    places = settings(tmp_path, study)

    async def story() -> float:
        nodes = start(places, network)
        lost = asyncio.create_task(nodes["site2"].run())
        others = [asyncio.create_task(nodes[n].run()) for n in ("site0", "site1")]
        await until(lambda: nodes["site2"].done >= 1)
        await ends(lost)
        began = time.monotonic()
        await until(lambda: all(nodes[n].doing == "finished" for n in ("site0", "site1")))
        spent = time.monotonic() - began
        found = status_of(nodes["site0"])
        assert found["peers"]["site2"]["missing_in_rounds"]
        assert found["peers"]["site2"]["parcels_waiting"] > 0
        for task in others:
            await ends(task)
        return spent

    spent = asyncio.run(story())
    assert events(places["site0"], "missing")
    assert spent < 30
    books(study, places)


def test_a_site_that_was_away_for_long_goes_on_where_the_others_are(tmp_path: Path) -> None:
    study, network = study_of(14, patience=0.5, topology="complete"), Network()
    places = settings(tmp_path, study)

    async def story() -> None:
        nodes = start({n: places[n] for n in ("site0", "site1")}, network)
        running = {n: asyncio.create_task(n.run()) for n in nodes.values()}
        await until(lambda: min(n.done for n in nodes.values()) >= 8)
        for node in nodes.values():
            node.pause(True)
        late = Node(places["site2"], connect=network.connect)
        running[late] = asyncio.create_task(late.run())
        await until(lambda: late.done >= 6)
        for node in nodes.values():
            node.pause(False)
        await settled(running)

    asyncio.run(story())
    away = events(places["site2"], "absent")
    assert "was away" in away[0].data["text"]
    trained = {e.round for e in events(places["site2"], "trained")}
    assert len(trained) < 14  # what it missed it neither trained nor paid for
    charged = events(places["site2"], "charged")
    assert len(charged) == len(trained)
    books(study, places)


def test_hostile_replayed_and_stale_parcels_change_nothing(tmp_path: Path) -> None:
    study, network = study_of(3), Network()
    places = settings(tmp_path, study)

    async def story() -> None:
        nodes = start(places, network)
        node, key = nodes["site0"], places["site1"].identity.key
        proxy = node.site.build("proxy")
        huge = Params({n: t * 0 + 1e30 for n, t in proxy.params.items()})
        whole = Parcel(places["site0"].run, 0, 0, 0, "site1", "site0", 1, proxy, {"mass": public(2.0)})
        bad = [
            wire.encode(wire.sign(replace(whole, model=replace(proxy, params=huge)), key)),
            wire.encode(wire.sign(replace(whole, scalars={"mass": public(-1.0)}), key)),
            wire.encode(wire.sign(replace(whole, run="another"), key)),
            wire.encode(wire.sign(replace(whole, round=99), key)),
            wire.encode(wire.sign(replace(whole, receiver="site2"), key)),
            wire.encode(wire.sign(replace(whole, sender="site2"), key)),
            wire.encode(wire.sign(whole, places["site2"].identity.key)),
            wire.encode(whole),
            wire.encode(wire.sign(whole, key))[:-3],
            wire.encode(
                wire.sign(replace(whole, model=replace(proxy, params=Params({"w": torch.ones(3)}))), key)
            ),
            b"",
        ]
        for blob in bad:
            assert (await node.parcel_receiver.deliver("site1", blob)).outcome == Outcome.REFUSED
        assert arrived(node.store) == []
        good = wire.encode(wire.sign(whole, key))
        assert [(await node.parcel_receiver.deliver("site1", good)).outcome for _ in range(3)] == [
            Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.DUPLICATE,
        ]  # fmt: skip
        second = wire.encode(wire.sign(replace(whole, sequence=2), key))
        bad.append(second)
        assert (await node.parcel_receiver.deliver("site1", second)).outcome == Outcome.REFUSED
        assert len(arrived(node.store)) == 1
        told = [
            e.data
            for e in node.journal.events
            if e.kind == "equivocated" or "refused and changed nothing" in e.data.get("text", "")
        ]
        assert len(told) == len(bad)
        assert {d["sender"] for d in told} == {"site1"}
        for n in nodes.values():
            n.close()

    asyncio.run(story())


# -- files -----------------------------------------------------------------------------------------


def finished(tmp_path: Path, study: Study) -> dict[str, NodeConfig]:
    places, network = settings(tmp_path, study), Network()

    async def story() -> None:
        await through(*start(places, network).values())

    asyncio.run(story())
    return places


def test_a_damaged_state_falls_back_to_the_one_before_and_ends_alike(tmp_path: Path) -> None:
    study = study_of(4)
    places, network = settings(tmp_path, study), Network()

    asyncio.run(stopped_halfway(places, network))
    flip_newest_state(places["site0"].home / "node.sqlite")
    nodes = asyncio.run(fallen_back(places, network))
    same_as_simulated(study, nodes)
    books(study, places)


async def stopped_halfway(places: dict[str, NodeConfig], network: Network) -> None:
    nodes = start(places, network)
    running = [asyncio.create_task(n.run()) for n in nodes.values()]
    await until(lambda: nodes["site0"].done >= 2)
    for task in running:
        await ends(task)


async def fallen_back(places: dict[str, NodeConfig], network: Network) -> dict[str, Node]:
    """The nodes at the end, of which one had to begin with the state before its newest."""
    nodes = start(places, network)
    assert any("newest state is damaged" in e.data.get("text", "") for e in nodes["site0"].journal.events)
    await through(*nodes.values())
    return nodes


def flip_newest_state(path: Path) -> None:
    """One bit of the file, where the newest state lies."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    body = database.execute("SELECT body FROM states ORDER BY done DESC LIMIT 1").fetchone()[0]
    database.close()
    data = bytearray(path.read_bytes())
    at = data.find(body[-40:])
    assert at > 0
    data[at + 5] ^= 1
    path.write_bytes(data)


def test_a_damaged_file_of_a_large_state_falls_back_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "IN_MEMORY", 0)
    study = study_of(3)
    places, network = settings(tmp_path, study), Network()

    asyncio.run(stopped_halfway(places, network))
    store = Store(places["site0"].home / "node.sqlite", run=places["site0"].run, site="site0")
    name = store._rows("SELECT body FROM states ORDER BY done DESC LIMIT 1")[0][0]
    store.close()
    file = store.blobs.folder / name
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    nodes = asyncio.run(fallen_back(places, network))
    same_as_simulated(study, nodes)
    books(study, places)


def test_two_damaged_states_are_refused(tmp_path: Path) -> None:
    places = finished(tmp_path, study_of(2))
    database = sqlite3.connect(places["site0"].home / "node.sqlite")
    database.execute("UPDATE states SET body = x'00'")
    database.commit()
    database.close()

    async def begin() -> None:
        Node(places["site0"], connect=Network().connect)

    with pytest.raises(CheckpointError, match="never the ledger"):
        asyncio.run(begin())


def test_an_edited_ledger_is_refused(tmp_path: Path) -> None:
    places = finished(tmp_path, study_of(2))
    database = sqlite3.connect(places["site0"].ledger)
    database.execute("DROP TRIGGER entries_are_final")
    database.execute("UPDATE entries SET charges = '[]' WHERE counter = 1")
    database.commit()
    database.close()

    async def begin() -> None:
        Node(places["site0"], connect=Network().connect)

    with pytest.raises(PrivacyError, match="was edited"):
        asyncio.run(begin())


def test_a_full_disk_pauses_the_node_and_loses_nothing(tmp_path: Path) -> None:
    """A quota in the place of a small disk: SQLite may not grow its file. A model is larger than a page of it."""
    study, network = study_of(4, models=Models(proxy={"name": "mlp", "hidden": [300]})), Network()
    places = settings(tmp_path, study)

    async def story() -> dict[str, Node]:
        nodes = start(places, network)
        node = nodes["site0"]
        pages = node.store._rows("PRAGMA page_count")[0][0]
        node.store._rows(f"PRAGMA max_page_count = {pages}")
        with suppress(DiskFull):
            for n in range(1000):
                node.store.note(**{f"ballast{n}": "x" * 1000})
        assert not node.store.has_room()
        running = asyncio.create_task(through(*nodes.values()))
        await until(lambda: "disk is full" in node.doing)
        assert "free some space" in status_of(node)["reason"]
        node.store._rows("PRAGMA max_page_count = 1000000")
        await running
        return nodes

    nodes = asyncio.run(story())
    same_as_simulated(study, nodes)
    found = books(study, places)
    assert found.charges == 3 * study.rounds
    said = [e.data["text"] for e in events(places["site0"], "notice")]
    assert any("there is room again" in text for text in said)


def test_too_many_open_files_pause_the_node_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, network = study_of(3), Network()
    places = settings(tmp_path, study)
    short, looks_fine = {"now": True}, iter([True] * 6)  # they may run out at any moment
    run = asyncio.run

    def no_loop(work: Any, **options: Any) -> Any:
        """A training begins with an event loop of its own, which takes three descriptors."""
        if short["now"]:
            work.close()
            raise OSError(errno.EMFILE, "Too many open files")
        return run(work, **options)

    async def story() -> dict[str, Node]:
        nodes = start(places, network)
        monkeypatch.setattr(open_files, "enough", lambda: not short["now"] or next(looks_fine, False))
        monkeypatch.setattr("confrere.node.replay.asyncio.run", no_loop)
        running = asyncio.create_task(through(*nodes.values()))
        await until(lambda: all("too many open files" in n.doing for n in nodes.values()))
        assert "LimitNOFILE" in status_of(nodes["site0"])["reason"]
        short["now"] = False
        await running
        return nodes

    nodes = run(story())
    same_as_simulated(study, nodes)
    assert books(study, places).charges == 3 * study.rounds
    said = [e.data["text"] for e in events(places["site0"], "notice")]
    assert any("files can be opened again" in text for text in said)


@pytest.mark.slow
def test_a_full_disk_pauses_the_node_on_a_small_file_system(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        study, network = study_of(4), Network()
        places = settings(tmp_path, study)
        places["site0"] = replace(
            places["site0"], home=small / "site0", ledger=small / "site0" / "ledger.sqlite"
        )

        async def story() -> dict[str, Node]:
            nodes = start(places, network)
            ballast = small / "ballast"
            with open(ballast, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    pass
            running = asyncio.create_task(through(*nodes.values(), seconds=240))
            await until(lambda: "disk is full" in nodes["site0"].doing, 120)
            ballast.unlink()
            await running
            return nodes

        nodes = asyncio.run(story())
        same_as_simulated(study, nodes)
        books(study, places)
    finally:
        subprocess.run(["umount", "-l", small], check=False)


# -- the owner -------------------------------------------------------------------------------------


def test_an_owner_can_pause_resume_look_and_leave_from_outside(tmp_path: Path) -> None:
    study, network = study_of(30, topology="complete", patience=2.0), Network()
    places = settings(tmp_path, study)

    async def story() -> None:
        nodes = start(places, network)
        node, home = nodes["site0"], places["site0"].home
        running = [asyncio.create_task(serve(n, until_done=True)) for n in nodes.values()]

        async def say(what: str) -> Any:
            return await asyncio.to_thread(ask, home, what)

        await until(lambda: node.done >= 1)
        await say("pause")
        assert os.stat(home / "control.sock").st_mode & 0o077 == 0
        await until(lambda: node.doing == "waiting")
        found = await say("status")
        assert found["reason"] == "paused by its owner"
        assert (found["privacy"]["delta"], found["privacy"]["unit"]) == (PRIVACY.delta, "record")
        assert found["quality_private"]
        before = node.done
        await say("resume")
        await until(lambda: node.done > before)
        numbers = await asyncio.to_thread(scraped, node)
        assert "confrere_rounds_done" in numbers
        (heard,) = re.findall(r'confrere_peer_last_contact_seconds\{peer="site1"\} (\S+)', numbers)
        assert abs(float(heard) - time.time()) < 60
        assert "accuracy" not in numbers
        assert "loss" not in numbers
        await say("leave")
        await asyncio.wait_for(asyncio.gather(*running), 120)

    asyncio.run(story())
    assert [e.site for e in events(places["site0"], "left")] == ["site0"]
    assert [e.data["leaving"] for e in events(places["site1"], "notice") if "leaving" in e.data] == ["site0"]
    last = max(e.round for e in events(places["site0"], "sent"))
    assert last < 29
    assert max(e.round for e in events(places["site1"], "sent")) == 29
    final = next(e for e in events(places["site1"], "round-started") if e.round == 29)
    assert final.data["members"] == ["site1", "site2"]
    assert final.data["epoch"] == 1

    async def again() -> None:
        nodes = start({"site0": places["site0"]}, Network())
        await asyncio.wait_for(nodes["site0"].run(until_done=True), 20)

    asyncio.run(again())
    assert max(e.round for e in events(places["site0"], "sent")) == last  # it is final


def test_a_sites_own_caps_win(tmp_path: Path) -> None:
    study, network = study_of(6, topology="complete", patience=5.0), Network()
    places = settings(tmp_path, study)
    places["site0"] = replace(places["site0"], caps=Caps(rounds=2))
    places["site1"] = replace(places["site1"], caps=Caps(bytes=3500))

    async def story() -> None:
        await through(*start(places, network).values())

    asyncio.run(story())
    assert {e.round for e in events(places["site0"], "sent")} == {0, 1}
    left = sum(len(body) for s, _, body in network.left if s == "site1" and wire.decode(body).phase == 0)
    assert left <= 3500
    announced = [e.data["text"] for e in events(places["site1"], "notice") if "leaving" in e.data]
    assert any("3,500 bytes" in text for text in announced)
    assert [e.site for e in events(places["site1"], "left")] == ["site1"]
    assert {e.round for e in events(places["site2"], "sent")} >= {0, 1}
    with pytest.raises(PrivacyError, match=r"caps\.partners does not allow"):
        check_partners("site0", places["site0"].members, Caps(partners=["site1"]))
    assert not within([22, 6], 12)


def test_a_spent_budget_ends_training_and_not_receiving(tmp_path: Path) -> None:
    privacy = Privacy(epsilon=4.0, noise_multiplier=2.0, delta=1e-4, steps=2)
    study, network = study_of(6, topology="complete", privacy=privacy), Network()
    places = settings(tmp_path, study, rehearsal=False)

    async def story() -> dict[str, Node]:
        nodes = start(places, network)
        await through(*nodes.values())
        return nodes

    nodes = asyncio.run(story())
    for name, place in places.items():
        charged = events(place, "charged")
        assert 0 < len(charged) < 6
        assert charged[-1].data["epsilon"] <= 4.0
        assert events(place, "budget-spent")
        assert {e.round for e in events(place, "sent")} == set(range(6))  # it relays
        assert nodes[name].done == 6
    books(study, places)

    # another study on the same records: the ledger remembers, and the status says so
    later = settings(tmp_path / "later", replace(study, name="later"), rehearsal=False)
    later = {n: replace(p, ledger=places[n].ledger, home=p.home) for n, p in later.items()}

    async def again() -> dict[str, Node]:
        nodes = start(later, Network())
        for node in nodes.values():
            spent = status_of(node)["privacy"]
            assert spent is not None
            assert 2.0 < spent["epsilon"] <= 4.0
        await through(*nodes.values())
        return nodes

    asyncio.run(again())
    for place in later.values():
        assert not events(place, "charged")
        found = resting_status(place.home)["privacy"]
        assert found["training_ended"]
        assert 2.0 < found["epsilon"] <= 4.0


def test_a_study_without_a_proven_guarantee_is_refused_unless_the_site_accepts(tmp_path: Path) -> None:
    study = study_of(2, strategy={"name": "proxyfl", "teacher": "private", "beta": 0.5})
    own = study.with_(sites={"site0": SiteConfig(accept_unproven_privacy=False)})
    place = replace(settings(tmp_path, study, rehearsal=False)["site0"], study=own)

    async def begin(config: NodeConfig) -> None:
        Node(config, connect=Network().connect).close()

    with pytest.raises(CustodyError, match="accept_unproven_privacy"):
        asyncio.run(begin(place))
    accepted = study.with_(sites={"site0": SiteConfig(accept_unproven_privacy=True)})
    asyncio.run(begin(replace(place, study=accepted)))


def test_a_study_above_the_ceiling_is_refused_unless_the_site_accepts(tmp_path: Path) -> None:
    study = study_of(2, privacy=Privacy(noise_multiplier=0.001, delta=1e-4, steps=1))

    def own(**config: Any) -> Study:
        return study.with_(sites={"site0": SiteConfig(**config)})

    place = settings(tmp_path, study, rehearsal=False)["site0"]

    async def begin(study: Study) -> None:
        Node(replace(place, study=study), connect=Network().connect).close()

    with pytest.raises(CustodyError, match=r"above the ceiling of 10.*accept_unproven_privacy"):
        asyncio.run(begin(own(accept_unproven_privacy=False)))
    asyncio.run(begin(own(accept_unproven_privacy=True)))
    with pytest.raises(PrivacyError, match="at most 10"):
        asyncio.run(begin(own(accept_unproven_privacy=True, caps=Caps(ceiling=1e9))))


def test_a_node_draws_its_noise_from_the_secure_source(tmp_path: Path) -> None:
    async def begin(config: NodeConfig) -> bool:
        node = Node(config, connect=Network().connect)
        node.close()
        return node.site.randomness is not None and node.site.randomness.secure

    places = settings(tmp_path, study_of(2), rehearsal=False)
    assert asyncio.run(begin(places["site0"]))


def test_a_node_goes_on_only_with_the_records_that_it_was_started_with(tmp_path: Path) -> None:
    async def begin(config: NodeConfig) -> None:
        Node(config, connect=Network().connect).close()

    places = settings(tmp_path, study_of(2))
    asyncio.run(begin(places["site0"]))
    with pytest.raises(CheckpointError, match="its records are not those"):
        asyncio.run(begin(replace(places["site0"], data=places["site1"].data)))


def test_two_nodes_cannot_share_a_folder(tmp_path: Path) -> None:
    async def begin() -> None:
        place = settings(tmp_path, study_of(2))["site0"]
        first = Node(place, connect=Network().connect)
        try:
            with pytest.raises(CheckpointError, match="at work here already"):
                Node(place, connect=Network().connect)
        finally:
            first.close()

    asyncio.run(begin())


def test_a_store_of_another_run_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "node.sqlite", run="one", site="a").close()
    with pytest.raises(CheckpointError, match="belongs to run"):
        Store(tmp_path / "node.sqlite", run="two", site="a")
