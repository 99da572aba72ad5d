"""The site that collects the messages of a masked sum and opens it. Any member can do it, and learns only the sum.

It acts on messages as they arrive, in any order and any number of times, and moves on as soon as all members have answered a
step. `advance` ends the wait: it moves on with those that have answered if they are enough, and gives up otherwise. Who
decides when to wait no longer is the caller.

A successor is simply another `SummingSite` that receives what members send again. If any member has signed a list, it
continues with that one: a member signs only one, so a list of its own would split the vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

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
    check_result,
    check_survivors,
    check_vector,
    check_vote,
    seed_commitment,
)  # fmt: skip

Outgoing = tuple[str, Message]
"""A message and the member that it is for."""

List = tuple[bytes, tuple[str, ...]]
"""A list of survivors, with the digest of the partners that their vectors are masked with."""


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

    @property
    def done(self) -> bool:
        return self.result is not None or self.given_up is not None

    def receive(self, sender: str, message: Message) -> list[Outgoing]:
        """Messages to members that follow from one of theirs. `sender` must have been authenticated by the connection.

        What must not be believed raises an error and changes nothing.
        """
        if self.done or message.context != self.context or sender not in self.agreement.names:
            return []
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
        if self._vectors or self._votes:
            return self._propose()
        if self.shares_sent:
            return self._give_up("no member sent a vector")
        return self._send_shares() if self._keys_sent else self._send_keys()

    # -- steps ------------------------------------------------------------------------------------------

    def _on_announcement(self, message: KeyAnnouncement) -> list[Outgoing]:
        check_announcement(self.agreement, self.context, message)
        self._announcements.setdefault(message.site, message)
        everyone = len(self._announcements) == self.agreement.n
        return self._send_keys() if everyone and not self._keys_sent and not self._vectors else []

    def _on_keys(self, message: KeyList) -> list[Outgoing]:
        """A member sends the keys that it was sent by another summing site."""
        for announcement in message.announcements:
            check_announcement(self.agreement, self.context, announcement)
            self._announcements.setdefault(announcement.site, announcement)
        self._keys_sent = True
        return []

    def _send_keys(self) -> list[Outgoing]:
        if len(self._announcements) < self.agreement.terms.quorum:
            return self._give_up(f"only {len(self._announcements)} members answered with keys")
        self._keys_sent = True
        listed = tuple(self._announcements[name] for name in sorted(self._announcements))
        return self._to(self._announcements, KeyList(self.context, listed))

    def _on_sealed(self, message: SealedShares) -> list[Outgoing]:
        if message.site in self._announcements and not self.shares_sent:
            self._sealed.setdefault(message.site, message)
        everyone = self._keys_sent and self._sealed.keys() == self._announcements.keys()
        return self._send_shares() if everyone and not self.shares_sent and not self._vectors else []

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
        everyone = set(message.sharers) <= self._vectors.keys()
        if self._proposed is None and not self._votes and everyone:
            return self._propose()
        return []

    def _propose(self) -> list[Outgoing]:
        """Propose the list that was signed already, or that of all vectors with the same partners."""
        if self._votes:
            chosen, _ = Counter((v.partners, v.survivors) for v in self._votes.values()).most_common(1)[0]
        else:
            partners, _ = Counter(v.header.partners for v in self._vectors.values()).most_common(1)[0]
            same = (name for name, v in self._vectors.items() if v.header.partners == partners)
            chosen = (partners, tuple(sorted(same)))
        if missing := [name for name in chosen[1] if name not in self._vectors]:
            return self._give_up(f"the vector of {', '.join(missing)} is on a signed list and not here")
        sharers = self._vectors[chosen[1][0]].sharers
        try:
            check_survivors(self.agreement, sharers, chosen[1])
        except PeerError as error:
            return self._give_up(str(error))
        self._proposed = chosen
        headers = tuple(self._vectors[name].header for name in chosen[1])
        return self._to(sharers, Proposal(self.context, headers)) + self._count_votes()

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
        if not all(name in self._vectors for name in chosen[1]):
            return self._give_up("members have signed a list with vectors that are not here")
        signatures = {
            v.site: v.signature for v in self._votes.values() if (v.partners, v.survivors) == chosen
        }
        self._certificate = Certificate(self.context, *chosen, signatures)
        return self._to(self._vectors[chosen[1][0]].sharers, self._certificate)

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
        needed, graph = self.agreement.graph.threshold, self.agreement.graph
        if len(self._openings) < needed:
            return []
        survivors = self._certificate.survivors
        sharers = self._vectors[survivors[0]].sharers
        shares: dict[str, dict[int, bytes]] = {name: {} for name in sharers}
        for opening in self._openings.values():
            at = self.agreement.position(opening.site)
            for name, share in {**opening.seed_shares, **opening.key_shares}.items():
                given = opening.seed_shares if name in survivors else opening.key_shares
                if name in given and name in shares and opening.site in graph.holders(name):
                    shares[name][at] = share
        if any(len(found) < needed for found in shares.values()):
            return []
        try:
            total = self._unmasked({name: sharing.restore(found, needed) for name, found in shares.items()})
        except PeerError as error:
            return self._give_up(str(error))
        found = SumResult(
            self.context, self.name, self._certificate, masking.packed(total, self.agreement.terms.bits)
        )
        self.result = replace(found, signature=sign(self._key, found.signed_part()))
        return self._to(self.agreement.names, self.result)

    def _unmasked(self, secrets: dict[str, bytes]) -> masking.Ring:
        """The sum of the survivors' vectors without their self-masks and without the masks of members that dropped out."""
        assert self._certificate is not None
        bits, graph = self.agreement.terms.bits, self.agreement.graph
        survivors = set(self._certificate.survivors)
        total = np.zeros(self.agreement.terms.size, dtype=np.uint64)
        for name in self._certificate.survivors:
            total += masking.unpacked(self._vectors[name].vector, self.agreement.terms.size, bits)
            if seed_commitment(self.context, secrets[name]) != self._announcements[name].seed_commitment:
                raise PeerError(f'the shares of "{name}" do not restore its self-mask')
            key = masking.self_key(secrets[name], self.context, name)
            masking.add_stream(total, key, bits, subtract=True)
        for gone in sorted(secrets.keys() - survivors):
            mask = X25519PrivateKey.from_private_bytes(secrets[gone])
            if mask.public_key().public_bytes_raw() != self._announcements[gone].mask_key:
                raise PeerError(f'the shares of "{gone}" do not restore its key')
            for name in graph.neighbours(gone):
                if name in survivors:
                    secret = masking.common_secret(mask, self._announcements[name].mask_key)
                    key = masking.pair_key(secret, self.context, gone, name)
                    masking.add_pair_stream(total, key, bits, name, gone, undo=True)
        return total

    def _on_result(self, message: SumResult) -> list[Outgoing]:
        """Another summing site has opened the sum: pass it on."""
        check_result(self.agreement, message)
        self.result = message
        return self._to(self.agreement.names, message)

    def _give_up(self, reason: str) -> list[Outgoing]:
        self.given_up = reason
        return self._to(self.agreement.names, GivenUp(self.context, reason))

    def _to(self, names: Iterable[str], message: Message) -> list[Outgoing]:
        return [(name, message) for name in sorted(names)]
