"""What a node keeps of the messages of masked sums, and whom it answers when a sum is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from confrere.core.custody import Custody, public
from confrere.core.events import Event
from confrere.core.parcel import Parcel
from confrere.node.replay import CapReached
from confrere.node.sum_messages import MOST_RESULTS, MOST_STEPS, MOST_TURNS, MessageContext, SumMessages
from confrere.site.masked_messages import Place, TurnStart, as_message, content_of
from confrere.site.masked_sums import Answers
from confrere.transport.receipt import ACCEPTED, Outcome, Receipt

ME, PEER = "site0", "site1"
RESULT = TurnStart(since=0, attempt=0, at=1, result=b"x" * 1000)
MOVED_ON = TurnStart(moved=True, at=1)


class Sealed:
    def __init__(self, parcel: Parcel) -> None:
        self.content = content_of(parcel)
        self.size = len(self.content)

    def pieces(self) -> list[bytes]:
        return [self.content]


class Wire:
    """A node's messages without a node: what leaves is kept in `sent`."""

    def __init__(self, cap: int | None = None, most_bytes: int = 2**20) -> None:
        self.answers, self.sent, self.events, self.left = Answers(), list[TurnStart](), list[Event](), 0
        self.processes, self.cap = {PEER: "first"}, cap
        out = MessageContext(ME, Sealed, self.count, self.events.append, SimpleNamespace())  # type: ignore[arg-type]
        self.messages = SumMessages(out, 60.0, 4, self.answers, most_bytes)
        self.messages.links = self  # type: ignore[assignment]

    async def count(self, size: int) -> None:
        if self.cap is not None and self.left + size > self.cap:
            raise CapReached("its own cap")
        self.left += size

    async def send(self, to: str, name: str, body: Any) -> Receipt:
        self.sent.append(TurnStart.read(body.read()))
        return ACCEPTED

    def hear(self, place: Place, round: int = 0, content: bytes = b"") -> Outcome:
        message = as_message(content, Custody.PUBLIC)
        parcel = Parcel("run", 0, round, place.phase, PEER, ME, place.phase, message, {"since": public(0)})
        return self.messages.receive(parcel).outcome

    async def replies(self) -> list[TurnStart]:
        await asyncio.gather(*self.messages._tasks)
        return self.sent


def in_loop(test: Callable[[Wire], Any], **options: Any) -> None:
    async def run() -> None:
        await test(Wire(**options))

    asyncio.run(run())


@pytest.mark.parametrize("turn", [1, 3])
def test_numbers_for_a_later_turn_are_answered_when_the_sum_ends_before_it(turn: int) -> None:
    async def test(wire: Wire) -> None:
        wire.answers.begin(0, 0)
        assert wire.hear(Place(turn, 0)) is Outcome.ACCEPTED
        assert await wire.replies() == []
        wire.answers.end(0, RESULT, {}, Custody.PUBLIC)
        assert await wire.replies() == [RESULT]

    in_loop(test)


def test_a_member_that_asks_too_late_is_told_in_which_turn_it_can_take_part() -> None:
    async def test(wire: Wire) -> None:
        wire.answers.begin(0, 0)
        assert wire.hear(Place(0, 0)) is Outcome.ACCEPTED
        assert await wire.replies() == []
        wire.answers.begin(0, 3)
        assert await wire.replies() == [TurnStart(moved=True, turn=3)]

    in_loop(test)


def test_a_member_that_asks_for_a_later_turn_is_not_waited_for_in_this_one() -> None:
    async def test(wire: Wire) -> None:
        assert wire.hear(Place(3, 0)) is Outcome.ACCEPTED
        assert await wire.messages.take(0, 0, Place(1, 0), [PEER]) == []
        assert len(await wire.messages.take(0, 0, Place(3, 0), [PEER])) == 1

    in_loop(test)


@pytest.mark.parametrize("place", [Place(MOST_TURNS, 0), Place(10**6, 3), Place(0, MOST_STEPS + 1)])
def test_places_that_no_sum_has_are_refused(place: Place) -> None:
    async def test(wire: Wire) -> None:
        assert wire.hear(place) is Outcome.REFUSED
        assert wire.hear(Place(place.turn, place.step, answers=True)) is Outcome.REFUSED
        assert wire.messages.latest == {}

    in_loop(test)


def test_only_the_summing_site_of_a_turn_answers_and_is_asked() -> None:
    async def test(wire: Wire) -> None:
        wire.answers.expect(0, 0, [ME, PEER, "site2"])
        assert wire.hear(Place(0, 1)) is Outcome.ACCEPTED
        assert wire.hear(Place(1, 1)) is Outcome.REFUSED
        assert wire.hear(Place(1, 1, answers=True)) is Outcome.ACCEPTED
        assert wire.hear(Place(0, 1, answers=True)) is Outcome.REFUSED
        assert wire.hear(Place(2, 1, answers=True)) is Outcome.REFUSED
        assert wire.hear(Place(3, 1)) is Outcome.REFUSED  # there are three turns
        assert wire.hear(Place(2, 1, answers=True), round=1) is Outcome.ACCEPTED  # not known yet

    in_loop(test)


def test_the_bytes_that_are_kept_of_a_peer_are_bounded() -> None:
    async def test(wire: Wire) -> None:
        found = [wire.hear(Place(0, step), content=bytes(400)) for step in range(1, 5)]
        assert found == [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.DEFERRED, Outcome.DEFERRED]
        assert len(await wire.messages.take(0, 0, Place(0, 1), [PEER])) == 1
        assert wire.hear(Place(0, 3), content=bytes(400)) is Outcome.ACCEPTED

    in_loop(test, most_bytes=1000)


def test_a_process_is_sent_an_opened_sum_once() -> None:
    async def test(wire: Wire) -> None:
        wire.answers.end(0, RESULT, {}, Custody.PUBLIC)
        for _ in range(3):
            assert wire.hear(Place(0, 0)) is Outcome.ACCEPTED
            await wire.replies()
        assert wire.sent == [RESULT, MOVED_ON, MOVED_ON]
        for number in range(10):
            wire.processes[PEER] = f"process {number}"
            wire.hear(Place(0, 0))
            await wire.replies()
        assert wire.sent.count(RESULT) == MOST_RESULTS

    in_loop(test)


def test_an_answer_that_the_cap_forbids_ends_no_sum() -> None:
    async def test(wire: Wire) -> None:
        wire.answers.end(0, RESULT, {}, Custody.PUBLIC)
        assert wire.hear(Place(0, 0)) is Outcome.ACCEPTED
        assert await wire.replies() == []
        assert "its own cap" in wire.events[-1].data["text"]
        assert wire.hear(Place(0, 1), round=1) is Outcome.ACCEPTED
        assert len(await wire.messages.take(1, 0, Place(0, 1), [PEER])) == 1

    in_loop(test, cap=100)


def test_a_failure_is_raised_once() -> None:
    async def test(wire: Wire) -> None:
        wire.messages.failure = CapReached("its own cap")
        assert wire.hear(Place(0, 1)) is Outcome.ACCEPTED
        with pytest.raises(CapReached):
            await wire.messages.take(0, 0, Place(0, 1), [PEER])
        assert len(await wire.messages.take(0, 0, Place(0, 1), [PEER])) == 1

    in_loop(test)
