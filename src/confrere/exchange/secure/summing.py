"""The summing site collects the messages of a masked sum and opens it; it learns only the sum. Any member can take this role.

It acts on messages as they arrive, in any order and any number of times, and moves on as soon as all members have answered a
step. `advance` ends the wait: it moves on with those that have answered if they are enough, and gives up otherwise. Who
decides when to wait no longer is the caller.

A successor is simply another `SummingSite` that receives what members send again. If members have signed a list that can still
be opened, it continues with that one: a member signs only one, so another list would split the vote. Signatures of no more
members than may collude do not leave out a member whose vector is here, if all vectors are.

No message of a single member stops the others: what is broken raises an error and changes nothing, and shares that do not
fit are left out while those of other holders suffice.

Members take its word for the sum. It signs the sum, and only a site that has had its turn in the rota can state one, but no
member can compute it again without all the vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from confrere.core.errors import PeerError
from confrere.exchange.secure import masking, sharing
from confrere.exchange.secure.agreement import Agreement
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
    Vote,
    sign,
    statement,
)  # fmt: skip
from confrere.exchange.secure.verification import (
    Announcements,
    check_announcement,
    check_lengths,
    check_result,
    check_sealed,
    check_survivors,
    check_vector,
    check_vote,
    seed_commitment,
)  # fmt: skip

Outgoing = tuple[str, Message]
"""A message and the member that it is for."""

List = tuple[bytes, tuple[str, ...]]
"""A list of survivors, with the digest of the partners that their vectors are masked with."""

MOST_SUBSETS = 500
"""In how many ways shares are combined to restore a secret, if some holders have opened wrong ones."""


@dataclass(frozen=True)
class Opened:
    """An opened sum."""

    survivors: tuple[str, ...]
    steps: NDArray[np.int64]
    grid: float

    @property
    def values(self) -> NDArray[np.float64]:
        return masking.from_steps(self.steps, self.grid)


def read_result(agreement: Agreement, message: SumResult) -> Opened:
    """The sum of a checked message."""
    vector = masking.unpacked(message.vector, agreement.terms.size, agreement.terms.bits)
    return Opened(
        message.certificate.survivors, masking.from_ring(vector, agreement.terms.bits), agreement.terms.grid
    )


class SummingSite:
    """The summing site of one attempt, or a successor of it."""

    def __init__(self, agreement: Agreement, attempt: AttemptId, name: str, key: Ed25519PrivateKey) -> None:
        self.agreement, self.name, self._key = agreement, name, key
        self.context = attempt.context(agreement)
        rota = agreement.rota(attempt.turn)
        self._before = rota[: rota.index(name) + 1]
        self.result: SumResult | None = None
        self.given_up: str | None = None
        self._announcements: Announcements = {}
        self._sealed: dict[str, SealedShares] = {}
        self._vectors: dict[str, MaskedVector] = {}
        self._votes: dict[str, Vote] = {}
        self._openings: dict[str, OpenedShares] = {}
        self._keys_sent = self.shares_sent = False
        self._proposed: List | None = None
        self._certificate: Certificate | None = None
        self._restored: dict[str, bytes] = {}
        self._reliable: tuple[int, ...] = ()
        """Positions whose shares have restored a secret together."""

    @property
    def done(self) -> bool:
        return self.result is not None or self.given_up is not None

    def receive(self, sender: str, message: Message) -> list[Outgoing]:
        """Messages to members that follow from one of theirs. `sender` must have been authenticated by the connection.

        What must not be believed raises an error and changes nothing.
        """
        if self.done or message.context != self.context or sender not in self.agreement:
            return []
        check_lengths(self.agreement, message)
        handlers: dict[type[Message], Callable[..., list[Outgoing]]] = {
            KeyAnnouncement: self._on_announcement, KeyList: self._on_keys, SealedShares: self._on_sealed,
            MaskedVector: self._on_vector, Vote: self._on_vote, OpenedShares: self._on_opening, SumResult: self._on_result,
        }  # fmt: skip
        handler = handlers.get(type(message))
        named = getattr(message, "site", sender) if not isinstance(message, SumResult) else sender
        return [] if handler is None or named != sender else handler(message)

    def advance(self) -> list[Outgoing]:
        """Wait no longer for the current step."""
        if self.done:
            return []
        if self._certificate is not None:
            return self._give_up("too few members opened their shares")
        if self._proposed is not None:
            return self._give_up("too few members signed the same list of survivors")
        if self._vectors_due:
            return self._propose()
        return self._send_shares() if self._keys_sent else self._send_keys()

    @property
    def _vectors_due(self) -> bool:
        """Whether members were asked for vectors, by this summing site or an earlier one: at least one honest member says so."""
        return self.shares_sent or len(self._vectors) > self.agreement.terms.colluding

    # -- steps ------------------------------------------------------------------------------------------

    def _on_announcement(self, message: KeyAnnouncement) -> list[Outgoing]:
        check_announcement(self.agreement, self.context, message)
        if not self._keys_sent:  # a member's own message counts more than one that was passed on
            self._announcements[message.site] = message
        everyone = len(self._announcements) == self.agreement.n
        return self._send_keys() if everyone and not self._keys_sent and not self._vectors_due else []

    def _on_keys(self, message: KeyList) -> list[Outgoing]:
        """A member sends the keys that it was sent by another summing site."""
        for announcement in message.announcements:
            check_announcement(self.agreement, self.context, announcement)
        for announcement in message.announcements:
            self._announcements.setdefault(announcement.site, announcement)
        return []

    def _send_keys(self) -> list[Outgoing]:
        if len(self._announcements) < self.agreement.terms.quorum:
            return self._give_up(f"only {len(self._announcements)} members answered with keys")
        self._keys_sent = True
        listed = tuple(self._announcements[name] for name in sorted(self._announcements))
        return self._to(self._announcements, KeyList(self.context, listed))

    def _on_sealed(self, message: SealedShares) -> list[Outgoing]:
        check_sealed(self.agreement, message)
        if message.site in self._announcements and not self.shares_sent:
            self._sealed.setdefault(message.site, message)
        everyone = self._keys_sent and self._sealed.keys() == self._announcements.keys()
        return self._send_shares() if everyone and not self._vectors_due else []

    def _send_shares(self) -> list[Outgoing]:
        if len(self._sealed) < self.agreement.terms.quorum:
            return self._give_up(f"only {len(self._sealed)} members shared out their secrets")
        self.shares_sent = True
        sharers = tuple(sorted(self._sealed))
        found: list[Outgoing] = []
        for name in sharers:
            givers = [giver for giver in self.agreement.graph.holders(name) if giver in self._sealed]
            sealed = {giver: self._sealed[giver].sealed.get(name, b"") for giver in givers}
            found.append((name, ShareDelivery(self.context, sharers, sealed)))
        return found

    def _on_vector(self, message: MaskedVector) -> list[Outgoing]:
        check_vector(self.agreement, self._announcements, message)
        self._vectors.setdefault(message.site, message)
        if self._proposed is not None:
            return self._count_votes()
        everyone = len(self._with_partners(message.header.partners)) == len(message.sharers)
        return self._propose() if everyone and len(self._votes) <= self.agreement.terms.colluding else []

    def _with_partners(self, partners: bytes) -> tuple[str, ...]:
        """The members whose vectors are masked with the same partners."""
        return tuple(sorted(name for name, v in self._vectors.items() if v.header.partners == partners))

    def _propose(self) -> list[Outgoing]:
        """Propose a list that an honest member has signed; else that of all vectors; else the one with most signatures."""
        signed = Counter((v.partners, v.survivors) for v in self._votes.values())
        groups = {(v.header.partners, self._with_partners(v.header.partners)) for v in self._vectors.values()}
        honest = {found for found, votes in signed.items() if votes > self.agreement.terms.colluding}
        whole = {found for found in groups if found[1] == self._sharers(found)}
        ranked = sorted(
            signed.keys() | groups,
            key=lambda found: (found in honest, found in whole, signed[found], len(found[1]), found),
            reverse=True,
        )
        reason = "no member sent a vector"
        for chosen in ranked:
            try:
                self._check_list(chosen)
            except PeerError as error:
                reason = str(error)
                continue
            self._proposed = chosen
            headers = tuple(self._vectors[name].header for name in chosen[1])
            return self._to(self._sharers(chosen), Proposal(self.context, headers)) + self._count_votes()
        return self._give_up(reason)

    def _check_list(self, chosen: List) -> None:
        """Refuse a list that cannot be opened with the vectors that are here."""
        partners, survivors = chosen
        if missing := sorted(set(survivors) - set(self._with_partners(partners))):
            raise PeerError(f"the vector of {', '.join(missing)} is on a signed list and not here")
        check_survivors(self.agreement, self._sharers(chosen), survivors)

    def _sharers(self, chosen: List) -> tuple[str, ...]:
        """The members with which the vectors of a list are masked."""
        return self._vectors[chosen[1][0]].sharers if chosen[1] else ()

    def _on_vote(self, message: Vote) -> list[Outgoing]:
        check_vote(self.agreement, message)
        self._votes.setdefault(message.site, message)
        return self._count_votes()

    def _count_votes(self) -> list[Outgoing]:
        if self._proposed is None or self._certificate is not None:
            return []
        counts = Counter((v.partners, v.survivors) for v in self._votes.values())
        (chosen, most), *_ = [*counts.most_common(1), (self._proposed, 0)]
        if most + self.agreement.n - len(self._votes) < self.agreement.terms.threshold:
            return self._give_up("members have signed different lists of survivors")
        if most < self.agreement.terms.threshold:
            return []
        try:
            self._check_list(chosen)
        except PeerError:
            return []  # its vectors may still arrive
        signatures = {
            v.site: v.signature for v in self._votes.values() if (v.partners, v.survivors) == chosen
        }
        self._certificate = Certificate(self.context, *chosen, signatures)
        return self._to(self._sharers(chosen), self._certificate)

    def _on_opening(self, message: OpenedShares) -> list[Outgoing]:
        if self._certificate is None:
            return []
        listed = statement(self.context, self._certificate.partners, self._certificate.survivors)
        if message.statement == listed:
            self._openings.setdefault(message.site, message)
        return self._open()

    # -- opening ----------------------------------------------------------------------------------------

    def _open(self) -> list[Outgoing]:
        assert self._certificate is not None
        survivors = self._certificate.survivors
        sharers = self._sharers((self._certificate.partners, survivors))
        for name in sharers:
            if name not in self._restored and not self._restore(name, of_seed=name in survivors):
                return []  # shares of other holders may still arrive
        total = self._unmasked(self._restored)
        found = SumResult(
            self.context, self.name, self._certificate, masking.packed(total, self.agreement.terms.bits)
        )
        self.result = replace(found, signature=sign(self._key, found.signed_part()))
        return self._to(self.agreement.names, self.result)

    def _restore(self, name: str, *, of_seed: bool) -> bool:
        """Restore the seed or the key of a member, if the shares that were opened suffice."""
        needed = self.agreement.graph.threshold
        shares = {}
        for holder in self.agreement.graph.holders(name):
            if (opening := self._openings.get(holder)) is not None:
                share = (opening.seed_shares if of_seed else opening.key_shares).get(name, b"")
                if sharing.well_formed(share):
                    shares[self.agreement.position(holder)] = share
        if len(shares) < needed:
            return False
        order = sorted(shares, key=lambda at: (at not in self._reliable, at))
        windows = (
            (order * 2)[start : start + needed] for start in range(len(order))
        )  # each leaves others out
        for chosen in islice(chain(windows, combinations(order, needed)), MOST_SUBSETS):
            secret = sharing.restore({at: shares[at] for at in chosen}, needed)
            if secret is not None and self._is_of(name, secret, of_seed=of_seed):
                self._restored[name], self._reliable = secret, tuple(chosen)
                return True
        return False

    def _is_of(self, name: str, secret: bytes, *, of_seed: bool) -> bool:
        """Whether a restored secret is the one that its member has announced."""
        announced = self._announcements[name]
        if of_seed:
            return seed_commitment(self.context, secret) == announced.seed_commitment
        mask = X25519PrivateKey.from_private_bytes(secret)
        return mask.public_key().public_bytes_raw() == announced.mask_key

    def _unmasked(self, secrets: dict[str, bytes]) -> masking.Ring:
        """The sum of the survivors' vectors without their self-masks and without the masks of members that dropped out."""
        assert self._certificate is not None
        bits, graph = self.agreement.terms.bits, self.agreement.graph
        survivors = set(self._certificate.survivors)
        total = np.zeros(self.agreement.terms.size, dtype=np.uint64)
        for name in self._certificate.survivors:
            total += masking.unpacked(self._vectors[name].vector, self.agreement.terms.size, bits)
            key = masking.self_key(secrets[name], self.context, name)
            masking.add_stream(total, key, bits, subtract=True)
        for gone in sorted(secrets.keys() - survivors):
            mask = X25519PrivateKey.from_private_bytes(secrets[gone])
            for name in graph.neighbours(gone):
                if name in survivors:
                    secret = masking.common_secret(mask, self._announcements[name].mask_key)
                    key = masking.pair_key(secret, self.context, gone, name)
                    masking.add_pair_stream(total, key, bits, name, gone, undo=True)
        return total

    def _on_result(self, message: SumResult) -> list[Outgoing]:
        """An earlier summing site of the rota has opened the sum: pass it on."""
        check_result(self.agreement, message, self._before)
        self.result = message
        return self._to(self.agreement.names, message)

    def _give_up(self, reason: str) -> list[Outgoing]:
        self.given_up = reason
        found = GivenUp(self.context, self.name, reason)
        found = replace(found, signature=sign(self._key, found.signed_part()))
        return self._to(self.agreement.names, found)

    def _to(self, names: Iterable[str], message: Message) -> list[Outgoing]:
        return [(name, message) for name in sorted(names)]
