"""One member of a masked sum in one attempt: what it sends, in which order, and what it never does.

The rules, each with a test that shows what breaks without it:

- Keys and the seed of the self-mask are fresh for every attempt and erased when it closes.
- The charge is written once enough members have shared out secrets, and before the vector leaves. A vector is drawn once;
  what is sent again is identical to the byte.
- A member signs one list of survivors in an attempt. It opens shares only for a list that at least T members have signed, and
  only if it has not signed another one: of each member the share of the self-mask *or* that of the key.
- Before a vector or a signature leaves, its digest is written to the ledger. A folder that was restored from a backup does not
  agree with the ledger, and such a member takes no further part in the attempt.

A member that stops and starts again continues from what it stored. It takes messages from any summing site, so that a
successor can continue: `resend` returns everything that the member has sent so far.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import BadParcel, PrivacyError
from confrere.exchange.secure import masking
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.attempt_storage import MemberSite
from confrere.exchange.secure.member_secrets import MemberSecrets
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
    ShareDelivery,
    SumResult,
    VectorHeader,
    Vote,
    decode,
    encode,
    partners_digest,
    sign,
    statement,
)  # fmt: skip
from confrere.exchange.secure.verification import (
    check_certificate,
    check_delivery,
    check_proposal,
    check_result,
    check_survivors,
    checked_keys,
)  # fmt: skip


class VectorSource(Protocol):
    """What a member brings to a sum. `charge` is called before `draw`, and again if the member stopped in between."""

    def charge(self) -> None:
        """Write the charge to the ledger, or use one again of which nothing was released."""

    def draw(self) -> NDArray[np.int64]:
        """The noisy vector, in grid steps; drawn anew for every attempt."""


SECRETS, KEYS, SEALED, DELIVERY, VECTOR, VOTE, RESULT = (
    "secrets", "keys", "sealed", "delivery", "vector", "vote", "result"
)  # fmt: skip
"""The parts of an attempt in the store."""

CLOSED = "closed"


class AttemptMember:
    """A member of one attempt. `receive` returns replies for the summing site."""

    def __init__(
        self, agreement: Agreement, attempt: AttemptId, site: MemberSite, source: VectorSource
    ) -> None:
        if site.key.public_key().public_bytes_raw() != agreement.member(site.name).key:
            raise PrivacyError(f'the key of "{site.name}" is not the one that the members agreed on')
        self.agreement, self.attempt, self.name = agreement, attempt, site.name
        self.context = attempt.context(agreement)
        self.id = f"{attempt}/{self.context.hex()[:16]}"
        self._key, self._store, self._facts, self._source = site.key, site.store, site.facts, source
        self._parts: dict[str, bytes] = {}
        self._announcements: dict[str, KeyAnnouncement] = {}
        self._sharers: tuple[str, ...] = ()
        self._held: dict[str, tuple[bytes, bytes]] = {}
        self._loaded: MemberSecrets | None = None
        self.ended: str | None = None
        """Why the member takes no further part; None while it does."""
        self._resume()

    # -- what others call ---------------------------------------------------------------------------

    def start(self) -> list[Message]:
        """The first message: fresh public keys."""
        if self.ended is not None:
            return []
        if SECRETS not in self._parts:
            self._keep(SECRETS, self._fresh().data)
        return [self._secrets().announcement(self._key)]

    def receive(self, message: Message) -> list[Message]:
        """Replies to a message of the summing site; one that is out of turn or from another attempt has none.

        What must not be believed raises an error and changes nothing. `SumResult` and `GivenUp` are to be taken from the
        summing site or its successor only.
        """
        if message.context != self.context or (self.ended is not None and not isinstance(message, SumResult)):
            return []
        handlers: dict[type[Message], Callable[..., list[Message]]] = {
            KeyList: self._on_keys, ShareDelivery: self._on_shares, Proposal: self._on_proposal,
            Certificate: self._on_certificate, SumResult: self._on_result, GivenUp: self._on_given_up,
        }  # fmt: skip
        handler = handlers.get(type(message))
        return [] if handler is None else handler(message)

    def resend(self) -> list[Message]:
        """Everything that was sent so far, identical to the byte, for the successor of a summing site."""
        sent = [decode(self._parts[p]) for p in (KEYS, SEALED, VECTOR, VOTE, RESULT) if p in self._parts]
        first = [self._secrets().announcement(self._key)] if SECRETS in self._parts else []
        return first + sent

    @property
    def result(self) -> SumResult | None:
        """The opened sum, once it was received."""
        return cast("SumResult", decode(self._parts[RESULT])) if RESULT in self._parts else None

    def close(self, reason: str = "the attempt was closed") -> None:
        """End the attempt here: its secrets are erased, and nothing of it is signed or opened any more."""
        if self.ended is None:
            self.ended = reason
        self._facts.write_once(self.id, CLOSED, "yes")
        self._store.erase(self.id)
        self._parts = {name: data for name, data in self._parts.items() if name == RESULT}
        self._held, self._loaded = {}, None

    # -- the steps ------------------------------------------------------------------------------------

    def _on_keys(self, message: KeyList) -> list[Message]:
        if SECRETS not in self._parts or KEYS in self._parts:
            return [decode(self._parts[SEALED])] if SEALED in self._parts else []
        found = checked_keys(self.agreement, message)
        if found.get(self.name) != self._secrets().announcement(self._key):
            raise BadParcel("the list of keys does not have the keys of this member")
        self._keep(SEALED, encode(self._secrets().shared_out(self.agreement, found)))
        self._keep(KEYS, encode(message))
        self._announcements = found
        return [decode(self._parts[SEALED])]

    def _on_shares(self, message: ShareDelivery) -> list[Message]:
        if KEYS not in self._parts or VOTE in self._parts:
            return []
        if DELIVERY not in self._parts:
            check_delivery(self.agreement, self.name, self._announcements, message)
            self._keep(DELIVERY, encode(message))
            self._take_delivery(message)
        if VECTOR not in self._parts:
            self._make_vector()
        self._bind(VECTOR)
        return [decode(self._parts[VECTOR])] if self.ended is None else []

    def _make_vector(self) -> None:
        self._source.charge()
        vector = masking.to_ring(self._source.draw(), self.agreement.terms.bits)
        if len(vector) != self.agreement.terms.size:
            raise PrivacyError(
                f"a vector of {len(vector)} numbers, and {self.agreement.terms.size} were agreed on"
            )
        bits = self.agreement.terms.bits
        partners = [name for name in self.agreement.graph.neighbours(self.name) if name in self._sharers]
        self._secrets().add_masks(vector, bits, partners, self._announcements)
        data = masking.packed(vector, bits)
        header = VectorHeader(self.context, self.name, self._partners_digest(), hashlib.sha256(data).digest())
        header = replace(header, signature=sign(self._key, header.signed_part()))
        self._keep(VECTOR, encode(MaskedVector(self.context, header, self._sharers, data)))

    def _on_proposal(self, message: Proposal) -> list[Message]:
        if DELIVERY not in self._parts:
            return []
        if VOTE not in self._parts:
            check_survivors(self.agreement, self._sharers, message.survivors)
            check_proposal(self.agreement, self._partners_digest(), message)
            if any(h.site == self.name and h != self._own_header() for h in message.headers):
                raise BadParcel("the list of survivors has another vector of this member than it has sent")
            self._keep(VOTE, encode(self._vote(message.survivors)))
        self._bind(VOTE)
        return [decode(self._parts[VOTE])] if self.ended is None else []

    def _on_certificate(self, message: Certificate) -> list[Message]:
        if DELIVERY not in self._parts:
            return []
        check_certificate(self.agreement, message)
        check_survivors(self.agreement, self._sharers, message.survivors)
        if message.partners != self._partners_digest():
            raise BadParcel("the survivors are masked with other members than this one")
        if VOTE not in self._parts:  # from here on it can sign no other list
            self._keep(VOTE, encode(self._vote(message.survivors)))
        vote = cast("Vote", decode(self._parts[VOTE]))
        if (vote.survivors, vote.partners) != (message.survivors, message.partners):
            raise PrivacyError(
                f'"{self.name}" has signed another list of survivors in this attempt; nothing was opened'
            )
        self._bind(VOTE)
        return [self._opening(message)] if self.ended is None else []

    def _vote(self, survivors: tuple[str, ...]) -> Vote:
        vote = Vote(self.context, self.name, self._partners_digest(), survivors)
        return replace(vote, signature=sign(self._key, vote.signed_part()))

    def _opening(self, message: Certificate) -> OpenedShares:
        seeds = {name: seed for name, (_, seed) in self._held.items() if name in message.survivors}
        keys = {name: key for name, (key, _) in self._held.items() if name not in message.survivors}
        listed = statement(self.context, message.partners, message.survivors)
        return OpenedShares(self.context, self.name, listed, seeds, keys)

    def _on_result(self, message: SumResult) -> list[Message]:
        check_result(self.agreement, message)
        if RESULT not in self._parts:
            self._parts[RESULT] = encode(message)
            self.close("the sum was opened")
        return []

    def _on_given_up(self, message: GivenUp) -> list[Message]:
        self.close(f"the summing site gave up: {message.reason}")
        return []

    def _fresh(self) -> MemberSecrets:
        return MemberSecrets.fresh(self.context, self.name)

    def _secrets(self) -> MemberSecrets:
        if self._loaded is None or self._loaded.data != self._parts[SECRETS]:
            self._loaded = MemberSecrets(self.context, self.name, self._parts[SECRETS])
        return self._loaded

    # -- what is stored ---------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Continue from the store, unless it does not agree with the ledger."""
        if self._facts.written(self.id, CLOSED) is not None:
            self.ended = "the attempt was closed before"
            self._store.erase(self.id)
            return
        for part in (SECRETS, SEALED, KEYS, DELIVERY, VECTOR, VOTE):
            data = self._store.load(self.id, part)
            if data is not None:
                self._parts[part] = data
        for part in (VECTOR, VOTE):
            known = self._facts.written(self.id, part)
            if known is not None and known != self._fingerprint(part):
                self.ended = "what is stored of this attempt is older than the ledger"
        if self.ended is None and KEYS in self._parts:
            found = cast("KeyList", decode(self._parts[KEYS])).announcements
            self._announcements = {announcement.site: announcement for announcement in found}
        if self.ended is None and DELIVERY in self._parts:
            self._take_delivery(cast("ShareDelivery", decode(self._parts[DELIVERY])))

    def _keep(self, part: str, data: bytes) -> None:
        self._store.save(self.id, part, data)
        self._parts[part] = data

    def _bind(self, part: str) -> None:
        """Write to the ledger what is about to leave; if the ledger knows something else, take no further part."""
        own = self._fingerprint(part)
        if self._facts.write_once(self.id, part, own) != own:
            self.ended = "what is stored of this attempt is older than the ledger"

    def _fingerprint(self, part: str) -> str:
        return hashlib.sha256(self._parts.get(part, b"")).hexdigest()

    def _take_delivery(self, message: ShareDelivery) -> None:
        self._sharers = message.sharers
        secrets = self._secrets()
        for name, sealed in message.sealed.items():
            try:
                self._held[name] = secrets.received(name, sealed, self._announcements)
            except BadParcel:
                continue  # a member that sends broken shares harms itself: others may still restore its secrets

    def _partners_digest(self) -> bytes:
        return partners_digest(self.context, self._announcements, self._sharers)

    def _own_header(self) -> VectorHeader | None:
        return cast("MaskedVector", decode(self._parts[VECTOR])).header if VECTOR in self._parts else None
