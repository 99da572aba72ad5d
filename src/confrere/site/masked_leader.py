"""A turn of a masked sum in which this site adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confrere.core.custody import Custody, Scalar, strictest, total
from confrere.core.errors import BadParcel, PeerError
from confrere.core.parcel import Parcel
from confrere.core.protocols import OpenedSum
from confrere.exchange.secure import masking
from confrere.exchange.secure.messages import KeyAnnouncement, Message, SumResult, encode
from confrere.exchange.secure.summing import SummingSite, read_result
from confrere.exchange.secure.verification import check_announcement, check_lengths, check_result
from confrere.exchange.sums import SINCE, Summand, common_state, sum_scalars, version_after
from confrere.site.masked_call import STEPS, Turn, TurnEnd, plain_vector
from confrere.site.masked_messages import (
    Place,
    TurnStart,
    as_message,
    content_of,
    divided,
    joined,
    joined_plain,
)
from confrere.site.masked_sums import SumOutcome

DOWN_POINTS = (
    "sum-told", "sum-keys-told", "sum-shares-told", "sum-list-told", "sum-certificate-told", "sum-result-told",
)  # fmt: skip
"""The failpoints after the answer of each step to one member was handed to the connection."""


@dataclass(frozen=True)
class _Opened:
    """What a summing site has opened: the sum, the custody of what went into it, and the answer that states it."""

    survivors: tuple[str, ...]
    steps: NDArray[np.int64]
    custody: Custody
    last: int
    message: bytes


class LeaderTurn:
    """A turn in which this site adds up."""

    def __init__(self, turn: Turn) -> None:
        self.turn, self.call = turn, turn.call
        self.at, self.masks = turn.call.at, turn.call.masks
        self.held = [turn.call.opens_as]

    async def run(self) -> SumOutcome | TurnEnd:
        call, at, turn = self.call, self.at, self.turn
        if self.masks.log is not None and await self.masks.log.closed(at.round) >= turn.number:
            return TurnEnd.LOST  # the process that led this turn has died
        self.masks.answers.begin(at.round, turn.number)
        arrived = {p.sender: p for p in await self._collect(0, call.others)}
        summands = [Summand(at.me, None, call.numbers)]
        summands += [Summand(name, None, parcel.scalars) for name, parcel in arrived.items()]
        state = common_state(summands)
        bundles = {name: self._handed_over(parcel) for name, parcel in arrived.items()}
        bundles[at.me] = turn.handover()
        there = sorted(s.site for s in summands if s.since == state and s.site in call.agreement.names)
        continued = self._continued(bundles)
        if continued:  # a member without its part of the attempt cannot go on with it
            there = [name for name in there if bundles[name]]
        counted = {s.site: s for s in summands if s.scalars.keys() >= set(call.scalars)}
        reason = self._too_few(there, counted)
        diverged = (
            bool(reason) and not continued and len(summands) >= call.agreement.terms.quorum > len(there)
        )
        if diverged:  # no state is that of enough sites: this site's is to be the common one
            state = call.since
        at.missing.update(s.site for s in summands if s.since != state and s.site != at.me)
        if self.masks.log is not None:
            await self.masks.log.close(at.round, turn.number)
        self.masks.passing("sum-begun")
        text = TurnStart(state, reason, moved=bool(reason) and continued).written()
        for name in arrived:
            await self._answer(0, name, text)
        if reason:
            call.say("was given up", reason)
            return (
                TurnEnd.GIVEN_UP
                if continued
                else SumOutcome(behind=state != call.since, led=True, diverged=diverged)
            )
        followers = [name for name in there if name != at.me]
        if self.masks.plain:
            found: _Opened | None = await self._plain(followers, at.me in there)
        else:
            found = await self._masked(followers, at.me in there, bundles)
        if found is None:
            return SumOutcome(behind=True) if self.masks.channel is None else TurnEnd.GIVEN_UP
        return await self._state(found, followers, (state, summands, counted))

    async def _state(
        self,
        found: _Opened,
        followers: Sequence[str],
        numbers: tuple[int, list[Summand], Mapping[str, Summand]],
    ) -> SumOutcome:
        """Send the opened sum, with the sums of the numbers, to all that are in it."""
        call, (state, summands, counted) = self.call, numbers
        chosen = [counted[name] for name in found.survivors if name in counted]
        held = strictest([found.custody, *(s.scalars[SINCE].custody for s in summands if SINCE in s.scalars)])
        sums = {name: total(s.scalars[name] for s in chosen) for name in call.scalars}
        version = version_after(state, self.at.round, found.survivors)
        opened = OpenedSum(call.share.opened(found.steps, held), sums, state, version)
        self.masks.passing("sum-opened")
        for name in followers:
            await self._answer(found.last, name, found.message, sum_scalars(opened), held)
        if state != call.since or not call.plausible(found.steps, found.survivors):
            return SumOutcome(behind=True)
        return SumOutcome(opened, led=True, attempt=self.turn.attempt, result=found.message)

    def _too_few(self, there: Sequence[str], counted: Mapping[str, Summand]) -> str:
        """Why there will be no sum; empty if there will be. Nothing was charged so far, unless a successor leads."""
        agreement = self.call.agreement
        if len(there) < agreement.terms.quorum:
            return f"{len(there)} of {agreement.n} members are there, and the noise needs {agreement.terms.quorum}"
        if not any(name in counted for name in there):
            return "no site has anything left of its budget"
        return ""

    async def _plain(self, followers: Sequence[str], joins: bool) -> _Opened | None:
        call, terms = self.call, self.call.agreement.terms
        vectors = {self.at.me: plain_vector(call)} if joins else {}
        for parcel in await self._collect(1, followers):
            vectors[parcel.sender] = content_of(parcel)
        survivors = tuple(sorted(vectors))
        if len(survivors) < terms.quorum:
            reason = f"only {len(survivors)} of {call.agreement.n} members sent a vector"
            call.say("was given up", reason)
            for name in followers:
                await self._answer(1, name, b"")
            return None
        ring = np.zeros(terms.size, dtype=np.uint64)
        for name in survivors:
            ring += masking.unpacked(vectors[name], terms.size, terms.bits)
        await self.at.reach("before-answer")
        message = joined_plain(survivors, masking.packed(ring, terms.bits))
        return _Opened(survivors, masking.from_ring(ring, terms.bits), strictest(self.held), 1, message)

    async def _masked(
        self, followers: Sequence[str], joins: bool, bundles: Mapping[str, Sequence[Message]]
    ) -> _Opened | None:
        call, me = self.call, self.at.me
        site = self.masks.member_site(me)
        summing = SummingSite(call.agreement, call.attempt_id(self.turn.attempt), me, site.key)
        outgoing: list[tuple[str, Message]] = []
        for name in (n for n in bundles if n in followers):
            outgoing += await self._fed(summing, name, bundles[name])
        own = [*bundles[me], *call.join(self.turn.attempt, me)] if joins else []
        awaited = followers
        for step in self.turn.steps:
            outgoing += await self._fed(summing, me, own)
            arrived = await self._collect(step, awaited)
            awaited = [parcel.sender for parcel in arrived]  # a silent member is waited for once
            for parcel in arrived:
                outgoing += await self._fed(summing, parcel.sender, self._messages(parcel))
            if not outgoing and not summing.done:
                outgoing = await self.masks.work(summing.advance)
            if step == STEPS:
                await self.at.reach("before-answer")
            if summing.result is not None:
                found = read_result(call.agreement, summing.result)
                return _Opened(
                    found.survivors, found.steps, strictest(self.held), step, encode(summing.result)
                )
            for name in followers:
                await self._answer(step, name, joined([m for to, m in outgoing if to == name][-1:]))
            if summing.done:
                call.say("was given up", str(summing.given_up))
                return None
            to_me = [message for to, message in outgoing if to == me and joins]
            own = [reply for message in to_me for reply in await call.receive(me, message)]
            outgoing = []
        return None

    async def _fed(
        self, summing: SummingSite, sender: str, messages: Sequence[Message]
    ) -> list[tuple[str, Message]]:
        """Hand messages of a member to the summing site; what must not be believed is reported and changes nothing."""
        found: list[tuple[str, Message]] = []
        for message in messages:
            try:
                found += await self.masks.work(summing.receive, sender, message)
            except (BadParcel, PeerError) as error:
                self.call.say(f'has a message of "{sender}" that was refused', str(error))
        return found

    def _handed_over(self, parcel: Parcel) -> list[Message]:
        """What a member sends to a successor of the attempt: nothing unless it shows that it has taken part in it."""
        messages = self._messages(parcel) if self.turn.successor else []
        return messages if self._took_part(parcel.sender, messages) else []

    def _took_part(self, name: str, messages: Sequence[Message]) -> bool:
        """Whether there is a sum among the messages, or keys that the member has signed for this attempt."""
        agreement, which = self.call.agreement, self.call.attempt_id(self.turn.attempt)
        context, rota = which.context(agreement), agreement.rota(which.turn)
        for message in messages:
            try:
                check_lengths(agreement, message)
                if isinstance(message, SumResult) and message.context == context:
                    check_result(agreement, message, rota)
                    return True
                if isinstance(message, KeyAnnouncement) and message.site == name:
                    check_announcement(agreement, context, message)
                    return True
            except (BadParcel, PeerError) as error:
                self.call.say(f'has a message of "{name}" that was refused', str(error))
        return False

    def _continued(self, bundles: Mapping[str, Sequence[Message]]) -> bool:
        """Whether the attempt had begun with an earlier summing site: this site knows it, or an honest member says so."""
        begun = sum(map(bool, bundles.values()))
        return bool(bundles[self.at.me]) or begun > self.call.agreement.terms.colluding

    def _messages(self, parcel: Parcel) -> list[Message]:
        try:
            return divided(content_of(parcel))
        except BadParcel as error:
            self.call.say(f'has a message of "{parcel.sender}" that was refused', str(error))
            return []

    async def _answer(
        self,
        step: int,
        to: str,
        content: bytes,
        numbers: Mapping[str, Scalar] | None = None,
        custody: Custody = Custody.PUBLIC,
    ) -> None:
        place = Place(self.turn.number, step, answers=True)
        await self.at.send_message(to, place, as_message(content, custody), numbers or {})
        self.masks.passing(DOWN_POINTS[min(step, STEPS)])

    async def _collect(self, step: int, senders: Sequence[str]) -> list[Parcel]:
        found = await self.at.take_messages(Place(self.turn.number, step), senders)
        found = [parcel for parcel in found if parcel.model is not None]
        if step:
            self.held += [parcel.model.custody for parcel in found if parcel.model is not None]
        return found
