"""A member that sends what it should not: it spoils its own part at most, and no message stops or costs the others."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from confrere.core.errors import BadParcel, ConfrereError, PeerError, PrivacyError, StudyError
from confrere.core.sum_terms import SumTerms
from confrere.exchange.secure import masking
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.attempt import AttemptMember
from confrere.exchange.secure.in_process import GivenVector
from confrere.exchange.secure.member_site import MemberSite, MemoryFacts
from confrere.exchange.secure.messages import (
    MOST_ATTEMPTS,
    AttemptId,
    Certificate,
    GivenUp,
    KeyAnnouncement,
    KeyList,
    MaskedVector,
    Message,
    OpenedShares,
    Proposal,
    SealedShares,
    ShareDelivery,
    SumResult,
    VectorHeader,
    Vote,
    decode,
    encode,
    partners_digest,
    sign,
    signed_list,
    statement,
)  # fmt: skip
from confrere.exchange.secure.summing import SummingSite, read_result
from confrere.exchange.secure.verification import check_certificate, check_vector
from tests.masked_world import AGREED, SIZE, agreement_of

ID = AttemptId("run", 0, "proxy", 0, 0)
Tamper = Callable[["Federation", Message], list[Message]]


class Charged(GivenVector):
    """A vector that counts its charges."""

    def __init__(self, steps: Any) -> None:
        super().__init__(steps)
        self.__dict__["charges"] = []

    def charge(self) -> None:
        self.__dict__["charges"].append(1)


class Federation:
    """An honest summing site, the first of the members, and a hostile one, the last, whose messages are tampered with."""

    def __init__(self, n: int = 4, t: int = 1, d: int = 1) -> None:
        self.agreement, self.keys = agreement_of(n, t, d), AGREED[n][1]
        self.context = ID.context(self.agreement)
        self.names = self.agreement.names
        self.leader, self.evil = self.names[0], self.names[-1]
        self.summing = SummingSite(self.agreement, ID, self.leader, self.keys[self.leader])
        self.sources = {name: Charged(np.full(SIZE, 7, dtype=np.int64)) for name in self.names}
        self.members = {name: self.member(name) for name in self.names}
        self.arrived: dict[str, dict[type[Message], Message]] = {name: {} for name in self.names}
        self.seen: list[tuple[str, Message]] = []
        self.refused: list[ConfrereError] = []

    def member(self, name: str) -> AttemptMember:
        site = MemberSite(name, self.keys[name], MemoryFacts())
        return AttemptMember(self.agreement, ID, site, self.sources[name])

    def run(self, tamper: Tamper = lambda _, message: [message], before: tuple[Message, ...] = ()) -> None:
        """One attempt. The hostile member sends `before` ahead of anything else."""
        queue: deque[tuple[str, Message]] = deque((self.evil, message) for message in before)
        queue.extend((name, m) for name, member in self.members.items() for m in member.start())
        while not self.summing.done:
            if not queue:
                self.hand_out(self.summing.advance(), queue, tamper)
                continue
            sender, message = queue.popleft()
            self.seen.append((sender, message))
            try:
                self.hand_out(self.summing.receive(sender, message), queue, tamper)
            except (BadParcel, PeerError) as error:
                self.refused.append(error)

    def hand_out(
        self, found: list[tuple[str, Message]], queue: deque[tuple[str, Message]], tamper: Tamper
    ) -> None:
        for to, message in found:
            self.arrived[to][type(message)] = message
            try:
                replies = self.members[to].receive(self.leader, message)
            except ConfrereError as error:
                self.refused.append(error)
                continue
            for reply in replies:
                queue.extend((to, m) for m in (tamper(self, reply) if to == self.evil else [reply]))

    def signed(self, message: Any) -> Any:
        """A message with the signature of the hostile member."""
        return replace(message, signature=sign(self.keys[self.evil], message.signed_part()))

    @property
    def opened(self) -> tuple[str, ...]:
        """Who is in the opened sum, which must be right."""
        assert self.summing.result is not None, self.summing.given_up
        found = read_result(self.agreement, self.summing.result)
        assert (found.steps == 7 * len(found.survivors)).all()
        return found.survivors

    @property
    def charges(self) -> int:
        return sum(len(source.__dict__["charges"]) for source in self.sources.values())


def test_an_honest_attempt_is_opened() -> None:
    honest = Federation()
    honest.run()
    assert honest.opened == honest.names
    assert honest.charges == 4
    assert all(member.result == honest.summing.result for member in honest.members.values())


# -- who states the sum -----------------------------------------------------------------------------------


def wrong_sum(at: Federation, site: str) -> SumResult:
    certificate = at.arrived[at.evil][Certificate]
    assert isinstance(certificate, Certificate)
    bits = at.agreement.terms.bits
    wrong = masking.packed(masking.to_ring(np.full(SIZE, 666, dtype=np.int64), bits), bits)
    found: SumResult = at.signed(SumResult(at.context, site, certificate, wrong))
    return found


def test_only_the_summing_site_states_the_sum() -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        return [wrong_sum(at, at.evil), message] if isinstance(message, OpenedShares) else [message]

    hostile = Federation()
    hostile.evil = hostile.names[1]  # its message arrives before the sum can be opened
    hostile.run(tamper)
    assert hostile.opened == hostile.names
    assert "was not the summing site" in str(hostile.refused[0])


def test_members_take_a_sum_from_the_summing_site_only_and_from_one_that_had_its_turn() -> None:
    hostile = Federation()
    hostile.run()
    victim = hostile.member(hostile.names[1])
    for site in (hostile.evil, hostile.names[2]):
        with pytest.raises(BadParcel, match="is not the summing site"):
            victim.receive(site, wrong_sum(hostile, site))
        with pytest.raises(BadParcel, match="was not the summing site"):
            victim.receive(hostile.leader, wrong_sum(hostile, site))
    with pytest.raises(BadParcel, match="is not signed by"):
        victim.receive(hostile.leader, wrong_sum(hostile, hostile.leader))
    assert victim.result is None
    victim.succeed(hostile.names[2])  # a successor passes on what its predecessor has opened
    assert hostile.summing.result is not None
    victim.receive(hostile.names[2], hostile.summing.result)
    assert victim.result == hostile.summing.result


def test_summing_sites_follow_one_another_in_the_order_of_the_rota() -> None:
    hostile = Federation()
    member = hostile.members[hostile.names[1]]
    member.succeed(hostile.names[2])
    for name in (hostile.names[0], "elsewhere"):
        with pytest.raises(PeerError, match="does not come after"):
            member.succeed(name)
    second = AttemptMember(
        hostile.agreement,
        replace(ID, turn=1),
        MemberSite(member.name, hostile.keys[member.name], MemoryFacts()),
        GivenVector(np.zeros(SIZE, dtype=np.int64)),
    )
    assert second.summing == hostile.names[1]
    assert second.context != member.context  # the turn is part of every signature


def test_only_the_summing_site_gives_up() -> None:
    hostile = Federation()
    victim = hostile.members[hostile.names[1]]
    victim.start()
    forged = hostile.signed(GivenUp(hostile.context, hostile.evil, "I say so"))
    with pytest.raises(BadParcel, match="is not the summing site"):
        victim.receive(hostile.evil, forged)
    for message in (forged, replace(forged, site=hostile.leader)):
        with pytest.raises(BadParcel):
            victim.receive(hostile.leader, message)
    assert victim.ended is None
    for _, message in hostile.summing.advance():
        victim.receive(hostile.leader, message)
    assert str(victim.ended).startswith("the summing site gave up")


# -- vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [b"", bytes(8 * SIZE), bytes(8 * SIZE + 1)])
def test_a_vector_that_its_member_has_not_signed_is_refused(vector: bytes) -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        return [replace(message, vector=vector)] if isinstance(message, MaskedVector) else [message]

    hostile = Federation()
    hostile.run(tamper)
    assert hostile.opened == hostile.names[:-1]


def test_a_signed_vector_of_another_length_is_refused() -> None:
    hostile = Federation()
    hostile.run()
    (sent,) = [m for by, m in hostile.seen if isinstance(m, MaskedVector) and by == hostile.evil]
    known = {m.site: m for _, m in hostile.seen if isinstance(m, KeyAnnouncement)}
    check_vector(hostile.agreement, known, sent)
    empty = bytes.fromhex(
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )  # SHA-256 of nothing
    header = hostile.signed(replace(sent.header, vector_digest=empty))
    with pytest.raises(BadParcel, match="wrong length"):
        check_vector(hostile.agreement, known, replace(sent, header=header, vector=b""))


# -- charges --------------------------------------------------------------------------------------------------


def test_nothing_is_charged_before_the_shares_of_others_are_here() -> None:
    """A summing site that claims that all have shared out secrets, and has nothing."""
    hostile = Federation(8, 2, 2)
    announced = [m for member in hostile.members.values() for m in member.start()]
    name = hostile.names[5]
    victim = hostile.members[name]
    listed = KeyList(hostile.context, tuple(m for m in announced if isinstance(m, KeyAnnouncement)))
    victim.receive(hostile.leader, listed)
    for junk in (b"", bytes(94)):
        with pytest.raises(BadParcel, match="cannot be decrypted"):
            victim.receive(
                hostile.leader,
                ShareDelivery(hostile.context, hostile.names, dict.fromkeys(hostile.names, junk)),
            )
    assert hostile.charges == 0


@pytest.mark.parametrize("junk", [b"junk", bytes(94)], ids=["short", "forged"])
def test_broken_shares_of_one_member_cost_no_other_member_anything(junk: bytes) -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        if isinstance(message, SealedShares):
            return [at.signed(replace(message, sealed=dict.fromkeys(message.sealed, junk)))]
        return [message]

    hostile = Federation()
    hostile.run(tamper)
    if junk == b"junk":  # the summing site sees that it is no share, and goes on without
        assert hostile.opened == hostile.names[:-1]
    else:  # only holders see it: they refuse, before anything is charged
        assert hostile.summing.given_up is not None
        assert hostile.charges == 0


def test_shares_that_were_not_signed_are_refused() -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        return [replace(message, signature=bytes(64))] if isinstance(message, SealedShares) else [message]

    hostile = Federation()
    hostile.run(tamper)
    assert hostile.opened == hostile.names[:-1]


def test_a_sum_has_few_attempts() -> None:
    for attempt in (-1, MOST_ATTEMPTS):
        with pytest.raises(PrivacyError, match="3 attempts at most"):
            replace(ID, attempt=attempt)


# -- one message against all others ----------------------------------------------------------------------------


def lone_vector(at: Federation) -> Message:
    """A vector that claims to be masked with no other member."""
    known = {at.evil: KeyAnnouncement(at.context, at.evil, b"", b"", b"")}
    digest = partners_digest(at.context, known, (at.evil,))
    header = at.signed(VectorHeader(at.context, at.evil, digest, bytes(32)))
    return MaskedVector(at.context, header, (at.evil,), bytes(8 * SIZE))


EARLY: dict[str, Callable[[Federation], Message]] = {
    "empty vote": lambda at: at.signed(Vote(at.context, at.evil, b"", ())),
    "vote for itself": lambda at: at.signed(Vote(at.context, at.evil, b"", (at.evil,))),
    "vote for all": lambda at: at.signed(Vote(at.context, at.evil, b"", at.names)),
    "no keys": lambda at: KeyList(at.context, ()),
    "too many keys": lambda at: KeyList(at.context, (KeyAnnouncement(at.context, "a", b"", b"", b""),) * 9),
    "keys of a stranger": lambda at: KeyList(at.context, (KeyAnnouncement(at.context, "a", b"", b"", b""),)),
    "vector with no partner": lone_vector,
    "shares for nobody": lambda at: at.signed(SealedShares(at.context, at.evil, {})),
    "opening": lambda at: OpenedShares(at.context, at.evil, b"", {"a": b""}, {}),
}


@pytest.mark.parametrize("early", EARLY)
def test_no_early_message_stops_the_others(early: str) -> None:
    hostile = Federation()
    hostile.run(before=(decode(encode(EARLY[early](hostile))),))
    assert set(hostile.opened) >= set(hostile.names[:-1])


def test_nor_does_an_early_vote_leave_out_another_member() -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        if not isinstance(message, SealedShares):
            return [message]
        listed = at.arrived[at.evil][KeyList]
        assert isinstance(listed, KeyList)
        partners = partners_digest(at.context, {a.site: a for a in listed.announcements}, at.names)
        return [message, at.signed(Vote(at.context, at.evil, partners, (at.names[0], *at.names[2:])))]

    hostile = Federation()
    hostile.run(tamper)
    assert hostile.opened == hostile.names


def test_nor_does_a_vector_that_is_masked_with_itself_alone() -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        if not isinstance(message, MaskedVector):
            return [message]
        listed = at.arrived[at.evil][KeyList]
        assert isinstance(listed, KeyList)
        known = {announced.site: announced for announced in listed.announcements}
        header = replace(message.header, partners=partners_digest(at.context, known, (at.evil,)))
        return [replace(message, header=at.signed(header), sharers=(at.evil,))]

    hostile = Federation()
    hostile.evil = hostile.names[1]  # its vector arrives before those of others
    hostile.run(tamper)
    assert hostile.opened == (hostile.names[0], *hostile.names[2:])


def test_no_list_is_longer_than_the_roster() -> None:
    hostile = Federation()
    (announced,) = hostile.members[hostile.evil].start()
    assert isinstance(announced, KeyAnnouncement)
    message = KeyList(hostile.context, (announced,) * 5)
    for receive in (hostile.summing.receive, hostile.members[hostile.names[1]].receive):
        with pytest.raises(BadParcel, match="lists 5 of 4 members"):
            receive(hostile.leader, message)


def test_nor_does_a_vector_before_anyone_was_asked_for_one() -> None:
    """It is signed, and masked with the right keys."""

    def tamper(at: Federation, message: Message) -> list[Message]:
        if not isinstance(message, SealedShares):
            return [message]
        listed = at.arrived[at.evil][KeyList]
        assert isinstance(listed, KeyList)
        known = {announced.site: announced for announced in listed.announcements}
        vector = bytes(8 * SIZE)
        partners = partners_digest(at.context, known, at.names)
        header = VectorHeader(at.context, at.evil, partners, hashlib.sha256(vector).digest())
        return [MaskedVector(at.context, at.signed(header), at.names, vector)]

    hostile = Federation()
    hostile.run(tamper)
    assert hostile.opened == hostile.names[:-1]


@pytest.mark.parametrize("early", EARLY)
def test_nor_does_one_in_the_place_of_the_right_one(early: str) -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        return [EARLY[early](at)]

    hostile = Federation()
    hostile.run(tamper)
    assert hostile.opened == hostile.names[:-1]


def test_a_vote_for_another_list_does_not_stop_the_others() -> None:
    def tamper(at: Federation, message: Message) -> list[Message]:
        if isinstance(message, Vote):
            return [at.signed(replace(message, survivors=message.survivors[1:]))]
        return [message]

    hostile = Federation()
    hostile.run(tamper)
    assert hostile.opened == hostile.names


@pytest.mark.parametrize("share", [b"", bytes(33), b"\xff" * 33], ids=["none", "another", "malformed"])
@pytest.mark.parametrize(("n", "t", "d"), [(4, 1, 1), (8, 2, 2)])
def test_wrong_shares_of_one_holder_are_left_out(n: int, t: int, d: int, share: bytes) -> None:
    """The hostile holder opens first; others suffice."""

    def tamper(at: Federation, message: Message) -> list[Message]:
        if not isinstance(message, OpenedShares):
            return [message]
        return [replace(message, seed_shares=dict.fromkeys(message.seed_shares, share))]

    hostile = Federation(n, t, d)
    hostile.evil = hostile.names[0]
    hostile.run(tamper)
    assert hostile.opened == hostile.names


MESSAGES: tuple[type[Message], ...] = (
    KeyAnnouncement, KeyList, SealedShares, ShareDelivery, MaskedVector, Proposal, Vote, Certificate, OpenedShares,
    SumResult, GivenUp,
)  # fmt: skip


OTHERS: dict[type, tuple[Any, ...]] = {
    bytes: (b"", bytes(32), bytes(64)),
    str: ("", "elsewhere", "\0"),
    tuple: ((), ("elsewhere",), ("site-00", "site-00")),
    dict: ({}, {"elsewhere": b""}, {"site-00": b"x"}),
}


def test_no_field_of_any_message_raises_anything_but_a_refusal() -> None:
    """Every message of an honest attempt, with each field replaced in turn, to a fresh summing site and a fresh member."""
    honest = Federation()
    honest.run()
    messages = [m for _, m in honest.seen] + [m for found in honest.arrived.values() for m in found.values()]
    assert {type(m) for m in messages} | {GivenUp} == set(MESSAGES)
    for message in messages:
        for field in fields(message):
            if field.name == "context":
                continue
            value = getattr(message, field.name)
            if field.name in ("announcements", "headers"):
                others: tuple[Any, ...] = ((), value * 2, tuple(replace(m, site="elsewhere") for m in value))
            else:
                others = OTHERS.get(type(value), ())
            for other in others:
                broken = replace(message, **{field.name: other})
                hostile = Federation()
                first = [a for member in hostile.members.values() for a in member.start()]
                for a in first:
                    assert isinstance(a, KeyAnnouncement)
                    hostile.summing.receive(a.site, a)
                for receive in (hostile.summing.receive, hostile.members[hostile.names[1]].receive):
                    try:
                        receive(hostile.leader, broken)
                    except (BadParcel, PeerError):
                        continue


# -- bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Vote(b"c", "a", b"", ("\ud800",), b"x"),
        Vote(b"c", "\ud800", b"", (), b"x"),
        Certificate(b"c", b"", (), {"\ud800": b"x"}),
        GivenUp(b"c", "a", "\udfff"),
    ],
)
def test_text_that_has_no_bytes_is_no_message(message: Message) -> None:
    with pytest.raises(BadParcel):
        decode(encode(message))


def test_every_byte_of_a_message_belongs_to_one_field() -> None:
    whole = encode(SealedShares(b"c" * 32, "a", {"b": b"123", "c": b"45"}, b"s"))
    for data in (whole + b"x", whole[:-1]):
        with pytest.raises(BadParcel):
            decode(data)


def test_a_small_message_is_not_read_as_a_large_one() -> None:
    """The former form, in which fields pointed to bytes, and many that all name the same length."""
    blob = bytes(1 << 16)
    for at in ([1, (1 << 16) - 1], (1 << 16) - 1):
        sealed = {str(k): at for k in range(600)}
        context = [0, 1] if isinstance(at, list) else 1
        text = json.dumps(
            ["SealedShares", {"context": context, "site": "a", "sealed": sealed, "signature": context}]
        ).encode()
        with pytest.raises(BadParcel):
            decode(len(text).to_bytes(4, "big") + text + blob)


# -- signatures -------------------------------------------------------------------------------------------------


def test_members_with_one_key_are_refused() -> None:
    members = AGREED[4][0]
    same = tuple(replace(member, key=members[0].key) for member in members)
    with pytest.raises(StudyError, match="the same signing key"):
        Agreement(same, SumTerms(4, 1, 1, noise_std=1.5, clip=1.0, size=SIZE))


def test_a_signature_counts_for_its_own_member_only() -> None:
    hostile = Federation()
    stated = statement(hostile.context, b"", hostile.names)
    signature = sign(hostile.keys[hostile.evil], signed_list(stated, hostile.evil))
    for name in hostile.names[:-1]:
        assert Vote(hostile.context, name, b"", hostile.names).signed_part() != signed_list(
            stated, hostile.evil
        )
        with pytest.raises(PeerError, match="1 members have signed"):
            check_certificate(
                hostile.agreement,
                Certificate(hostile.context, b"", hostile.names, {hostile.evil: signature, name: signature}),
            )
