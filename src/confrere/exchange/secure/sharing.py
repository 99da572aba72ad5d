"""Secrets divided among members so that a threshold restores them, and fewer learn nothing (Shamir 1979).

A secret of 32 bytes is the value at 0 of a random polynomial over the prime field of 2^256 + 297; the member at position x holds
the value at x. Any `threshold` − 1 values are uniform and independent of the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from confrere.core.errors import BadParcel, PeerError

PRIME = 2**256 + 297
"""The smallest prime above all secrets of 32 bytes."""

SHARE_BYTES = 33
SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
"""A nonce, two shares and a tag."""


def divide(secret: bytes, positions: Collection[int], threshold: int) -> dict[int, bytes]:
    """A share for each position; any `threshold` of them restore the secret."""
    if len(secret) != 32:
        raise ValueError("a secret that is shared out has 32 bytes")
    if not 1 <= threshold <= len(set(positions)) or 0 in positions:
        raise ValueError(f"{threshold} of {len(positions)} positions cannot restore a secret")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    found = {}
    for x in positions:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * x + coefficient) % PRIME
        found[x] = value.to_bytes(SHARE_BYTES, "big")
    return found


def restore(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret from shares by position; the first `threshold` of them are used. None if they are not of one secret."""
    if len(shares) < threshold:
        raise PeerError(f"{len(shares)} shares do not restore a secret that needs {threshold}")
    positions = tuple(sorted(shares)[:threshold])
    weights = _weights(positions)
    total = sum(
        weight * int.from_bytes(shares[x], "big") for weight, x in zip(weights, positions, strict=True)
    )
    value = total % PRIME
    return value.to_bytes(32, "big") if value < 2**256 else None


@lru_cache(maxsize=1024)
def _weights(positions: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights for the value at 0."""
    found = []
    for x in positions:
        above, below = 1, 1
        for other in positions:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


def seal(key: bytes, key_share: bytes, seed_share: bytes, context: bytes) -> bytes:
    """The shares of a member's two secrets, encrypted for one holder."""
    nonce = secrets.token_bytes(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, key_share + seed_share, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> tuple[bytes, bytes]:
    """The share of the key and that of the self-mask seed; what was changed on the way is refused."""
    try:
        plain = ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], context)
    except (InvalidTag, ValueError):
        raise BadParcel("the shares of a member cannot be decrypted") from None
    found = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
    if not all(well_formed(share) for share in found):
        raise BadParcel("the shares of a member are not numbers of the field")
    return found


def well_formed(share: bytes) -> bool:
    """Whether these bytes are a number of the field."""
    return len(share) == SHARE_BYTES and int.from_bytes(share, "big") < PRIME
