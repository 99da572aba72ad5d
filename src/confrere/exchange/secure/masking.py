"""Vectors modulo 2^m, and the streams that hide them.

A member adds to its vector one stream that it has in common with each partner (one of the two adds it, the other subtracts
it) and one stream of its own. In the sum over all members the common ones cancel. Each stream is ChaCha20 under a key of its
own, derived by HKDF from a secret and from everything that identifies its use, so that one stream masks one vector.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from confrere.core.errors import BadParcel, PrivacyError

Ring = NDArray[np.uint64]
"""A vector modulo 2^m."""

BLOCK = 1 << 15
"""How many numbers of a stream are made at a time: they stay in the cache until they are added."""

_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))

ZEROS = bytes(8 * BLOCK)


def to_ring(steps: NDArray[np.int64], bits: int) -> Ring:
    """Whole grid steps modulo 2^`bits`."""
    if steps.dtype != np.int64:
        raise PrivacyError(f"a vector to be masked consists of whole grid steps, not of {steps.dtype}")
    return _reduced(steps.view(np.uint64).copy(), bits)


def from_ring(vector: Ring, bits: int) -> NDArray[np.int64]:
    """The whole grid steps of a vector modulo 2^`bits`, from −2^(bits−1) to 2^(bits−1) − 1."""
    unused = np.uint64(64 - bits)
    return (vector << unused).view(np.int64) >> unused.view(np.int64)


def from_steps(steps: NDArray[np.int64], grid: float) -> NDArray[np.float64]:
    """Whole grid steps as values."""
    return steps.astype(np.float64) * grid


def packed_bytes(size: int, bits: int) -> int:
    """How many bytes `packed` makes of a vector."""
    return size * -(-bits // 8)


def packed(vector: Ring, bits: int) -> bytes:
    """A vector modulo 2^`bits` in whole bytes."""
    width = -(-bits // 8)
    columns = vector.astype("<u8").view(np.uint8).reshape(-1, 8)
    return columns[:, :width].tobytes() if width < 8 else columns.tobytes()


def unpacked(data: bytes, size: int, bits: int) -> Ring:
    """The vector of `packed`; anything of another length, or out of range, is refused."""
    width = -(-bits // 8)
    if len(data) != size * width:
        raise BadParcel(f"a masked vector of {size} numbers has {size * width} bytes, not {len(data)}")
    if width == 8:
        found = np.frombuffer(data, dtype="<u8").astype(np.uint64)
    else:
        columns = np.zeros((size, 8), dtype=np.uint8)
        columns[:, :width] = np.frombuffer(data, dtype=np.uint8).reshape(size, width)
        found = columns.view("<u8").reshape(-1).astype(np.uint64)
    if bits % 8 and bool((found >> np.uint64(bits)).any()):
        raise BadParcel(f"a masked vector has numbers of more than {bits} bits")
    return found


def common_secret(own: X25519PrivateKey, other: bytes) -> bytes:
    """What two members have in common; a public key of low order is refused."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise BadParcel("a public key of a masked sum is not valid") from None


@lru_cache(maxsize=1 << 14)
def usable(key: bytes) -> bool:
    """Whether a public key is valid and not of low order, with which all secrets in common would be zero."""
    try:
        _ANY_KEY.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def derived(secret: bytes, context: bytes, purpose: str, *pair: str) -> bytes:
    """A 32-byte key for one purpose of one or two members, in this order, within a context."""
    parts = [context, purpose.encode(), *(name.encode() for name in pair)]
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"confrere masked sum" + info).derive(secret)


def pair_key(secret: bytes, context: bytes, one: str, other: str) -> bytes:
    """The key of the stream that two members have in common, whichever of them asks."""
    return derived(secret, context, "pair mask", *sorted((one, other)))


def self_key(seed: bytes, context: bytes, name: str) -> bytes:
    """The key of a member's own stream."""
    return derived(seed, context, "self mask", name)


def add_stream(vector: Ring, key: bytes, bits: int, *, subtract: bool = False) -> None:
    """Add a stream to a vector in place, or subtract it, modulo 2^`bits`."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    buffer = bytearray(8 * min(BLOCK, len(vector)))
    words = np.frombuffer(buffer, dtype="<u8")
    operate = np.subtract if subtract else np.add
    for start in range(0, len(vector), BLOCK):
        part = vector[start : start + BLOCK]
        cipher.update_into(memoryview(ZEROS)[: 8 * len(part)], buffer)
        operate(part, words[: len(part)], out=part)
    _reduced(vector, bits)


def add_pair_stream(
    vector: Ring, key: bytes, bits: int, name: str, partner: str, *, undo: bool = False
) -> None:
    """Add the common stream as member `name` does: the first of the two by name adds it, the other subtracts it."""
    add_stream(vector, key, bits, subtract=(name > partner) != undo)


def _reduced(vector: Ring, bits: int) -> Ring:
    if bits < 64:
        vector &= np.uint64((1 << bits) - 1)
    return vector
