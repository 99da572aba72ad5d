"""However sites work, send, lose, repeat, die and come back: nothing is lost, paid for twice unseen, or let out."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from confrere.core.custody import Custody, public
from confrere.core.errors import CheckpointError, CustodyError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.learning.local_training.one_site import Job, Trained
from confrere.learning.objectives import Supervised
from confrere.node import replay as replay_module
from confrere.node import store as store_module
from confrere.node.conduct import Conduct
from confrere.node.config import NodeConfig
from confrere.node.delivery import ParcelReceiver
from confrere.node.inspection import ParcelRules
from confrere.node.replay import CallCounter, DurableMailbox, DurableSiteRound, OutboxTransport
from confrere.node.shortage import Shortage
from confrere.node.store import TABLES, Store
from confrere.privacy.gate import Gate
from confrere.privacy.ledger import Ledger
from confrere.privacy.noise import Secure
from confrere.site import snapshot
from confrere.site.assemble import SiteContext, participant_of
from confrere.site.peers import SitePeers
from confrere.site.site_round import SiteRound
from confrere.strategies.proxyfl import ProxyFL
from confrere.study import Privacy
from confrere.transport import body as body_module
from confrere.transport import wire
from tests.unit.node.sites import settings as node_settings
from tests.unit.quick import quick

ROUNDS = 1000
NAMES = ["site0", "site1", "site2"]
WHILE_WORKING = [
    "charged", "trained", "training-written", "training-in-transaction", "training-kept", "release-marked",
    "debit-written", "debit-in-transaction", "debited", "take-in-transaction", "taken", "round-written", "round-in-transaction",
    "round-kept",
]  # fmt: skip
WHILE_CARRYING = ["credit-written", "credit-in-transaction", "credited", "acknowledged", "delivery-noted"]

Leaving = tuple[str, str, bytes]


class Killed(BaseException):
    """The plug was pulled."""


class Noisy:
    """A trainer whose every run gives another model, so that a second release of one round would be seen."""

    async def run(self, job: Job) -> Trained:
        replay_module.reach("charged")
        out = Trained()
        for role in job.objective:
            start = job.weights[role] if getattr(job, "weights", None) else job.networks[role].params()
            out.params[role] = Params({n: t + 0.1 * torch.randn_like(t) for n, t in start.items()})
        replay_module.reach("trained")
        return out


class Bench:
    """One site's process: everything in it is gone when it is killed, but the files."""

    def __init__(self, config: NodeConfig, folder: Path, keys: Any) -> None:
        self.me, study = config.me, config.study
        self.strategy = study.build_strategy()
        home = folder / self.me
        home.mkdir(exist_ok=True)
        self.store = Store(home / "node.sqlite", run=config.run, site=self.me)
        self.store.sweep()
        self.ledger = Ledger(home / "ledger.sqlite")
        self.journal = Journal(None)
        context = SiteContext(config.run, self.journal, Noisy(), ledger=self.ledger)
        self.site = participant_of(study, self.strategy, config.data, config.task, context)
        self.site.randomness, self.site.reuses = Secure(), True
        self.outbox = OutboxTransport(self.store, config.identity.key, lambda size: None, self.no_room)
        self.mailbox = DurableMailbox(self.store, self.outbox, self.no_room)
        shapes = {m.architecture: m.params.shapes for m in map(self.site.build, ("private", "proxy"))}
        rules = ParcelRules(self.me, config.run, ROUNDS, keys, shapes)
        self.parcel_receiver = ParcelReceiver(rules, self.store, Conduct(self.me, keys, lambda event: None))
        self.parcel_receiver.mailbox = self.mailbox
        self.peers = SitePeers(
            self.me, config.run, NAMES, study.graph(), study.churn, Gate(site=self.me), self.outbox,
            self.journal, patience=0.0, mailbox=self.mailbox, counter=lambda: self.ledger.counter,
        )  # fmt: skip
        found = next(iter(self.store.latest()), None)
        if found is None:
            start = self.strategy.init(SiteRound(self.site, 0))
            own = Params({n: torch.randn_like(t) for n, t in start.proxy.params.items()})
            self.state: Any = replace(start, proxy=Model(own, start.proxy.architecture, Custody.PROTECTED))
            self.done = 0
            self.store.close_round(0, self.content())
        else:
            self.done, kept = found[0], snapshot.loads(found[1])
            self.state, self.site.memory = kept["state"], kept["memory"]
            self.peers.sequence.update(kept["sequence"])
            self.peers.caught_up = kept["caught_up"]

    @staticmethod
    async def no_room(shortage: Shortage) -> None:
        raise AssertionError(str(shortage))

    def content(self) -> bytes:
        peers = self.peers
        return snapshot.dumps(
            {"state": self.state, "memory": self.site.memory, "sequence": dict(peers.sequence),
             "caught_up": peers.caught_up}
        )  # fmt: skip

    async def work(self) -> None:
        self.mailbox.call_counter = call_counter = CallCounter(self.done)
        self.outbox.clear()
        inside = DurableSiteRound(self.site, self.store, call_counter, self.no_room)
        self.state = await self.strategy.round(self.state, inside, self.peers.round(self.done))
        self.done += 1
        self.store.close_round(self.done, self.content())

    def close(self) -> None:
        with suppress(Exception):
            self.store.close()
            self.ledger.close()


class Collaboration(RuleBasedStateMachine):
    """Three sites that mix proxies by push-sum, and everything that can go wrong between them."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")  # the disk is not what is tested here, and it is slow
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        torch.manual_seed(0)
        study = quick(
            {"name": "proxyfl", "mass": "equal"}, rounds=ROUNDS, topology="complete", patience=1.0,
            privacy=Privacy(noise_multiplier=50.0, delta=1e-4, steps=1),
        )  # fmt: skip
        self.settings = node_settings(self.folder, study, rehearsal=False)
        self.keys = {n: s.identity.member.key for n, s in self.settings.items()}
        self.sites: dict[str, Bench] = {}
        self.left: list[Leaving] = []
        self.closed: dict[str, int | None] = {}
        self.moved = torch.zeros(())
        for name in NAMES:
            self.start(name)
        self.everything = self.weigh()

    # -- what can happen --------------------------------------------------------------------------

    def start(self, name: str) -> None:
        self.sites[name] = Bench(self.settings[name], self.folder, self.keys)

    def dies(self, name: str, at: str, what: Any) -> None:
        """Run something until the process dies at a named instant (or to its end, if it never comes by)."""

        def reach(point: str) -> None:
            if point == at:
                raise Killed

        modules = (replay_module, store_module)
        before = [m.reach for m in modules]  # type: ignore[attr-defined]
        for module in modules:
            module.reach = reach  # type: ignore[attr-defined]
        try:
            asyncio.run(what())
        except Killed:
            self.restart(name)
        finally:
            for module, old in zip(modules, before, strict=True):
                module.reach = old  # type: ignore[attr-defined]

    @rule(name=st.sampled_from(NAMES))
    def restart(self, name: str) -> None:
        self.sites[name].close()
        self.start(name)

    @rule(name=st.sampled_from(NAMES))
    def work(self, name: str) -> None:
        asyncio.run(self.sites[name].work())

    @rule(name=st.sampled_from(NAMES), at=st.sampled_from(WHILE_WORKING))
    def die_while_working(self, name: str, at: str) -> None:
        self.dies(name, at, self.sites[name].work)

    def carry(self, sender: str, receiver: str, which: int, keep_receipt: bool = True) -> Any:
        """One parcel, not necessarily the oldest, from an outbox to an inbox."""

        async def deliver() -> None:
            waiting = self.sites[sender].store.undelivered(receiver)
            if not waiting:
                return
            sequence, kept = waiting[which % len(waiting)]
            body = kept.read()
            self.left.append((sender, receiver, body))
            receipt = await self.sites[receiver].parcel_receiver.deliver(sender, body)
            assert receipt.credited
            if keep_receipt:
                self.sites[sender].store.delivered(receiver, sequence)

        return deliver

    @rule(pair=st.permutations(NAMES), which=st.integers(0, 5), heard=st.booleans())
    def send(self, pair: list[str], which: int, heard: bool) -> None:
        """A parcel arrives; its acknowledgement may be lost, and then the same bytes come again."""
        asyncio.run(self.carry(pair[0], pair[1], which, heard)())

    @rule(pair=st.permutations(NAMES), which=st.integers(0, 5), at=st.sampled_from(WHILE_CARRYING))
    def die_while_carrying(self, pair: list[str], which: int, at: str) -> None:
        victim = pair[1] if at.startswith("credit") else pair[0]
        self.dies(victim, at, self.carry(pair[0], pair[1], which))

    @rule(which=st.integers(0, 200))
    def repeat(self, which: int) -> None:
        """Something that was sent long ago arrives again."""
        if self.left:
            sender, receiver, body = self.left[which % len(self.left)]
            receipt = asyncio.run(self.sites[receiver].parcel_receiver.deliver(sender, body))
            assert receipt.credited

    @rule(which=st.integers(0, 200), other=st.sampled_from(NAMES))
    def misdeliver(self, which: int, other: str) -> None:
        """A parcel for somebody else, or in somebody else's name, changes nothing."""
        if self.left:
            sender, receiver, body = self.left[which % len(self.left)]
            if other != receiver:
                assert not asyncio.run(self.sites[other].parcel_receiver.deliver(sender, body)).credited

    # -- what always holds ------------------------------------------------------------------------

    def weigh(self) -> tuple[float, torch.Tensor]:
        """Σ mass and Σ mass·θ over states, and over parcels that were debited and not yet absorbed."""
        mass, x = 0.0, torch.zeros(())
        for name, site in self.sites.items():
            done, body = next(iter(site.store.latest()))
            state = snapshot.loads(body)["state"]
            mass, x = (
                mass + state.mass.held.value,
                x + state.mass.held.value * state.proxy.params.flatten().double(),
            )
            rows = site.store._rows("SELECT receiver, sequence, round, body FROM outbox WHERE status < 2")
            for receiver, sequence, number, kept in rows:
                there = self.sites[receiver].store._rows(
                    "SELECT body FROM inbox WHERE sender = ? AND sequence = ?", (name, sequence)
                )
                if number >= done:  # debited, in a round that is not over
                    parcel = self.sent(site, receiver, sequence, kept, there[0][0] if there else None)
                    mass, x = mass - parcel.scalar("mass").value, x - flat(parcel)
                if not there:
                    assert kept is not None, f"parcel {sequence} of {name} is nowhere"
                    parcel = wire.decode(site.store.body(kept))
                    mass, x = mass + parcel.scalar("mass").value, x + flat(parcel)
            for _, _, taken, blob in site.store._rows(
                "SELECT sender, sequence, coalesce(taken_round, ?), body FROM inbox", (done,)
            ):
                if taken >= done:
                    parcel = wire.decode(site.store.body(blob))
                    mass, x = mass + parcel.scalar("mass").value, x + flat(parcel)
        return mass, x

    def sent(
        self, site: Bench, receiver: str, sequence: int, kept: bytes | str | None, there: bytes | str | None
    ) -> Parcel:
        """A parcel, from whoever still has it: its sender, its receiver, or, if that one is rounds ahead, the line."""
        if kept is not None:
            return wire.decode(site.store.body(kept))
        if there is not None:
            return wire.decode(self.sites[receiver].store.body(there))
        name = next(n for n, other in self.sites.items() if other is site)
        left = (wire.decode(body) for by, to, body in self.left if (by, to) == (name, receiver))
        return next(parcel for parcel in left if parcel.sequence == sequence)

    def gain(self, name: str, number: int) -> torch.Tensor:
        """What the training of a round added to the proxy."""
        site = self.sites[name]
        before = snapshot.loads(dict(site.store.latest())[number])["state"].proxy.params
        after = snapshot.loads(site.store.kept(number, 0, "training"))["models"]["proxy"].params  # type: ignore[arg-type]
        return (after - before).flatten().double()

    @invariant()
    def mass_and_models_are_conserved(self) -> None:
        for name, site in self.sites.items():
            done = site.store.newest()
            if (
                self.closed.get(name, done) != done
            ):  # what the training of a round adds counts when it is over
                assert done is not None
                held = snapshot.loads(dict(site.store.latest())[done - 1])["state"].mass.held.value
                self.moved = self.moved + held * self.gain(name, done - 1)
            self.closed[name] = done
        mass, x = self.weigh()
        assert mass == pytest.approx(self.everything[0], rel=1e-9)
        torch.testing.assert_close(x, self.everything[1] + self.moved, atol=1e-3, rtol=1e-4)

    @invariant()
    def every_release_was_paid_for_and_there_is_one_a_round(self) -> None:
        released: dict[tuple[str, int], set[str]] = defaultdict(set)
        for sender, _, body in self.left:
            parcel = wire.decode(body)
            assert parcel.model is not None
            released[sender, parcel.round].add(str(parcel.model.params.flatten().tolist()))
        assert all(len(models) == 1 for models in released.values())
        for name, site in self.sites.items():
            rounds = {r for s, r in released if s == name}
            paid = [e for e in site.ledger.entries() if e["charges"]]
            assert len(paid) >= len(rounds)
            trained = [r for (r,) in site.store._rows("SELECT round FROM log WHERE kind = 'training'")]
            assert len(trained) == len(set(trained))

    @invariant()
    def nothing_private_left(self) -> None:
        held = [
            t.flatten()
            for name, site in self.sites.items()
            for model in [site.state.private]
            for t in model.params.values()
        ]
        for config in self.settings.values():
            held += list(config.data.train.inputs)
        for _, _, body in self.left:
            parcel = wire.decode(body)
            assert parcel.model is not None
            assert parcel.model.custody <= Custody.PROTECTED
            for tensor in parcel.model.params.values():
                assert not any(within(h, tensor.flatten()) for h in held)

    def teardown(self) -> None:
        for site in self.sites.values():
            site.close()
        shutil.rmtree(self.folder)


def flat(parcel: Any) -> torch.Tensor:
    return parcel.scalar("mass").value * parcel.model.params.flatten().double()


def within(private: torch.Tensor, left: torch.Tensor) -> bool:
    """Whether these very numbers are somewhere in what left."""
    a, b = private.numpy().tobytes(), left.contiguous().numpy().tobytes()
    return bool(np.any(private.numpy())) and a in b


def bounds(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )


def collaborate(kind: type[Collaboration], how: settings) -> None:
    run_state_machine_as_test(kind, settings=how)  # type: ignore[no-untyped-call]


def test_nothing_is_lost_doubled_or_let_out_whatever_happens() -> None:
    collaborate(Collaboration, bounds(4, 25))


def test_the_same_holds_for_parcels_that_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "IN_MEMORY", 0)  # so that everything lies in files
    collaborate(Tidy, bounds(4, 25))


class Tidy(Collaboration):
    @invariant()
    def every_file_is_named_once_nobody_has_died(self) -> None:
        for site in self.sites.values():
            names = [r[0] for t in TABLES for r in site.store._rows(f"SELECT body FROM {t}")]
            named = {n for n in names if isinstance(n, str)}
            found = {p.name for p in site.store.blobs.folder.iterdir()}
            assert named <= found
            site.store.sweep()
            assert named == {p.name for p in site.store.blobs.folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("small", [64 * 1024, 0])
def test_nothing_is_lost_doubled_or_let_out_whatever_happens_for_long(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "IN_MEMORY", small)
    collaborate(Tidy, bounds(60, 60))


@dataclass(frozen=True)
class Careless(ProxyFL):
    """Sends the private model in place of the proxy."""

    async def round(self, state: Any, site: Any, peers: Any) -> Any:
        models = await site.train({"private": Supervised()}, {"private": state.private})
        await peers.exchange(models["private"], mass=public(1.0))
        return replace(state, private=models["private"])


class CarelessCollaboration(Collaboration):
    def start(self, name: str) -> None:
        super().start(name)
        self.sites[name].strategy = Careless()


def test_the_gate_stops_a_strategy_that_sends_its_private_model() -> None:
    machine = CarelessCollaboration()
    with pytest.raises(CustodyError, match="private model may not leave"):
        machine.work("site0")
    assert machine.sites["site0"].store.owed() == {}
    machine.nothing_private_left()
    machine.teardown()


def test_with_the_gate_switched_off_the_same_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_door(self: Gate, model: Any, scalars: Any = None, **more: Any) -> Any:
        return replace(model, custody=Custody.PUBLIC), scalars

    monkeypatch.setattr(Gate, "admit", open_door)
    machine = CarelessCollaboration()
    machine.work("site0")
    machine.send(["site0", "site1", "site2"], 0, True)
    with pytest.raises(AssertionError):
        machine.nothing_private_left()
    machine.teardown()


def test_the_same_check_notices_a_parcel_that_was_acknowledged_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Store, "credit", lambda self, parcel, body, keep: True)
    machine = Collaboration()
    machine.mass_and_models_are_conserved()
    machine.work("site0")
    machine.mass_and_models_are_conserved()
    machine.send(["site0", "site1", "site2"], 0, True)
    with pytest.raises(AssertionError, match="is nowhere"):
        machine.mass_and_models_are_conserved()
    machine.teardown()


def test_the_store_refuses_a_second_release_of_a_round(tmp_path: Path) -> None:
    store = Store(tmp_path / "node.sqlite", run="r", site="a")
    store.keep(3, 0, b"one model")
    with pytest.raises(CheckpointError):
        store.keep(3, 0, b"another model")
    assert store.kept(3, 0, "training") == b"one model"
