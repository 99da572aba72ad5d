"""Numbers that stand for a patient or a record, from its own id or content alone: the same in every export.

Nothing here looks at a second record, so one record more changes no other number. Digests of ids without a key can
be guessed: like the records, they are PRIVATE.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Digests = NDArray[np.uint64]
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")

SIZE = 8
ROWS = 4096
"""Records are hashed in pieces of this size, so that inputs that lie on the disk are never whole in memory."""


def canonical(text: str) -> str:
    """The one way to write an id: without spaces around it, in NFC, and a whole number without decimals.

    Leading zeros count: they are part of a code.

    >>> canonical(" 17.0 "), canonical("17"), canonical("0017"), canonical("A-17")
    ('17', '17', '0017', 'A-17')
    """
    text = unicodedata.normalize("NFC", text.strip())
    return found[1] if (found := _WHOLE.fullmatch(text)) else text


def of_texts(texts: Iterable[str]) -> Digests:
    """A digest for each text, such as a patient id, in its canonical form.

    >>> one, two = of_texts([" A-17", "A-17 "])
    >>> bool(one == two)
    True
    """
    return _joined(blake2b(canonical(text).encode(), digest_size=SIZE).digest() for text in texts)


def of_rows(inputs: Tensor, targets: Tensor, key: bytes = b"") -> Digests:
    """A digest of the encoded content of each record: its inputs and its target. With a key, only its owner can make it."""
    out = np.empty(len(inputs), dtype=np.uint64)
    for start in range(0, len(inputs), ROWS):
        x = inputs[start : start + ROWS].flatten(1).float().numpy() + np.float32(0)  # −0 is 0
        y = targets[start : start + ROWS].reshape(len(x), -1).double().numpy() + 0.0
        parts = (np.ascontiguousarray(x).view(np.uint8), np.ascontiguousarray(y).view(np.uint8))
        rows = np.concatenate([p.reshape(len(x), -1) for p in parts], axis=1)
        out[start : start + len(x)] = _keyed(memoryview(rows.tobytes()), rows.shape[1], key)
    return out


def keyed(digests: Digests, key: bytes) -> Digests:
    """The digests hashed once more with a key."""
    return _keyed(memoryview(np.ascontiguousarray(digests).tobytes()), SIZE, key)


def mixed(x: Digests) -> Digests:
    """The finaliser of splitmix64: one to one, and every bit of the input moves every bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _keyed(rows: memoryview, width: int, key: bytes) -> Digests:
    return _joined(
        blake2b(rows[at : at + width], digest_size=SIZE, key=key).digest()
        for at in range(0, len(rows), width)
    )


def _joined(parts: Iterable[bytes]) -> Digests:
    return np.frombuffer(b"".join(parts), dtype=np.uint64).copy()
