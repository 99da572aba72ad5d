"""The common seed of a mask graph: made by all members together after the roster is fixed, so that none of them chooses it.

    1  commitment     the hash of a random part, signed                   →  the commitments of all members
    2  confirmation   a signature on all commitments together             →  the confirmations of all members
    3  part           the part itself, once all have confirmed the same   →  the seed

A member that reveals before all have confirmed could be answered by a commitment that depends on its part. One that commits
and does not reveal is removed from the roster, and the rest start again: `mask_graph` divides its chance by the
number of times that colluding members can force this.

The bounds of `mask_graph` hold if who colludes does not depend on the seed. A member that is taken over later, because of its
place in the graph, is not covered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confrere.core.errors import BadParcel, PeerError, PrivacyError
from confrere.exchange.secure.agreement import MaskingMember, roster_hash
from confrere.exchange.secure.messages import digest, sign, verified


@dataclass(frozen=True)
class SeedCommitment:
    """Fixes a member's part of the seed without showing it."""

    hash: bytes
    signature: bytes


class SeedMember:
    """One member in the three steps. Its part is in memory only: one that was started again commits anew, under a new roster."""

    def __init__(
        self, members: Sequence[MaskingMember], epoch: int, name: str, key: Ed25519PrivateKey
    ) -> None:
        self._keys = {member.name: member.key for member in members}
        self._roster, self._name, self._key = roster_hash(members, epoch), name, key
        self._part = os.urandom(32)
        self._commitments: dict[str, SeedCommitment] = {}
        self._confirmed = False

    def commitment(self) -> SeedCommitment:
        """What is sent first."""
        found = self._hash(self._name, self._part)
        return SeedCommitment(found, sign(self._key, self._committed(self._name, found)))

    def confirm(self, commitments: Mapping[str, SeedCommitment]) -> bytes:
        """The signature on the commitments of all members; no other ones are confirmed afterwards."""
        self._require_all(commitments, "committed to a part of the seed")
        for name, found in commitments.items():
            if not verified(self._keys[name], found.signature, self._committed(name, found.hash)):
                raise BadParcel(f'the commitment of "{name}" is not signed by it')
        if commitments[self._name] != self.commitment():
            raise BadParcel("the commitments have another one of this member than it has sent")
        if self._commitments and self._commitments != dict(commitments):
            raise PrivacyError("other commitments were confirmed before; nothing is signed or revealed")
        self._commitments = dict(commitments)
        return sign(self._key, self._set(self._name))

    def reveal(self, confirmations: Mapping[str, bytes]) -> bytes:
        """This member's part, once all members have confirmed the same commitments."""
        self._require_all(confirmations, "confirmed the commitments")
        for name, signature in confirmations.items():
            if not self._commitments or not verified(self._keys[name], signature, self._set(name)):
                raise BadParcel(f'"{name}" has not confirmed the same commitments')
        self._confirmed = True
        return self._part

    def seed(self, parts: Mapping[str, bytes]) -> bytes:
        """The common seed, from the parts of all members."""
        self._require_all(parts, "revealed a part of the seed")
        if not self._confirmed:
            raise PrivacyError(
                "a seed is made of parts that were revealed after all commitments were confirmed"
            )
        for name, part in parts.items():
            if len(part) != 32 or self._hash(name, part) != self._commitments[name].hash:
                raise PeerError(f'"{name}" revealed another part of the seed than it committed to')
        return digest("graph seed", self._roster, *(parts[name] for name in sorted(parts)))

    def _require_all(self, found: Mapping[str, object], what: str) -> None:
        if found.keys() != self._keys.keys():
            known = sorted(found.keys() & self._keys.keys())
            raise PeerError(
                f"{len(known)} of {len(self._keys)} members have {what}; all of them must, and no other site"
            )

    def _hash(self, name: str, part: bytes) -> bytes:
        return digest("graph part", self._roster, name.encode(), part)

    def _committed(self, name: str, found: bytes) -> bytes:
        return digest("graph commitment", self._roster, name.encode(), found)

    def _set(self, name: str) -> bytes:
        """What a member signs to confirm, in its own name."""
        listed = [
            part
            for site in sorted(self._commitments)
            for part in (site.encode(), self._commitments[site].hash)
        ]
        return digest("graph commitments", self._roster, name.encode(), *listed)
