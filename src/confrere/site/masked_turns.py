"""One call of `peers.sum` behind masks: attempts, summing sites and steps.

A simulation makes one attempt with one summing site. On nodes a member that loses its summing site asks the next one of the
rota, and sends it again what it had sent before, identical to the byte. An attempt that is given up after keys were exchanged
is followed by another one, with new keys, new noise and a new charge, at most three in all. A sum for which too few members are
there is given up at once, and nothing was charged.

    masked_call      what is the same in all turns of one call
    masked_member    a turn in which another site adds up
    masked_leader    a turn in which this site does
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from confrere.core.custody import Custody, Scalar, Share
from confrere.exchange.sums import sum_scalars
from confrere.site.masked_call import SumCall, Turn, TurnEnd
from confrere.site.masked_leader import LeaderTurn
from confrere.site.masked_member import MemberTurn
from confrere.site.masked_messages import TurnStart
from confrere.site.masked_share import anew, held_by
from confrere.site.masked_sums import MaskedSums, SumOutcome, SumRound


async def masked_sum(
    at: SumRound, masks: MaskedSums, share: Share, since: int, scalars: Mapping[str, Scalar]
) -> SumOutcome:
    """The opened sum of this round; without one where it was given up, or this site was left out of it."""
    before = None if masks.log is None else await masks.log.read(at.round)
    if before is not None:
        at.missing.update(before.missing)
        _remember(masks, at.round, before)
        return before
    held = held_by(at.gate, share)
    await at.reach("before-exchange")
    outcome = await _attempts(SumCall(at, masks, held, share.opens_as, since, scalars))
    outcome = replace(outcome, missing=tuple(sorted(at.missing)))
    if masks.log is not None:
        masks.passing("sum-ended")
        await masks.log.write(at.round, outcome)
        masks.passing("sum-kept")
    _remember(masks, at.round, outcome)
    return outcome


def _remember(masks: MaskedSums, round: int, outcome: SumOutcome) -> None:
    """Answer members that ask for this sum later."""
    start, opened = TurnStart(moved=True, at=round + 1), outcome.opened
    if opened is None or not outcome.result:
        masks.answers.end(round, start, {}, Custody.PUBLIC)
        return
    start = replace(start, moved=False, since=opened.since, attempt=outcome.attempt, result=outcome.result)
    masks.answers.end(round, start, sum_scalars(opened), opened.vector.custody)


async def _attempts(call: SumCall) -> SumOutcome:
    """The outcome of all attempts."""
    if not call.leaders:
        return SumOutcome(behind=True)
    turns = [
        [Turn(call, attempt, successor, attempt * call.turns + successor) for successor in range(call.turns)]
        for attempt in range(call.masks.attempts)
    ]
    leaders = [turn.leader for successive in turns for turn in successive]
    call.masks.answers.expect(call.at.round, call.at.epoch, leaders)
    for attempt, successive in enumerate(turns):
        if attempt:
            call.share, call.opens_as = anew(call.share, call.opens_as, attempt)
        try:
            for turn in successive:
                if turn.number < call.first_turn:
                    continue
                ended = await (
                    LeaderTurn(turn).run() if turn.leader == call.at.me else MemberTurn(turn).run()
                )
                if isinstance(ended, SumOutcome):
                    return ended
                if ended is TurnEnd.GIVEN_UP:
                    break
        finally:
            if call.member is not None:
                call.member.close()
            call.member = None
    if call.masks.channel is not None:
        call.say("was given up", "no summing site could finish it")
    return SumOutcome(behind=call.overtaken or call.masks.channel is None)
