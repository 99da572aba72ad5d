"""A crash costs no budget, and nothing that is put back or killed gets a second release for one charge."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import CustodyError, LedgerRolledBack, PrivacyError, TrainingError
from confrere.node import replay, store
from confrere.node.config import NodeConfig
from confrere.node.setup import lock_ledger
from confrere.privacy.budget import Budget
from confrere.privacy.charges import gaussian
from confrere.privacy.gate import Gate
from confrere.privacy.ledger import Ledger
from confrere.privacy.ledger_storage import MOST_REUSES
from confrere.study import Privacy
from confrere.transport import wire
from tests.system.test_node_machine import ROUNDS, WHILE_WORKING, Bench, Killed, Noisy
from tests.unit.node.sites import settings
from tests.unit.quick import quick

STEP = gaussian(20.0)
BEFORE_IT_IS_KEPT = ["charged", "trained", "training-written", "training-in-transaction"]


@pytest.fixture
def place(tmp_path: Path) -> NodeConfig:
    study = quick(
        {"name": "proxyfl", "mass": "equal"}, rounds=ROUNDS, topology="complete", patience=1.0,
        privacy=Privacy(noise_multiplier=50.0, delta=1e-4, steps=1),
    )  # fmt: skip
    return settings(tmp_path, study, rehearsal=False)["site0"]


@contextmanager
def killed_at(point: str, time: int = 1) -> Iterator[None]:
    """The process ends the so-manyeth time that it comes to this point."""
    left = [time]

    def reach(here: str) -> None:
        left[0] -= here == point
        if here == point and left[0] == 0:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "reach", reach)
        patch.setattr(store, "reach", reach)
        yield


def process(place: NodeConfig) -> Bench:
    return Bench(place, place.home.parent, {})


def work(place: NodeConfig, rounds: int = 1) -> None:
    """One process that lives for some rounds."""
    with closing(process(place)) as bench:
        for _ in range(rounds):
            asyncio.run(bench.work())


def dies(place: NodeConfig, point: str, time: int = 1) -> None:
    with killed_at(point, time), pytest.raises(Killed):
        work(place)


def charges(place: NodeConfig) -> int:
    with Ledger(place.ledger) as ledger:
        return sum(1 for entry in ledger.entries() if entry["charges"])


def releases(place: NodeConfig) -> set[str]:
    """The digests of everything that the ledger let leave."""
    with Ledger(place.ledger) as ledger:
        return {e["key"].split("/")[-1] for e in ledger.entries() if "/leaving/" in e["key"]}


def sent(place: NodeConfig) -> set[str]:
    """The models of all parcels in the outbox, whatever became of them."""
    with closing(process(place)) as bench:
        bodies = [body for _, body in bench.store.undelivered("site1", 10_000)]
        found = [wire.decode(body) for body in bodies]
    return {str(p.model.params.flatten().tolist()) for p in found if p.model is not None}


# -- a crash ------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", WHILE_WORKING)
def test_a_crash_at_any_instant_is_charged_once(place: NodeConfig, point: str) -> None:
    dies(place, point, 2 if point.startswith("round-") else 1)  # a first state is kept before the first round
    work(place)
    rounds = 2 if point == "round-kept" else 1
    assert charges(place) == len(releases(place)) == len(sent(place)) == rounds


def test_a_charge_is_used_again_at_most_three_times(place: NodeConfig) -> None:
    for _ in range(1 + MOST_REUSES):
        dies(place, "trained")
        assert charges(place) == 1
    dies(place, "trained")
    assert charges(place) == 2
    work(place)
    assert (charges(place), len(releases(place))) == (2, 1)


@pytest.mark.parametrize("point", BEFORE_IT_IS_KEPT)
def test_other_records_do_not_use_a_charge_again(place: NodeConfig, point: str) -> None:
    dies(place, point)
    bench = process(place)
    bench.site.secret = b"as if the records were others: their fingerprint is"
    asyncio.run(bench.work())
    bench.close()
    assert charges(place) == 2


def test_a_result_that_was_kept_leaves_under_its_own_charge_after_the_records_have_changed(
    place: NodeConfig,
) -> None:
    dies(place, "training-kept")
    bench = process(place)
    bench.site.secret = b"as if the records were others: their fingerprint is"
    asyncio.run(bench.work())
    bench.close()
    assert charges(place) == len(releases(place)) == 1


def test_a_kept_result_whose_charge_is_gone_shows_that_the_ledger_was_rolled_back(
    place: NodeConfig, tmp_path: Path
) -> None:
    work(place)
    copy = tmp_path / "copy"
    shutil.copy(place.ledger, copy)
    dies(place, "training-kept")
    shutil.copy(copy, place.ledger)
    bench = process(place)
    with closing(bench), pytest.raises(LedgerRolledBack):
        asyncio.run(bench.work())


def kills(place: NodeConfig, number: int, chance: random.Random) -> None:
    """So many random deaths, never more than a charge outlives; then everything is brought to an end."""
    at_once = 0
    while number:
        try:
            with killed_at(chance.choice(WHILE_WORKING), chance.choice((1, 1, 1, 2))):
                work(place, 3)
            at_once = 0
        except Killed:
            number, at_once = number - 1, at_once + 1
        if at_once >= MOST_REUSES:
            work(place)
            at_once = 0
    work(place)


def charged_once(place: NodeConfig) -> None:
    with closing(process(place)) as bench:
        done = bench.done
    assert charges(place) == len(releases(place)) == done > 0


def test_charges_are_releases_over_some_random_kills(place: NodeConfig) -> None:
    kills(place, 15, random.Random(1))
    charged_once(place)


@pytest.mark.slow
def test_charges_are_releases_over_500_random_kills(place: NodeConfig) -> None:
    kills(place, 500, random.Random(2))
    charged_once(place)


def _live(place: NodeConfig) -> None:
    while True:
        work(place, 50)


@pytest.mark.slow
def test_charges_are_releases_over_20_kills_by_the_operating_system(place: NodeConfig) -> None:
    """At any instant, not only at those that have a name."""
    chance, fork = random.Random(3), multiprocessing.get_context("fork")
    for _ in range(20):
        before = charges(place) if place.ledger.exists() else 0
        child = fork.Process(target=_live, args=(place,), daemon=True)
        child.start()
        while not place.ledger.exists() or charges(place) <= before:  # at least one round a life
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.3))
        assert child.pid is not None
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    work(place)
    charged_once(place)


# -- what is no crash ---------------------------------------------------------------------------


def test_an_error_after_the_draw_keeps_the_charge(place: NodeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a site could go on until it likes the noise."""
    run = Noisy.run

    async def not_finite(self: Noisy, job: Any) -> Any:
        await run(self, job)
        raise TrainingError("the weights are no longer finite")

    with monkeypatch.context() as patch:
        patch.setattr(Noisy, "run", not_finite)
        with pytest.raises(TrainingError):
            work(place)
    work(place)
    assert (charges(place), len(releases(place))) == (2, 1)


def test_a_refusal_at_the_gate_keeps_the_charge(place: NodeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Gate, *_: Any, **__: Any) -> Any:
        raise CustodyError("not through here")

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "admit", refuse)
        with pytest.raises(CustodyError):
            work(place)
    with closing(process(place)) as bench:
        bench.store.forget(
            0, 0
        )  # what was refused is not sent later on, and its charge pays for nothing else
    work(place)
    assert charges(place) == 2


def test_a_process_does_not_use_its_own_charge_again(tmp_path: Path) -> None:
    """Only its death gives a charge back."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for _ in range(2):
            ledger.spend([STEP], key="run/0/proxy", budget=None, reuse=True)
        assert sum(c.count for c in ledger.charges()) == 2


def test_two_processes_that_live_do_not_share_a_charge(place: NodeConfig) -> None:
    with closing(process(place)) as bench:
        held = lock_ledger(place, bench.site)
        assert held is not None
        assert lock_ledger(place, bench.site) is None
        other = lock_ledger(replace(place, study=replace(place.study, seed=99)), bench.site)
        assert other is not None
        other.close()
        held.close()


# -- what is put back ---------------------------------------------------------------------------


def put_back(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target)


@pytest.mark.parametrize("point", ["charged", "training-kept"])
def test_a_folder_that_is_put_back_alone_pays_for_another_release(place: NodeConfig, point: str) -> None:
    """The ledger is the witness: by it, something has left for the charge."""
    ledger = place.home.parent / "ledger.sqlite"
    dies(place, point)
    shutil.copytree(place.home, place.home.parent / "copy")
    work(place)
    first = sent(place)
    place.ledger.rename(ledger)
    put_back(place.home.parent / "copy", place.home)
    for old in place.home.glob("ledger.sqlite*"):
        old.unlink()
    ledger.rename(place.ledger)
    work(place)
    same = sent(place) == first
    assert same == (point == "training-kept")  # the bytes were in the copy: they may leave again
    assert charges(place) == len(releases(place)) == (1 if same else 2)


def test_a_kept_result_that_is_not_the_one_that_left_does_not_leave(place: NodeConfig) -> None:
    dies(place, "training-kept")
    shutil.copy(place.home / "node.sqlite", place.home / "copy")
    with closing(process(place)) as bench:
        bench.store.forget(0, 0)  # so that another one is drawn for the charge, and leaves
    work(place)
    for old in place.home.glob("node.sqlite*"):
        old.unlink()
    (place.home / "copy").rename(place.home / "node.sqlite")
    work(place)
    assert charges(place) == len(releases(place)) == 2


def test_a_ledger_from_before_a_mark_is_older_than_what_peers_have_seen(place: NodeConfig) -> None:
    """Each mark is an entry: without it, the copy would give the charge back."""
    dies(place, "charged")
    shutil.copy(place.ledger, place.home / "copy")
    work(place)
    with Ledger(place.ledger) as ledger:
        seen = ledger.mark()
    for old in place.home.glob("ledger.sqlite*"):
        old.unlink()
    (place.home / "copy").rename(place.ledger)
    with Ledger(place.ledger) as ledger, pytest.raises(LedgerRolledBack, match="ends at entry 1"):
        ledger.refuse_older_than(seen)


def test_nothing_leaves_that_the_ledger_did_not_pay_for(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(PrivacyError, match="has not paid for"):
            ledger.leaves("run/0/proxy", "", "aa")
        ledger.spend([STEP], key="run/0/proxy", budget=Budget(1, 1e-5))
        ledger.leaves("run/0/proxy", "", "aa")
        ledger.leaves("run/0/proxy", "", "aa")
        assert ledger.counter == 2
        with pytest.raises(PrivacyError, match="has not paid for"):
            ledger.leaves("run/0/proxy", "", "bb")
