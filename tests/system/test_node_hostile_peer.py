"""An enrolled peer with valid keys that attacks a running node: it stops, fills, skips, freezes and delays nobody."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import generate_latest

from confrere.cli import status as cli_status
from confrere.core.custody import public
from confrere.core.errors import PeerRefused
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.compression import ParcelContext
from confrere.exchange.screening import Outlier, screen
from confrere.node.conduct import FUTILE_BURST, LINES_BURST
from confrere.node.config import NodeConfig
from confrere.node.delivery import MOST_WAITING, NO_RECORD
from confrere.node.membership import leave_messages
from confrere.node.metrics_endpoint import registry
from confrere.node.node import Node
from confrere.node.node_status import NodeStatus
from confrere.node.setup import most_waiting
from confrere.node.status import status_of
from confrere.study import Caps
from confrere.transport import ledger_marks, wire
from confrere.transport.body import Body
from confrere.transport.receipt import Outcome, Receipt
from tests.unit.node.sites import arrived, settings
from tests.unit.node.wires import Network
from tests.unit.quick import quick


class Hostile:
    """`site1`, whose keys are valid, against the node of `site0`."""

    def __init__(self, places: dict[str, NodeConfig], me: str = "site1") -> None:
        self.places, self.me = places, me
        self.node = Node(places["site0"], connect=Network().connect)
        self.sequence = 0

    def parcel(self, **changes: Any) -> Parcel:
        self.sequence += 1
        whole = Parcel(
            self.places["site0"].run, 0, 0, 0, self.me, "site0", self.sequence, self.node.site.build("proxy"),
            {"mass": public(1.0)},
        )  # fmt: skip
        return replace(whole, **changes)

    async def send(self, **changes: Any) -> Receipt:
        signed = wire.sign(self.parcel(**changes), self.places[self.me].identity.key)
        return await self.node.parcel_receiver.deliver(self.me, wire.encode(signed))


# -- stopping ----------------------------------------------------------------------------------------


def test_a_farewell_that_a_peer_returns_is_no_evidence_of_an_old_copy(tmp_path: Path) -> None:
    async def story() -> None:
        places = settings(tmp_path)
        hostile = Hostile(places)
        ours = next(f for f in leave_messages(places["site0"], 3, []) if f.parcel.receiver == "site1")
        returned = wire.header_of(Body.of(b"".join(ours.pieces())))
        assert wire.proven(returned, places["site0"].identity.member.key) is not None  # our own signature
        greeting = replace(hostile.node.handshake.greet("site1"), last=returned)
        hostile.node.handshake.met("site1", greeting)
        assert hostile.node.handshake.rolled_back is None
        hostile.node.close()

    asyncio.run(story())


def test_a_refusal_tells_a_peer_nothing_about_local_paths(tmp_path: Path) -> None:
    async def story() -> None:
        places = settings(tmp_path)
        hostile = Hostile(places)
        node, key = hostile.node, places["site0"].identity.key
        later = hostile.parcel(sender="site0", receiver="site1", sequence=99)
        mark = ledger_marks.sign(replace(node.handshake.mark(), counter=99), key)
        plain = replace(node.handshake.greet("site1"), last="")
        for shown in (
            replace(plain, last=wire.header_of(Body.of(wire.encode(wire.sign(later, key))))),
            replace(plain, seen=(mark,)),
        ):
            with pytest.raises(PeerRefused) as refused:
                node.handshake.met("site1", shown)
            assert str(tmp_path) in str(node.handshake.rolled_back)  # its owner learns which file
            assert "/" not in str(refused.value)
        node.close()

    asyncio.run(story())


# -- filling -----------------------------------------------------------------------------------------


def test_an_epoch_counts_only_with_its_signed_membership_record_whoever_brings_it(tmp_path: Path) -> None:
    async def story() -> None:
        places = settings(tmp_path)
        hostile = Hostile(places)
        node = hostile.node
        for epoch in range(1, 30):
            receipt = await hostile.send(epoch=epoch, round=3)
            assert (receipt.outcome, receipt.reason) == (Outcome.DEFERRED, NO_RECORD)
        assert arrived(node.store) == []
        record = next(f for f in leave_messages(places["site2"], 2, []) if f.parcel.receiver == "site1")
        brought = await node.parcel_receiver.deliver("site1", b"".join(record.pieces()))
        assert brought.outcome == Outcome.ACCEPTED
        assert node.store.leaving() == {"site2": 2}
        assert (await hostile.send(epoch=1, round=3)).outcome == Outcome.ACCEPTED
        assert (await hostile.send(epoch=1, round=1)).outcome == Outcome.DEFERRED  # before the change
        assert (await hostile.send(epoch=2, round=3)).outcome == Outcome.DEFERRED
        made_up = wire.sign(
            replace(record.parcel, sender="site0", receiver="site1"), places["site1"].identity.key
        )
        assert (await node.parcel_receiver.deliver("site1", wire.encode(made_up))).outcome == Outcome.REFUSED
        assert "site0" not in node.store.leaving()
        node.close()

    asyncio.run(story())


@pytest.mark.parametrize("rounds", [(2, 3), (3, 2)])
def test_of_two_contradictory_leave_messages_the_earlier_counts_and_both_are_kept_as_proof(
    tmp_path: Path, rounds: tuple[int, int]
) -> None:
    """So members who were sent different ones agree again as soon as they exchange them."""

    async def story() -> None:
        hostile = Hostile(settings(tmp_path))
        node = hostile.node
        for round in rounds:
            record = next(
                f for f in leave_messages(hostile.places["site2"], round, []) if f.parcel.receiver == "site1"
            )
            brought = await node.parcel_receiver.deliver("site1", b"".join(record.pieces()))
            assert brought.outcome == Outcome.ACCEPTED
        assert node.store.leaving() == {"site2": 2}
        assert node.store.equivocations() == {"site2": 1}  # its signer's, not of the peer that brought it
        [event] = [e for e in node.journal.events if e.kind == "equivocated"]
        assert event.data["sender"] == "site2"
        node.close()

    asyncio.run(story())


def test_contradictory_leave_messages_do_not_part_the_members_who_stay(tmp_path: Path) -> None:
    study = quick("fedavg", rounds=8, patience=1.0).with_(topology="complete")
    places = settings(tmp_path, study, sites=4)

    async def story() -> None:
        network = Network()
        nodes = {n: Node(places[n], connect=network.connect) for n in ("site0", "site2", "site3")}
        for name, node in nodes.items():
            first = 1 if name == "site0" else 7
            record = next(f for f in leave_messages(places["site1"], first, []) if f.parcel.receiver == name)
            await node.parcel_receiver.deliver("site1", b"".join(record.pieces()))
        leaver = Node(places["site1"], connect=network.connect)
        await leaver.links.start()  # connected, and silent
        async with asyncio.timeout(120):
            await asyncio.gather(*(node.run(until_done=True) for node in nodes.values()))
        leaver.close()
        for node in nodes.values():
            missing = {
                e.round
                for e in node.journal.events
                if e.kind == "missing" and set(e.data["senders"]) - {"site1"}
            }
            assert 7 not in missing, node.me
            assert node.leaving == {"site1": 1}

    asyncio.run(story())


def test_a_courier_brings_the_membership_record_that_its_peer_lacks(tmp_path: Path) -> None:
    """A site that leaves may reach one peer only, and be gone."""

    async def story() -> None:
        places, network = settings(tmp_path), Network()
        told, not_told = (Node(places[n], connect=network.connect) for n in ("site1", "site0"))
        await told.links.start()
        await not_told.links.start()
        record = next(f for f in leave_messages(places["site2"], 2, []) if f.parcel.receiver == "site1")
        await told.parcel_receiver.deliver("site2", b"".join(record.pieces()))
        later = Parcel(
            places["site1"].run, 1, 3, 0, "site1", "site0", 1, told.site.build("proxy"), {"mass": public(1.0)}
        )
        told.store.debit([wire.seal(later, places["site1"].identity.key)])
        courier = asyncio.create_task(told.peer_senders["site0"].run(told.links))
        async with asyncio.timeout(20):
            while told.store.owed():
                await asyncio.sleep(0.01)
        courier.cancel()
        assert not_told.store.leaving() == {"site2": 2}
        assert [p.epoch for p in not_told.mailbox.waiting()] == [1]
        for node in (told, not_told):
            node.close()

    asyncio.run(story())


def test_a_peer_has_a_quota_of_parcels_that_wait_and_is_put_off_beyond_it(tmp_path: Path) -> None:
    async def story() -> None:
        hostile = Hostile(settings(tmp_path, quick("avgpush", rounds=90, patience=5.0)))
        node, light = hostile.node, {"mass": public(0.001)}
        found = [(await hostile.send(round=n, scalars=light)).outcome for n in range(90)]
        assert found == [Outcome.ACCEPTED] * MOST_WAITING + [Outcome.DEFERRED] * (90 - MOST_WAITING)
        assert node.store.kept_of("site1") == len(node.mailbox.waiting()) == MOST_WAITING
        assert status_of(node)["peers"]["site1"]["conduct"]["put_off"] == 90 - MOST_WAITING
        with node.store._writing() as database:
            database.execute("UPDATE inbox SET body = NULL WHERE round < 10")  # used, as after a round
        assert (await hostile.send(round=89, scalars=light)).outcome == Outcome.ACCEPTED
        node.close()

    asyncio.run(story())


@pytest.mark.parametrize(("peer_bytes", "expected"), [(1, 4), (50_000_000, 50), (10**9, MOST_WAITING)])
def test_the_quota_of_a_peer_is_the_owners_to_set(peer_bytes: int, expected: int) -> None:
    assert most_waiting(Caps(peer_bytes=peer_bytes), largest=1_000_000) == expected


def test_parcels_that_are_sent_in_vain_do_not_fill_the_log_and_name_their_sender(tmp_path: Path) -> None:
    async def story() -> None:
        hostile = Hostile(settings(tmp_path))
        node = hostile.node
        for _ in range(FUTILE_BURST + 200):
            await hostile.send(run="another run")
        lines = [e for e in node.journal.events if "site1" in str(e.data)]
        assert len(lines) <= LINES_BURST + 1
        assert "further ones are counted" in lines[-1].data["text"]
        found = status_of(node)["peers"]["site1"]["conduct"]
        assert found["refused"] + found["put_off"] == FUTILE_BURST + 200
        assert found["put_off"] >= 150  # unread
        assert found["lines_left_out"] == found["refused"] - LINES_BURST
        text = "\n".join(cli_status.lines(NodeStatus.from_json(status_of(node))))
        assert "Warning: site1" in text
        shown = generate_latest(registry(node)).decode()
        assert f'confrere_peer_parcels_refused{{peer="site1"}} {float(found["refused"])}' in shown
        node.close()

    asyncio.run(story())


def test_a_number_that_the_study_does_not_know_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        hostile = Hostile(settings(tmp_path))
        for name in ("invented", "x" * 256, "in 0 0"):
            receipt = await hostile.send(scalars={"mass": public(1.0), name: public(1.0)})
            assert receipt.outcome == Outcome.REFUSED
            assert "is none of this study" in receipt.reason
        assert arrived(hostile.node.store) == []
        hostile.node.close()

    asyncio.run(story())


def test_what_arrives_after_the_last_round_is_counted_and_not_kept(tmp_path: Path) -> None:
    async def story() -> None:
        hostile = Hostile(settings(tmp_path))
        hostile.node.parcel_receiver.mailbox = None  # as `_finish` leaves it
        assert (await hostile.send()).outcome == Outcome.ACCEPTED
        assert hostile.node.store.kept_of("site1") == 0
        assert len(arrived(hostile.node.store)) == 1
        hostile.node.close()

    asyncio.run(story())


# -- skipping and weighing ---------------------------------------------------------------------------


def test_one_peer_alone_cannot_make_a_site_skip_rounds(tmp_path: Path) -> None:
    async def story() -> None:
        hostile = Hostile(settings(tmp_path, quick("avgpush", rounds=300, patience=5.0), sites=2))
        assert (await hostile.send(round=299, model=None, scalars={})).outcome == Outcome.ACCEPTED
        assert not await hostile.node._skip()
        assert hostile.node.done == 0
        await hostile.node.leave()
        assert hostile.node.leaving["site0"] <= 3  # nor leave in a round that is far away
        hostile.node.close()

    asyncio.run(story())


def test_a_site_never_holds_more_mass_than_all_sites_have_declared(tmp_path: Path) -> None:
    async def story() -> None:
        hostile = Hostile(settings(tmp_path))
        node, total = hostile.node, sum(hostile.places["site0"].sizes.values())
        own, others = (hostile.places["site0"].sizes[n] for n in ("site0", "site2"))
        for mass in (1e9, 1.01 * total):
            receipt = await hostile.send(scalars={"mass": public(mass)})
            assert receipt.outcome == Outcome.REFUSED
            assert "its mass is" in receipt.reason
        assert (await hostile.send(scalars={"mass": public(total - own)})).outcome == Outcome.ACCEPTED
        receipt = await hostile.send(round=1, scalars={"mass": public(1.0)})
        assert receipt.outcome == Outcome.REFUSED
        assert "more than all sites have" in receipt.reason
        hostile.me = "site2"  # what an honest peer sends still counts
        hostile.sequence = 0
        assert (await hostile.send(scalars={"mass": public(others / 2)})).outcome == Outcome.ACCEPTED
        assert status_of(node)["peers"]["site1"]["conduct"]["left_aside"] == 3
        assert arrived(node.store) == [
            ("site1", 3, -1, float(total - own)), ("site2", 1, -1, others / 2),
        ]  # fmt: skip
        node.close()

    asyncio.run(story())


def test_mass_that_a_peer_claims_after_it_has_claimed_little_is_bounded_and_honest_peers_still_count(
    tmp_path: Path,
) -> None:
    """By what it had claimed in all, such a peer looked more honest than the others; a site came to 144.55 of 144."""

    async def story() -> None:
        study = quick("avgpush", rounds=12, patience=3.0).with_(topology="complete")
        places, network = settings(tmp_path, study, sites=3), Network()
        nodes = {name: Node(place, connect=network.connect) for name, place in places.items()}
        most = nodes["site0"].parcel_receiver.rules.bounds.mass
        outbox, held = nodes["site1"].outbox, []
        seal = outbox.sealed

        def lie(parcel: Parcel) -> wire.Sealed:
            if parcel.receiver == "site0" and "mass" in parcel.scalars:
                mass = public(1e-6 if parcel.round < 6 else most - 16 - parcel.round)
                parcel = replace(parcel, scalars={**parcel.scalars, "mass": mass})
            return seal(parcel)

        outbox.sealed = lie  # type: ignore[method-assign]
        honest, close = nodes["site0"], nodes["site0"].store.close_round

        def closed(*args: Any, **options: Any) -> Any:
            held.append(honest.site_run.state.mass.held.value)
            return close(*args, **options)

        honest.store.close_round = closed  # type: ignore[method-assign]
        await asyncio.gather(*(node.run(until_done=True) for node in nodes.values()))
        assert max(held) <= most * (1 + 1e-9)
        assert max(held) > most / 2  # some of the lies were taken
        assert honest.conduct.counts()["site2"]["left_aside"] == 0

    asyncio.run(story())


@pytest.mark.parametrize("compression", [None, "float16", "int8", {"name": "top-k", "share": 0.5}])
def test_weights_beyond_the_studys_own_scale_are_left_aside_in_every_form(
    tmp_path: Path, compression: Any
) -> None:
    async def story() -> None:
        hostile = Hostile(settings(tmp_path, quick("avgpush", rounds=4, compression=compression)))
        node, proxy = hostile.node, hostile.node.site.build("proxy")
        bound = node.parcel_receiver.rules.bounds.weight
        assert 10 < bound < 60_000
        packing = node.parcel_receiver.rules.packing
        moment = ParcelContext(hostile.places["site0"].run, 0, 0, "site1")

        def scaled(largest: float) -> Any:
            whole = Params({n: torch.full_like(t, largest) for n, t in proxy.params.items()})
            model = replace(proxy, params=whole)
            return packing.pack(model, moment, epoch=0, leaving=None, whole=True) if compression else model

        if isinstance(compression, dict):  # news travel whole: press it as a parcel of an exchange
            assert packing.compression is not None
            flat = torch.full((proxy.params.count,), 2.0 * bound, dtype=torch.float64)
            pressed = packing.compression.press(flat, proxy.params, torch.zeros_like(flat), moment)
            beyond = replace(proxy, params=pressed)
        else:
            beyond = scaled(2 * bound)
        receipt = await hostile.send(model=beyond)
        assert receipt.outcome == Outcome.REFUSED
        assert "in this study none is beyond" in receipt.reason
        assert node.conduct["site1"].left_aside == 1
        if not isinstance(compression, dict):
            assert (await hostile.send(model=scaled(bound / 2))).outcome == Outcome.ACCEPTED
        node.close()

    asyncio.run(story())


def test_a_learning_rate_beyond_the_studys_own_is_left_aside(tmp_path: Path) -> None:
    """Where gradients are summed, each site's rate goes into the common step."""
    study = quick("fedavg", rounds=4).with_(strategy={"name": "fedavg", "exchange": "gradients"})
    rules = Hostile(settings(tmp_path, study)).node.parcel_receiver.rules
    size = rules.sizes["site1"]
    honest = rules.bounds.per_unit["rate"][1] * size
    parcel = Parcel("", 0, 0, 0, "site1", "site0", 1, None, {"weight": public(size), "rate": public(honest)})
    screen(parcel, rules.bounds, 0.0)
    for numbers in (
        {"weight": public(size), "rate": public(1.01 * honest)},
        {"rate": public(honest)},
        {"sum of weight": public(size), "sum of rate": public(1.01 * honest)},
        {"sum of weight": public(1e-9), "sum of rate": public(0.0)},
        {"sum of weight": public(1e9), "sum of rate": public(0.0)},
    ):
        with pytest.raises(Outlier):
            screen(replace(parcel, scalars=numbers), rules.bounds, 0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share", 1.1),
        ("share", -0.1),
        ("loss", 4.1),
        ("loss", -0.1),
        ("threshold", 0.41),
        ("threshold", -0.1),
    ],
)
def test_a_mixture_takes_no_share_loss_or_threshold_that_cannot_be(
    tmp_path: Path, name: str, value: float
) -> None:
    bounds = Hostile(settings(tmp_path, quick("afl", rounds=4))).node.parcel_receiver.rules.bounds
    parcel = Parcel("", 0, 0, 0, "site1", "site0", 1, None, {name: public(value)})
    with pytest.raises(Outlier, match=name):
        screen(parcel, bounds, 0.0)
    screen(replace(parcel, scalars={name: public(0.2)}), bounds, 0.0)
