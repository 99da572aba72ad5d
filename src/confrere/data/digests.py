"""Digests of patients and records, from their ids or contents alone: the same in every export.

Nothing here looks at a second record, so one record more changes no other number. Digests of ids without a key can
be guessed: like the records, they are PRIVATE.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Digests = NDArray[np.uint64]
_WHOLE = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")
_FORMER_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")

SIZE = 8
ROWS = 4096
"""Records are hashed in pieces of this size, so that inputs that lie on the disk are never whole in memory."""


def normal_id(text: str) -> str:
    """The one way to write a patient id; the ledger, the split and the grouping by patient all use it.

    Case, Unicode form (NFKC), kinds of digits, dashes and spaces, and invisible characters make no difference. A whole
    number loses its decimals and its leading zeros, which spreadsheets drop; inside a code zeros count. Where this takes
    two patients for one, both are protected, together; two spellings of one patient would have two budgets.

    >>> normal_id(" 17.0 "), normal_id("0017"), normal_id("A-0017"), normal_id("a\u2011\uff10017")
    ('17', '17', 'a-0017', 'a-0017')
    """
    while not text.isascii():
        before, text = text, unicodedata.normalize("NFKC", text.casefold())
        text = "".join(map(_plain, text)).strip()
        if text == before:
            break
    text = " ".join(text.casefold().split())
    found = _WHOLE.fullmatch(text)
    if found is None:
        return text
    return found[2] if found[2] == "0" else found[1] + found[2]


def _plain(letter: str) -> str:
    """A digit or dash of any script as the plain one; nothing for what cannot be seen."""
    kind = unicodedata.category(letter)
    if kind == "Nd":
        return str(unicodedata.decimal(letter))
    if kind == "Cf":
        return ""
    return "-" if kind == "Pd" or letter == "\u2212" else letter


def former_id(text: str) -> str:
    """The form of ids whose hashes the first ledgers with populations hold: only decimals and spaces around are dropped."""
    text = unicodedata.normalize("NFC", text.strip())
    return found[1] if (found := _FORMER_WHOLE.fullmatch(text)) else text


def of_ids(texts: Iterable[str]) -> Digests:
    """A digest for each patient id, in its normal form.

    >>> one, two = of_ids([" A-17", "a-17 "])
    >>> bool(one == two)
    True
    """
    return of_normal_ids(map(normal_id, texts))


def of_normal_ids(ids: Iterable[str]) -> Digests:
    """The same for ids that are in their normal form already."""
    return _joined(blake2b(id.encode(), digest_size=SIZE).digest() for id in ids)


def former_ids(texts: Sequence[str], normal: Sequence[str]) -> Digests:
    """A row for each id whose former form is another one than its normal form: the digests of both."""
    other = [text for text, now in zip(texts, normal, strict=True) if now != former_id(text)]
    return np.stack([of_ids(other), of_texts(other)], axis=1)


def of_texts(texts: Iterable[str]) -> Digests:
    """A digest for each text in NFC, without spaces around it: other letters are another text."""
    return _joined(blake2b(former_id(text).encode(), digest_size=SIZE).digest() for text in texts)


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
    """The digests hashed again, with a key."""
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
