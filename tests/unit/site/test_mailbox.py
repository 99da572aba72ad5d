"""Parcels are taken once, in a fixed order, and nobody waits for what will never come."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confrere.core.parcel import Inbox, Parcel
from confrere.site.mailbox import Mailbox, TakenNumbers, TakeRequest

T = TypeVar("T")


def parcel(sender: str, round: int = 0, phase: int = 0, sequence: int = 1, epoch: int = 0) -> Parcel:
    return Parcel("run", epoch, round, phase, sender, "me", sequence, None)


def soon(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 5))


def senders(inbox: Inbox) -> list[str]:
    return [p.sender for p in inbox]


def test_a_parcel_that_comes_twice_counts_once() -> None:
    async def work() -> list[Inbox]:
        box = Mailbox()
        assert box.deliver(parcel("a"))
        assert not box.deliver(parcel("a"))
        first = await box.take(TakeRequest(0, 0, 0, [(0, 0, "a")], 1.0))
        assert not box.deliver(parcel("a"))
        return [first, await box.take(TakeRequest(1, 0, 0, [], 1.0))]

    first, second = soon(work())
    assert (senders(first), senders(second)) == (["a"], [])


def test_the_order_of_arrival_leaves_no_trace() -> None:
    async def work(order: list[str]) -> Inbox:
        box = Mailbox()
        for name in order:
            box.deliver(parcel(name))
        return await box.take(TakeRequest(0, 0, 0, [], 1.0))

    assert senders(soon(work(["c", "a", "b"]))) == senders(soon(work(["b", "c", "a"]))) == ["a", "b", "c"]


def test_waiting_ends_when_the_last_one_arrives() -> None:
    async def work() -> Inbox:
        box = Mailbox()
        taking = asyncio.create_task(box.take(TakeRequest(0, 0, 0, [(0, 0, "a"), (0, 0, "b")], None)))
        await asyncio.sleep(0)
        box.deliver(parcel("a"))
        await asyncio.sleep(0)
        assert not taking.done()
        box.deliver(parcel("b"))
        return await taking

    inbox = soon(work())
    assert (senders(inbox), inbox.missing) == (["a", "b"], ())


@pytest.mark.parametrize("how", ["gone", "ended", "patience"])
def test_nobody_waits_for_what_will_never_come(how: str) -> None:
    async def work() -> Inbox:
        box, ended = Mailbox(), dict[str, int]()
        box.deliver(parcel("a"))
        patience = 0.01 if how == "patience" else None
        taking = asyncio.create_task(
            box.take(TakeRequest(0, 0, 0, [(0, 0, "a"), (0, 0, "b")], patience, ended))
        )
        await asyncio.sleep(0)
        if how == "gone":
            box.gone("b", 0)
        elif how == "ended":
            ended["b"] = 0
            box.wake()
        return await taking

    inbox = soon(work())
    assert (senders(inbox), inbox.missing) == (["a"], ("b",))


def test_who_went_later_is_still_waited_for_and_who_came_back_too() -> None:
    async def work() -> bool:
        box = Mailbox()
        box.gone("a", 5)
        taking = asyncio.create_task(box.take(TakeRequest(4, 0, 0, [(4, 0, "a")], None)))
        await asyncio.sleep(0)
        waits = not taking.done()
        box.deliver(parcel("a", 4))
        await taking
        box.back("a")
        again = asyncio.create_task(box.take(TakeRequest(5, 0, 0, [(5, 0, "a")], None)))
        await asyncio.sleep(0)
        waits = waits and not again.done()
        again.cancel()
        return waits

    assert soon(work())


def test_parcels_of_later_rounds_and_phases_stay_and_late_ones_are_taken() -> None:
    async def work() -> tuple[Inbox, list[Parcel]]:
        box = Mailbox()
        for p in (parcel("a", 0), parcel("b", 1), parcel("c", 1, 1), parcel("d", 2)):
            box.deliver(p)
        return await box.take(TakeRequest(1, 0, 0, [], 1.0)), box.waiting()

    inbox, waiting = soon(work())
    assert senders(inbox) == ["a", "b"]
    assert [p.sender for p in inbox.late] == ["a"]
    assert [p.sender for p in waiting] == ["c", "d"]


def test_a_change_of_membership_cancels_what_was_on_its_way() -> None:
    async def work() -> Inbox:
        box = Mailbox()
        box.deliver(parcel("a", 0, epoch=0))
        box.deliver(parcel("b", 1, epoch=1))
        return await box.take(TakeRequest(1, 0, 1, [], 1.0))

    assert senders(soon(work())) == ["b"]


def test_what_was_taken_long_ago_is_still_known_and_takes_no_room() -> None:
    async def work() -> Mailbox:
        box = Mailbox()
        for number in range(1, 501):
            assert box.deliver(parcel("a", number, sequence=number))
            await box.take(TakeRequest(number, 0, 0, [(number, 0, "a")], 1.0))
        return box

    box = soon(work())
    assert not box.deliver(parcel("a", 3, sequence=3))
    assert not box.deliver(parcel("a", 500, sequence=500))
    assert box.deliver(parcel("a", 501, sequence=501))
    assert box._before.up_to["a", "me"] == 500
    assert not box._before.beyond
    assert set(box._here) == {500, 501}


@given(st.lists(st.integers(1, 30), max_size=40))
def test_numbers_are_a_set_whatever_the_order(numbers: list[int]) -> None:
    found, route = TakenNumbers(), ("a", "me")
    for number in numbers:
        found.add(route, number)
    assert [n for n in range(1, 35) if found.has(route, n)] == sorted(set(numbers))
    gap = next(n for n in range(1, 35) if n not in numbers)
    assert found.beyond.get(route, set()) == {n for n in numbers if n > gap}, (
        "only what lies beyond a gap takes room"
    )


@given(st.permutations(list(range(1, 9))), st.data())
def test_a_number_is_taken_once_in_whatever_order_they_come(order: list[int], data: st.DataObject) -> None:
    """Some are taken before the next one comes, and each is delivered again later."""

    async def work() -> None:
        box = Mailbox()
        taken: list[int] = []
        for number in order:
            assert box.deliver(parcel("a", 1, sequence=number))
            if data.draw(st.booleans()):
                taken += [p.sequence for p in await box.take(TakeRequest(1, 0, 0, [], 1.0))]
            for before in taken:
                assert not box.deliver(parcel("a", 1, sequence=before))
        taken += [p.sequence for p in await box.take(TakeRequest(1, 0, 0, [], 1.0))]
        assert sorted(taken) == list(range(1, 9))

    soon(work())
