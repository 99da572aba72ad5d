"""One member of a masked sum in one attempt: what it sends, in which order, and what it never does.

The rules, each with a test that shows what breaks without it:

- Keys and the seed of the self-mask are fresh for every attempt and are kept in memory only. A process that stops is a
  dropout of the attempt, one of the d that the terms allow for. Started again it has no secrets, and it takes no
  part in an attempt in which the ledger says that a vector left or a list was signed.
- The charge is written once the shares of enough members are here and can be decrypted, and before the vector leaves. A
  vector is drawn once; what is sent again is identical to the byte.
- A member signs one list of survivors in an attempt. It opens shares only for a list that at least T members have signed, and
  only if it has not signed another one: of each member the share of the self-mask *or* that of the key.
- The digest of a vector, or of a signed list, is in the ledger before it leaves. If that cannot be written, the member
  takes no further part.

A member takes messages from the summing site only: the first one of the attempt's rota, or a successor that the caller
has named (`succeed`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import BadParcel, PeerError, PrivacyError
from confrere.exchange.secure import masking
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.member_secrets import MemberSecrets
from confrere.exchange.secure.member_site import MemberSite
from confrere.exchange.secure.messages import (
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
    partners_digest,
    sign,
    statement,
)  # fmt: skip
from confrere.exchange.secure.verification import (
    Announcements,
    check_certificate,
    check_delivery,
    check_given_up,
    check_lengths,
    check_proposal,
    check_result,
    check_survivors,
    checked_keys,
)  # fmt: skip


class VectorSource(Protocol):
    """What a member brings to a sum. `charge` is called before `draw`, and each of them once."""

    def charge(self) -> None:
        """Write the charge to the ledger, under a key of its own for every attempt."""

    def draw(self) -> NDArray[np.int64]:
        """The noisy vector, in grid steps; drawn anew for every attempt."""


VECTOR, VOTE = "vector", "vote"
"""The facts of an attempt in the ledger: the digests of the vector that left and of the list that was signed."""


class AttemptMember:
    """A member of one attempt. `receive` returns replies for the summing site."""

    def __init__(
        self, agreement: Agreement, attempt: AttemptId, site: MemberSite, source: VectorSource
    ) -> None:
        if site.key.public_key().public_bytes_raw() != agreement.member(site.name).key:
            raise PrivacyError(f'the key of "{site.name}" is not the one that the members agreed on')
        self.agreement, self.attempt, self.name = agreement, attempt, site.name
        self.context = attempt.context(agreement)
        self.id = attempt.subject(agreement)
        self.rota = agreement.rota(attempt.turn)
        self.summing = self.rota[0]
        """The member whose messages are taken."""
        self.result: SumResult | None = None
        """The opened sum, once it was received."""
        self.ended: str | None = None
        """Why the member takes no further part; None while it does."""
        self._key, self._facts, self._source = site.key, site.facts, source
        self._secrets: MemberSecrets | None = None
        self._announcements: Announcements = {}
        self._sharers: tuple[str, ...] = ()
        self._held: dict[str, tuple[bytes, bytes]] = {}
        self._sent: dict[type[Message], Message] = {}
        """What may be sent again. A vector or a vote is here only after the ledger has its digest."""
        if any(self._facts.written(self.id, fact) is not None for fact in (VECTOR, VOTE)):
            self.ended = "this site was started again during the attempt"

    # -- what others call ---------------------------------------------------------------------------

    def start(self) -> list[Message]:
        """The first message: fresh public keys."""
        if self.ended is not None:
            return []
        if self._secrets is None:
            self._secrets = self._fresh()
            self._sent[KeyAnnouncement] = self._secrets.announcement(self._key)
        return [self._sent[KeyAnnouncement]]

    def receive(self, sender: str, message: Message) -> list[Message]:
        """Replies to a message of the summing site; one that is out of turn or from another attempt has none.

        `sender` must have been authenticated by the connection. What must not be believed raises an error and changes
        nothing.
        """
        if message.context != self.context or (self.ended is not None and not isinstance(message, SumResult)):
            return []
        if sender != self.summing:
            raise BadParcel(f'"{sender}" is not the summing site, which is "{self.summing}"')
        check_lengths(self.agreement, message)
        handlers: dict[type[Message], Callable[..., list[Message]]] = {
            KeyList: self._on_keys, ShareDelivery: self._on_shares, Proposal: self._on_proposal,
            Certificate: self._on_certificate, SumResult: self._on_result, GivenUp: self._on_given_up,
        }  # fmt: skip
        handler = handlers.get(type(message))
        return [] if handler is None else handler(message)

    def succeed(self, name: str) -> list[Message]:
        """Take a later member of the rota for the summing site; returns what it has to be sent."""
        if name not in self.rota or self.rota.index(name) < self.rota.index(self.summing):
            raise PeerError(f'"{name}" does not come after "{self.summing}" as the summing site')
        self.summing = name
        return self.resend()

    def resend(self) -> list[Message]:
        """Everything that was sent so far, identical to the byte, and the keys that it answers."""
        if self.result is not None:
            return [self.result]
        return list(self._sent.values())

    def close(self, reason: str = "the attempt was closed") -> None:
        """End the attempt here: its secrets are dropped, and nothing of it is signed, opened or sent any more."""
        if self.ended is None:
            self.ended = reason
        self._secrets, self._held, self._sent = None, {}, {}

    # -- the steps ------------------------------------------------------------------------------------

    def _on_keys(self, message: KeyList) -> list[Message]:
        if self._secrets is None or self._announcements:
            return [self._sent[SealedShares]] if SealedShares in self._sent else []
        found = checked_keys(self.agreement, message)
        if found.get(self.name) != self._sent[KeyAnnouncement]:
            raise BadParcel("the list of keys does not have the keys of this member")
        sealed = self._secrets.shared_out(self.agreement, found, self._key)
        self._announcements = found
        self._sent |= {KeyList: message, SealedShares: sealed}
        return [sealed]

    def _on_shares(self, message: ShareDelivery) -> list[Message]:
        if not self._announcements or Vote in self._sent:
            return []
        if not self._sharers:
            self._take_delivery(message)
            with self._or_end():
                self._make_vector()
        return [self._sent[MaskedVector]]

    def _take_delivery(self, message: ShareDelivery) -> None:
        """Keep the shares of other members. One that cannot be read is refused, and nothing was charged so far."""
        assert self._secrets is not None
        check_delivery(self.agreement, self.name, self._announcements, message)
        held = {}
        for name, sealed in message.sealed.items():
            held[name] = self._secrets.received(name, sealed, self._announcements)
        self._sharers, self._held = message.sharers, held

    def _make_vector(self) -> None:
        assert self._secrets is not None
        self._source.charge()
        vector = masking.to_ring(self._source.draw(), self.agreement.terms.bits)
        if len(vector) != self.agreement.terms.size:
            raise PrivacyError(
                f"a vector of {len(vector)} numbers, and {self.agreement.terms.size} were agreed on"
            )
        bits = self.agreement.terms.bits
        partners = [name for name in self.agreement.graph.neighbours(self.name) if name in self._sharers]
        self._secrets.add_masks(vector, bits, partners, self._announcements)
        data = masking.packed(vector, bits)
        header = VectorHeader(self.context, self.name, self._partners_digest(), hashlib.sha256(data).digest())
        header = replace(header, signature=sign(self._key, header.signed_part()))
        self._record(VECTOR, header.vector_digest)
        self._sent[MaskedVector] = MaskedVector(self.context, header, self._sharers, data)

    def _on_proposal(self, message: Proposal) -> list[Message]:
        if not self._sharers:
            return []
        if Vote not in self._sent:
            check_survivors(self.agreement, self._sharers, message.survivors)
            check_proposal(self.agreement, self._partners_digest(), message)
            own = self._own_header()
            if any(h.site == self.name and h != own for h in message.headers):
                raise BadParcel("the list of survivors has another vector of this member than it has sent")
            self._vote(message.survivors)
        return [self._sent[Vote]]

    def _on_certificate(self, message: Certificate) -> list[Message]:
        if not self._sharers:
            return []
        check_certificate(self.agreement, message)
        check_survivors(self.agreement, self._sharers, message.survivors)
        if message.partners != self._partners_digest():
            raise BadParcel("the survivors are masked with other members than this one")
        if Vote not in self._sent:  # from here on it can sign no other list
            self._vote(message.survivors)
        vote = self._sent[Vote]
        assert isinstance(vote, Vote)
        if (vote.survivors, vote.partners) != (message.survivors, message.partners):
            raise PrivacyError(
                f'"{self.name}" has signed another list of survivors in this attempt; nothing was opened'
            )
        return [self._opening(message)]

    def _vote(self, survivors: tuple[str, ...]) -> None:
        vote = Vote(self.context, self.name, self._partners_digest(), survivors)
        with self._or_end():
            self._record(VOTE, vote.signed_part())
        self._sent[Vote] = replace(vote, signature=sign(self._key, vote.signed_part()))

    def _opening(self, message: Certificate) -> OpenedShares:
        seeds = {name: seed for name, (_, seed) in self._held.items() if name in message.survivors}
        keys = {name: key for name, (key, _) in self._held.items() if name not in message.survivors}
        listed = statement(self.context, message.partners, message.survivors)
        return OpenedShares(self.context, self.name, listed, seeds, keys)

    def _on_result(self, message: SumResult) -> list[Message]:
        check_result(self.agreement, message, self.rota[: self.rota.index(self.summing) + 1])
        if self.result is None:
            self.result = message
            self.close("the sum was opened")
        return []

    def _on_given_up(self, message: GivenUp) -> list[Message]:
        check_given_up(self.agreement, self.summing, message)
        self.close(f"the summing site gave up: {message.reason}")
        return []

    def _fresh(self) -> MemberSecrets:
        return MemberSecrets.fresh(self.context, self.name)

    # -- the ledger -------------------------------------------------------------------------------------

    @contextmanager
    def _or_end(self) -> Iterator[None]:
        """Take no further part after an error: it is not known how far the charge or the record went."""
        try:
            yield
        except BaseException as error:
            self.close(f"an error ended it here: {error}")
            raise

    def _record(self, fact: str, digest: bytes) -> None:
        """Write to the ledger what is about to leave; refused if the ledger knows something else."""
        if self._facts.write_once(self.id, fact, digest.hex()) != digest.hex():
            raise PrivacyError(f'the ledger of "{self.name}" knows another {fact} of this attempt')

    def _partners_digest(self) -> bytes:
        return partners_digest(self.context, self._announcements, self._sharers)

    def _own_header(self) -> VectorHeader | None:
        sent = self._sent.get(MaskedVector)
        return sent.header if isinstance(sent, MaskedVector) else None
