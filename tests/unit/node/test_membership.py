"""Who belongs to a run, where most of them are, and who is waited for."""

from __future__ import annotations

import asyncio
import time as clock
from pathlib import Path
from types import SimpleNamespace

import pytest

from confrere.node.failpoints import POINTS, armed
from confrere.node.membership import churn_of, front, leave_messages
from confrere.node.replay import DurableMailbox, OutboxTransport
from confrere.node.shortage import Shortage
from confrere.node.start import StartConditions
from confrere.node.status import ago
from confrere.node.store import Store
from confrere.study import Caps
from confrere.transport import wire
from tests.unit.node.sites import changed, settings


def test_a_minority_cannot_push_a_site_ahead() -> None:
    assert front({"a": 7, "b": 7, "c": 999}, ["a", "b", "c"]) == 7
    assert front({"a": 7, "b": 999}, ["a", "b"]) == 7
    assert front({"a": 9}, ["a", "b", "c"]) == -1
    assert front({}, []) == -1


def test_the_first_word_of_who_leaves_counts_and_starts_an_epoch(tmp_path: Path) -> None:
    config = settings(tmp_path)["site0"]
    store = Store(tmp_path / "node.sqlite", run="r", site="site0")
    store.leaves("site1", 3)
    store.leaves("site1", 9)
    churn = churn_of(config, store.leaving())
    assert churn.members(2, ["site0", "site1", "site2"]) == ("site0", "site1", "site2")
    assert churn.members(3, ["site0", "site1", "site2"]) == ("site0", "site2")
    assert (churn.epoch(2), churn.epoch(3)) == (0, 1)


def test_a_farewell_is_signed_and_made_again_is_the_same(tmp_path: Path) -> None:
    config = settings(tmp_path)["site0"]
    one, two = leave_messages(config, 3, ()), leave_messages(config, 3, ())
    assert [b"".join(d.pieces()) for d in one] == [b"".join(d.pieces()) for d in two]
    assert {d.parcel.receiver for d in one} == {"site1", "site2"}
    for debit in one:
        wire.verify(wire.decode(b"".join(debit.pieces())), config.identity.member.key)
    assert {d.parcel.receiver for d in leave_messages(config, 3, ["site2"])} == {"site1"}


def test_a_round_begins_when_all_were_there_once_or_patience_is_over(tmp_path: Path) -> None:
    async def nothing(shortage: Shortage) -> None: ...

    async def story() -> None:
        config = settings(tmp_path)["site0"]
        store = Store(tmp_path / "node.sqlite", run="r", site="site0")
        desk = OutboxTransport(store, config.identity.key, lambda size: None, nothing)
        mailbox, here = DurableMailbox(store, desk, nothing), {"site1"}
        beginning = StartConditions(config, lambda: frozenset(here))
        peers = ["site1", "site2"]
        assert "site2" in beginning.obstacle(peers, mailbox, False, 0.0)
        assert beginning.obstacle(peers, mailbox, True, 0.0) == "paused by its owner"
        assert beginning.obstacle(peers, mailbox, False, config.study.patience + 1) == ""
        assert beginning.obstacle(peers, mailbox, False, 0.0) == ""  # from now on without it
        mailbox.gone("site1", 0)
        assert beginning.obstacle(peers, mailbox, False, 0.0) == "no parcel from any peer yet"
        here.clear()
        assert beginning.obstacle(peers, mailbox, False, 1e9) == "no peer can be reached"  # never alone
        assert beginning.obstacle([], mailbox, False, 0.0) == ""  # a study that exchanges nothing
        store.close()

    asyncio.run(story())


def test_no_round_begins_outside_of_a_sites_own_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(shortage: Shortage) -> None: ...

    async def story() -> None:
        config = changed(settings(tmp_path)["site0"], caps=Caps(hours=[22, 6]))
        store = Store(tmp_path / "node.sqlite", run="r", site="site0")
        mailbox = DurableMailbox(
            store, OutboxTransport(store, config.identity.key, lambda size: None, nothing), nothing
        )
        beginning = StartConditions(config, lambda: frozenset({"site1"}))
        for hour, reason in ((12, "outside of its hours ([22, 6])"), (23, ""), (5, ""), (6, "outside")):
            monkeypatch.setattr(clock, "localtime", lambda hour=hour: SimpleNamespace(tm_hour=hour))
            found = beginning.obstacle(["site1"], mailbox, False, 1e9)
            assert found.startswith(reason) if reason else found == ""
        store.close()

    asyncio.run(story())


def test_a_failpoint_strikes_once_and_when_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, how: struck.append(how))
    reach = armed("debited@2")
    for point in (*POINTS, *POINTS, *POINTS):
        reach(point)
    assert len(struck) == 1


def test_times_are_said_in_words() -> None:
    assert ago(None) == "never"
    import time

    assert ago(time.time()) == "now"
    assert ago(time.time() - 7300) == "2 hours ago"
