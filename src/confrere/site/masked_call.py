"""One call of `peers.sum` behind masks, as far as it is the same whichever site adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from confrere.core.custody import Custody, Scalar, public, strictest
from confrere.core.errors import BadParcel, BudgetExhausted, LedgerRolledBack, PeerError, PrivacyError
from confrere.core.events import Event
from confrere.core.parcel import Parcel
from confrere.core.protocols import OpenedSum
from confrere.exchange.secure import masking
from confrere.exchange.secure.attempt import AttemptMember
from confrere.exchange.secure.messages import AttemptId, Message, SumResult, encode
from confrere.exchange.secure.summing import read_result
from confrere.exchange.sums import SINCE, answered_numbers
from confrere.site.masked_share import SiteShare
from confrere.site.masked_sums import MaskedSums, SumOutcome, SumRound, longest_sum, summing_sites

STEPS = 5
"""How many messages each member sends to the summing site in a masked sum."""
FURTHER_STEPS = 2
"""How many more it may take with a successor of the first summing site."""


class TurnEnd(Enum):
    """How a turn ends that is not the last one."""

    LOST = "the summing site does not answer; the next one of the rota is asked"
    GIVEN_UP = "the attempt was given up"


class SumCall:
    """One call of `peers.sum` at one site."""

    def __init__(
        self,
        at: SumRound,
        masks: MaskedSums,
        share: SiteShare,
        opens_as: Custody,
        since: int,
        scalars: Mapping[str, Scalar],
    ) -> None:
        self.at, self.masks, self.share, self.opens_as = at, masks, share, opens_as
        self.since, self.scalars = since, scalars
        self.agreement = masks.agreement(at.scheduled.members, share.terms, at.epoch)
        self.leaders = summing_sites(at.scheduled, at.round)
        self.others = sorted(at.scheduled.present - {at.me})
        self.first_turn = 0
        """The turn that a summing site has said to be in: earlier ones are over."""
        self.overtaken = False
        """Whether a site has said that this round is over for it."""
        self.member: AttemptMember | None = None
        """This site in the current attempt, once there is a sum."""

    @property
    def turns(self) -> int:
        """How many summing sites an attempt may have, one after the other."""
        return min(1 + self.masks.successors, len(self.leaders))

    def summing_sites_of(self, attempt: int) -> list[str]:
        return [self.leaders[(attempt + turn) % len(self.leaders)] for turn in range(self.turns)]

    @property
    def numbers(self) -> dict[str, Scalar]:
        return {SINCE: public(self.since), **(self.scalars if self.share.counts else {})}

    def attempt_id(self, attempt: int) -> AttemptId:
        first = self.agreement.names.index(self.leaders[attempt % len(self.leaders)])
        role = f"{self.share.role}@{self.since}"
        return AttemptId(self.at.run, self.at.round, role, 0, attempt, first)

    def join(self, attempt: int, leader: str) -> list[Message]:
        """Take part in an attempt from here on, with this summing site; returns the first message."""
        if self.member is not None:
            return []
        source = _Charged(self.share, self.masks)
        site = self.masks.member_site(self.at.me)
        self.member = AttemptMember(self.agreement, self.attempt_id(attempt), site, source)
        self.member.succeed(leader)
        return self.member.start()

    async def receive(self, sender: str, message: Message) -> list[Message]:
        """Let this site's member act on a message. One that must not be believed ends nothing and is reported."""
        assert self.member is not None
        try:
            found: list[Message] = await self.masks.work(self.member.receive, sender, message)
            return found
        except LedgerRolledBack:
            raise
        except (BadParcel, PeerError, PrivacyError) as error:
            if isinstance(error, BudgetExhausted):
                self.member.close(str(error))
            self.say(f'has a message of "{sender}" that was refused', str(error))
            return []

    # -- what is opened ----------------------------------------------------------------------------------

    def opened(self, parcel: Parcel, survivors: Sequence[str], steps: NDArray[np.int64]) -> OpenedSum | None:
        numbers = answered_numbers(parcel, tuple(self.scalars))
        if numbers is None or not self.plausible(steps, survivors):
            return None
        assert parcel.model is not None
        sums, since, version, held = numbers
        custody = strictest([held, parcel.model.custody, self.opens_as])
        return OpenedSum(self.share.opened(steps, custody), sums, since, version)

    def outcome(self, parcel: Parcel, message: SumResult, attempt: int) -> SumOutcome:
        """The sum that a summing site has stated and this member has checked."""
        found = read_result(self.agreement, message)
        opened = self.opened(parcel, found.survivors, found.steps)
        self.masks.passing("sum-received")
        return SumOutcome(opened, behind=opened is None, attempt=attempt, result=encode(message))

    def plausible(self, steps: NDArray[np.int64], survivors: Sequence[str]) -> bool:
        """Whether honest sites can add up to this; which site is to blame cannot be seen, so the whole round is discarded."""
        length = float(np.linalg.norm(steps.astype(np.float64))) * self.agreement.terms.grid
        most = longest_sum(self.agreement, survivors, self.share.weights)
        if length <= most:
            return True
        self.say(
            f"is discarded: it has the length {length:.3g}, and honest sites add up to {most:.3g} at most"
        )
        return False

    def say(self, what: str, reason: str = "") -> None:
        text = f"the masked sum of round {self.at.round + 1} {what}" + (f": {reason}" if reason else "")
        self.at.journal.add(Event("notice", self.at.me, self.at.round, data={"text": text, "masked": True}))


@dataclass(frozen=True)
class _Charged:
    """A share as the source of a member's vector, with a failpoint after its charge."""

    share: SiteShare
    masks: MaskedSums

    def charge(self) -> None:
        self.share.charge()
        self.masks.passing("sum-charged")

    def draw(self) -> NDArray[np.int64]:
        return self.share.draw()


@dataclass(frozen=True)
class Turn:
    """A summing site of an attempt: the first one, or a successor."""

    call: SumCall
    attempt: int
    successor: int
    number: int

    @property
    def leader(self) -> str:
        return self.call.summing_sites_of(self.attempt)[self.successor]

    @property
    def steps(self) -> range:
        return range(1, STEPS + 1 + (FURTHER_STEPS if self.successor else 0))

    def handover(self) -> list[Message]:
        """What this site's member has sent in the attempt so far, for a successor."""
        return [] if self.call.member is None else self.call.member.succeed(self.leader)


def plain_vector(call: SumCall) -> bytes:
    call.share.charge()
    bits = call.agreement.terms.bits
    return masking.packed(masking.to_ring(call.share.draw(), bits), bits)
