"""A turn of a masked sum in which another site adds up."""

from __future__ import annotations

from collections.abc import Mapping

from confrere.core.custody import Scalar
from confrere.core.errors import BadParcel, LedgerRolledBack, PeerError
from confrere.core.parcel import Parcel
from confrere.exchange.secure import masking
from confrere.exchange.secure.attempt import VECTOR
from confrere.exchange.secure.messages import GivenUp, SumResult, decode
from confrere.exchange.secure.verification import check_result
from confrere.site.masked_call import STEPS, Turn, TurnEnd, plain_vector
from confrere.site.masked_messages import (
    Place,
    TurnStart,
    as_message,
    content_of,
    divided,
    divided_plain,
    joined,
)
from confrere.site.masked_sums import SumOutcome

UP_POINTS = (
    "sum-numbers-sent", "sum-keys-sent", "sum-shares-sent", "sum-vector-sent", "sum-vote-sent", "sum-opening-sent",
)  # fmt: skip
"""The failpoints after each step was handed to the connection."""


class MemberTurn:
    """A turn in which another site adds up."""

    def __init__(self, turn: Turn) -> None:
        self.turn, self.call = turn, turn.call

    async def run(self) -> SumOutcome | TurnEnd:
        call, turn = self.call, self.turn
        call.masks.answers.begin(call.at.round, turn.number)
        await self._up(0, joined(turn.handover()), call.numbers)
        answer = await self._down(0)
        if answer is None:
            return self._lost()
        try:
            start = TurnStart.read(content_of(answer))
            decided = self._decided(answer, start)
        except (BadParcel, PeerError) as error:
            call.say(f'has an answer of "{turn.leader}" that was refused', str(error))
            return TurnEnd.LOST
        if decided is not None:
            return decided
        return await (self._plain() if call.masks.plain else self._masked())

    def _decided(self, answer: Parcel, start: TurnStart) -> SumOutcome | TurnEnd | None:
        """What the first answer means; None if there will be a sum of vectors from this site's state."""
        call = self.call
        if start.at is not None and call.masks.channel is not None:
            call.masks.channel.heard(answer.sender, start.at)
            call.overtaken |= start.at > call.at.round
        if start.moved:
            call.first_turn = max(call.first_turn, start.turn or 0)
            return TurnEnd.GIVEN_UP if start.given_up else TurnEnd.LOST
        if start.result and start.attempt is not None and start.since == call.since:
            return self._late(answer, start.result, start.attempt)
        if start.given_up:
            call.say("was given up", start.given_up)
            return SumOutcome(behind=start.since not in (None, call.since))
        return None if start.since == call.since and not start.result else SumOutcome(behind=True)

    def _late(self, answer: Parcel, result: bytes, attempt: int) -> SumOutcome:
        """The sum was opened before this site asked for it.

        One that contains a vector of this site, of which its ledger knows nothing, proves that the ledger is an old copy.
        """
        call, message = self.call, decode(result)
        which, agreement = call.attempt_id(attempt), call.agreement
        if not isinstance(message, SumResult) or message.context != which.context(agreement):
            raise BadParcel("it is not the sum of this round")
        check_result(agreement, message, call.summing_sites_of(attempt))
        own = call.masks.member_site(call.at.me)
        sent = own.facts.written(which.subject(agreement), VECTOR)
        if own.name in message.certificate.survivors and sent is None:
            raise LedgerRolledBack(
                f"the masked sum of round {call.at.round + 1} contains a vector of this site, and its ledger has no charge for"
                " it: the ledger is an old copy. Put the current one back; nothing was sent"
            )
        return call.outcome(answer, message, attempt)

    async def _plain(self) -> SumOutcome | TurnEnd:
        call, terms = self.call, self.call.agreement.terms
        await self._up(1, plain_vector(call))
        await call.at.reach("before-answer")
        answer = await self._down(1)
        if answer is None:
            return TurnEnd.LOST
        if not (text := content_of(answer)):
            return SumOutcome(behind=True)
        survivors, vector = divided_plain(text)
        steps = masking.from_ring(masking.unpacked(vector, terms.size, terms.bits), terms.bits)
        opened = call.opened(answer, survivors, steps)
        return SumOutcome(opened, behind=opened is None)

    async def _masked(self) -> SumOutcome | TurnEnd:
        call, turn = self.call, self.turn
        outgoing = call.join(turn.attempt, turn.leader)
        for step in turn.steps:
            await self._up(step, joined(outgoing))
            if step == STEPS:
                await call.at.reach("before-answer")
            answer = await self._down(step)
            try:
                messages = [] if answer is None else divided(content_of(answer))
            except BadParcel as error:
                call.say(f'has a message of "{turn.leader}" that was refused', str(error))
                return TurnEnd.LOST
            outgoing = []
            for message in messages:
                assert answer is not None
                outgoing += await call.receive(answer.sender, message)
                if isinstance(message, GivenUp) and self._ended():
                    call.say("was given up", message.reason)
                    return TurnEnd.GIVEN_UP
                if (
                    isinstance(message, SumResult)
                    and call.member is not None
                    and call.member.result == message
                ):
                    return call.outcome(answer, message, turn.attempt)
            if answer is None:
                return self._lost()
        return TurnEnd.LOST

    def _lost(self) -> TurnEnd:
        if self.call.masks.channel is None:
            self.call.say("was given up", "the summing site did not answer")
        else:
            self.call.say(f'goes on with another summing site: "{self.turn.leader}" does not answer')
        return TurnEnd.LOST

    def _ended(self) -> bool:
        return self.call.member is None or self.call.member.ended is not None

    async def _up(self, step: int, content: bytes, numbers: Mapping[str, Scalar] | None = None) -> None:
        call = self.call
        message = as_message(content, call.opens_as)
        await call.at.send_message(self.turn.leader, Place(self.turn.number, step), message, numbers or {})
        call.masks.passing(UP_POINTS[min(step, STEPS)])

    async def _down(self, step: int) -> Parcel | None:
        place = Place(self.turn.number, step, answers=True)
        found = await self.call.at.take_messages(place, [self.turn.leader])
        return found[0] if found else None
