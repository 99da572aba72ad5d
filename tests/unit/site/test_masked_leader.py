"""A summing site: which messages of a member it believes at the beginning of a turn, and for whom it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from confrere.core.custody import Custody, Scalar
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.exchange.secure.attempt import AttemptMember
from confrere.exchange.secure.member_site import MemberSite, MemoryFacts
from confrere.exchange.secure.messages import AttemptId, KeyAnnouncement, Message
from confrere.site.masked_call import STEPS
from confrere.site.masked_leader import LeaderTurn
from confrere.site.masked_messages import Place, as_message, content_of, divided, joined
from confrere.site.masked_sums import at_once
from tests.masked_world import AGREED, SIZE, agreement_of

N = 6
ATTEMPT = AttemptId("run", 3, "proxy", 0, 0)


class Source:
    def charge(self) -> None: ...

    def draw(self) -> Any:
        return np.ones(SIZE, dtype=np.int64)


class Round:
    """The members of a sum around a summing site that is not in it. One of them, if any, sends nothing."""

    def __init__(self, successor: int = 0, silent: str = "") -> None:
        self.agreement, self.keys, self.silent = agreement_of(N, 1, 2), AGREED[N][1], silent
        self.me, *self.others = self.agreement.names
        self.members = {name: self.member(name) for name in self.others}
        self.outgoing: dict[str, list[Message]] = {name: m.start() for name, m in self.members.items()}
        self.asked: list[tuple[int, list[str]]] = []
        self.said: list[str] = []
        site = MemberSite(self.me, self.keys[self.me], MemoryFacts())
        masks = SimpleNamespace(
            member_site=lambda name: site, work=at_once, passing=lambda point: None, channel=None
        )
        call = SimpleNamespace(
            at=self, masks=masks, agreement=self.agreement, opens_as=Custody.PUBLIC,
            attempt_id=lambda attempt: ATTEMPT, say=lambda *what: self.said.append(" ".join(what)),
        )  # fmt: skip
        turn = SimpleNamespace(call=call, attempt=0, successor=successor, number=0, steps=range(1, STEPS + 1))
        self.leader = LeaderTurn(turn)  # type: ignore[arg-type]

    def member(self, name: str, attempt: AttemptId = ATTEMPT) -> AttemptMember:
        site = MemberSite(name, self.keys[name], MemoryFacts())
        return AttemptMember(self.agreement, attempt, site, Source())

    def parcel(self, name: str, messages: Sequence[Message], step: int = 0) -> Parcel:
        phase, message = Place(0, step).phase, as_message(joined(messages), Custody.PUBLIC)
        return Parcel("run", 0, 3, phase, name, self.me, phase, message, {})

    # -- what a summing site calls ----------------------------------------------------------------------

    async def reach(self, point: str) -> None: ...

    async def send_message(
        self, to: str, place: Place, message: Model, scalars: Mapping[str, Scalar]
    ) -> None:
        content = content_of(Parcel("run", 0, 3, place.phase, self.me, to, 0, message, scalars))
        self.outgoing[to] = [
            reply for m in divided(content) for reply in self.members[to].receive(self.me, m)
        ]

    async def take_messages(self, place: Place, senders: Sequence[str]) -> list[Parcel]:
        self.asked.append((place.step, list(senders)))
        there = [name for name in senders if name != self.silent]
        return [self.parcel(name, self.outgoing[name], place.step) for name in there]


def test_a_member_that_goes_silent_is_waited_for_once() -> None:
    found = Round(silent="site-03")
    opened = asyncio.run(found.leader._masked(found.others, False, {}))
    assert opened is not None
    assert opened.survivors == tuple(name for name in found.others if name != "site-03")
    assert [step for step, senders in found.asked if "site-03" in senders] == [1]
    assert [step for step, _ in found.asked] == list(range(1, STEPS + 1))


def test_at_the_beginning_of_an_attempt_nothing_is_handed_over() -> None:
    found = Round()
    assert all(
        found.leader._handed_over(found.parcel(name, found.outgoing[name])) == [] for name in found.others
    )


def test_a_successor_believes_a_member_only_if_it_has_signed_keys_for_the_attempt() -> None:
    found, name = Round(successor=1), "site-03"
    real = found.outgoing[name]
    assert found.leader._handed_over(found.parcel(name, real)) == real
    junk = KeyAnnouncement(ATTEMPT.context(found.agreement), name, b"", b"", b"", b"")
    other = found.member(name, AttemptId("run", 3, "proxy", 0, 1)).start()
    for messages in ([junk], found.outgoing["site-02"], other):
        assert found.leader._handed_over(found.parcel(name, messages)) == []


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("others", "enough"), [(0, False), (1, False), (2, True)])
def test_an_attempt_goes_on_if_this_site_or_an_honest_member_has_taken_part(
    own: bool, others: int, enough: bool
) -> None:
    found = Round(successor=1)
    bundles = {name: found.outgoing[name] if n < others else [] for n, name in enumerate(found.others)}
    bundles[found.me] = found.member(found.me).start() if own else []
    assert found.leader._continued(bundles) is (own or enough)
