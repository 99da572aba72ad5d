"""The secrets of one member in one attempt: made for it, kept in memory, and shared out.

They are never written to a disk. When the attempt closes, the member drops them; Python does not promise to overwrite the
memory.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from confrere.core.errors import BadParcel, PeerError
from confrere.exchange.secure import masking, sharing
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.messages import KeyAnnouncement, SealedShares, sign
from confrere.exchange.secure.verification import Announcements, seed_commitment


@dataclass(frozen=True)
class MemberSecrets:
    """A mask key and the seed of the self-mask, which are shared out, and a channel key, which is not."""

    context: bytes
    name: str
    data: bytes = field(repr=False)

    @classmethod
    def fresh(cls, context: bytes, name: str) -> MemberSecrets:
        return cls(context, name, os.urandom(96))

    @cached_property
    def mask(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.data[:32])

    @cached_property
    def channel(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.data[32:64])

    @property
    def seed(self) -> bytes:
        return self.data[64:]

    def announcement(self, key: Ed25519PrivateKey) -> KeyAnnouncement:
        """The public keys, signed by the site."""
        mask, channel = (secret.public_key().public_bytes_raw() for secret in (self.mask, self.channel))
        found = KeyAnnouncement(
            self.context, self.name, mask, channel, seed_commitment(self.context, self.seed)
        )
        return replace(found, signature=sign(key, found.signed_part()))

    def shared_out(
        self, agreement: Agreement, known: Announcements, signing: Ed25519PrivateKey
    ) -> SealedShares:
        """A share of the mask key and one of the seed for each holder that sent keys, encrypted to it; all of it signed."""
        holders = [name for name in agreement.graph.holders(self.name) if name in known]
        needed = agreement.graph.threshold
        if len(holders) < needed:
            raise PeerError(
                f"{len(holders)} members answered that could hold shares, and {needed} are needed"
            )
        positions = [agreement.position(name) for name in holders]
        of_key = sharing.divide(self.data[:32], positions, needed)
        of_seed = sharing.divide(self.seed, positions, needed)
        sealed = {}
        for name, at in zip(holders, positions, strict=True):
            key = self._channel_key(known[name].channel_key, self.name, name)
            sealed[name] = sharing.seal(key, of_key[at], of_seed[at], self.context)
        found = SealedShares(self.context, self.name, sealed)
        return replace(found, signature=sign(signing, found.signed_part()))

    def received(self, sender: str, sealed: bytes, known: Announcements) -> tuple[bytes, bytes]:
        """The shares that another member has encrypted to this one: of its key, and of its seed."""
        key = self._channel_key(known[sender].channel_key, sender, self.name)
        try:
            return sharing.unseal(key, sealed, self.context)
        except BadParcel as error:
            raise BadParcel(f'"{sender}": {error}') from None

    def _channel_key(self, other: bytes, sender: str, receiver: str) -> bytes:
        return masking.derived(
            masking.common_secret(self.channel, other), self.context, "shares", sender, receiver
        )

    def add_masks(
        self, vector: masking.Ring, bits: int, partners: Collection[str], known: Announcements
    ) -> None:
        """Hide a vector in place: by the member's own stream, and by one in common with each partner."""
        masking.add_stream(vector, masking.self_key(self.seed, self.context, self.name), bits)
        for partner in partners:
            secret = masking.common_secret(self.mask, known[partner].mask_key)
            key = masking.pair_key(secret, self.context, self.name, partner)
            masking.add_pair_stream(vector, key, bits, self.name, partner)
