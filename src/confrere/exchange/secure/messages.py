"""What members and the summing site of a masked sum send, as bytes and with signatures.

What the summing site passes on is signed by the member that it comes from, and so is what ends an attempt. Callers also pass
the sender of every message, which the connection has authenticated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from confrere.core.errors import BadParcel, PrivacyError
from confrere.exchange.secure.agreement import Agreement

MOST_ATTEMPTS = 3
"""How many attempts at one sum a member takes part in: each of them is charged, whatever it opens."""


@dataclass(frozen=True)
class AttemptId:
    """Which attempt at which sum: no two attempts ever share a key, a mask or noise."""

    run: str
    round: int
    role: str
    call: int
    attempt: int
    turn: int = 0
    """Where the rota of summing sites starts."""

    def __post_init__(self) -> None:
        if not 0 <= self.attempt < MOST_ATTEMPTS:
            raise PrivacyError(f"a masked sum has {MOST_ATTEMPTS} attempts at most, each with its own charge")

    def context(self, agreement: Agreement) -> bytes:
        """Identifies the attempt and everything that was agreed on; part of every signature and every derived key."""
        return digest(
            "attempt", agreement.digest, *(str(getattr(self, f.name)).encode() for f in fields(self))
        )

    def subject(self, agreement: Agreement) -> str:
        """What the facts about the attempt in a ledger are about."""
        return f"{self}/{self.context(agreement).hex()[:16]}"

    def __str__(self) -> str:
        return f"{self.run}/{self.round}/{self.role}/{self.call}/{self.attempt}"


@dataclass(frozen=True)
class Message:
    """One message of an attempt."""

    context: bytes


@dataclass(frozen=True)
class KeyAnnouncement(Message):
    """A member's fresh public keys, and a commitment to the seed of its self-mask."""

    site: str
    mask_key: bytes
    channel_key: bytes
    seed_commitment: bytes
    signature: bytes = b""

    def signed_part(self) -> bytes:
        keys = (self.mask_key, self.channel_key, self.seed_commitment)
        return digest("keys", self.context, self.site.encode(), *keys)


@dataclass(frozen=True)
class KeyList(Message):
    """The keys of all members that answered."""

    announcements: tuple[KeyAnnouncement, ...]


@dataclass(frozen=True)
class SealedShares(Message):
    """The shares of a member's secrets, encrypted to each holder."""

    site: str
    sealed: dict[str, bytes]
    signature: bytes = b""

    def signed_part(self) -> bytes:
        parts = [part for name in sorted(self.sealed) for part in (name.encode(), self.sealed[name])]
        return digest("shares", self.context, self.site.encode(), *parts)


@dataclass(frozen=True)
class ShareDelivery(Message):
    """Who has shared out secrets, and the shares that are addressed to one member."""

    sharers: tuple[str, ...]
    sealed: dict[str, bytes]


@dataclass(frozen=True)
class VectorHeader(Message):
    """A member's statement which vector it sent, and with whom it is masked."""

    site: str
    partners: bytes
    vector_digest: bytes
    signature: bytes = b""

    def signed_part(self) -> bytes:
        return digest("vector", self.context, self.site.encode(), self.partners, self.vector_digest)


@dataclass(frozen=True)
class MaskedVector(Message):
    """A masked vector, with the members that had shared out secrets when it was masked."""

    header: VectorHeader
    sharers: tuple[str, ...]
    vector: bytes

    @property
    def site(self) -> str:
        return self.header.site


@dataclass(frozen=True)
class Proposal(Message):
    """The members whose vectors arrived, each with its own statement."""

    headers: tuple[VectorHeader, ...]

    @property
    def survivors(self) -> tuple[str, ...]:
        return tuple(header.site for header in self.headers)


@dataclass(frozen=True)
class Vote(Message):
    """A member's signature on a list of survivors: one for each attempt."""

    site: str
    partners: bytes
    survivors: tuple[str, ...]
    signature: bytes = b""

    def signed_part(self) -> bytes:
        return signed_list(statement(self.context, self.partners, self.survivors), self.site)


@dataclass(frozen=True)
class Certificate(Message):
    """Signatures of enough members on one list of survivors."""

    partners: bytes
    survivors: tuple[str, ...]
    signatures: dict[str, bytes]


@dataclass(frozen=True)
class OpenedShares(Message):
    """A holder's shares: of the self-mask of survivors, and of the mask keys of others."""

    site: str
    statement: bytes
    seed_shares: dict[str, bytes]
    key_shares: dict[str, bytes]


@dataclass(frozen=True)
class SumResult(Message):
    """The opened sum, with the list that it is the sum of."""

    site: str
    certificate: Certificate
    vector: bytes
    signature: bytes = b""

    def signed_part(self) -> bytes:
        listed = statement(self.context, self.certificate.partners, self.certificate.survivors)
        return digest("sum", self.context, self.site.encode(), listed, hashlib.sha256(self.vector).digest())


@dataclass(frozen=True)
class GivenUp(Message):
    """The summing site has ended the attempt."""

    site: str
    reason: str
    signature: bytes = b""

    def signed_part(self) -> bytes:
        return digest("given up", self.context, self.site.encode(), self.reason.encode())


KINDS: tuple[type[Message], ...] = (
    KeyAnnouncement, KeyList, SealedShares, ShareDelivery, MaskedVector, Proposal, Vote, Certificate, OpenedShares,
    SumResult, GivenUp,
)  # fmt: skip


def kinds_by_name(*kinds: type[Message]) -> dict[str, type[Message]]:
    """Kinds of messages as `decode` looks them up."""
    return {kind.__name__: kind for kind in kinds}


_KIND = kinds_by_name(*KINDS)


_HINTS: dict[type[Message], dict[str, Any]] = {}


def _hints(kind: type[Message]) -> dict[str, Any]:
    """The fields of a kind, with their types; looked up once."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def statement(context: bytes, partners: bytes, survivors: tuple[str, ...]) -> bytes:
    """Identifies the attempt with all that was agreed on, with whom vectors are masked, and who survived."""
    return digest("survivors", context, partners, *(name.encode() for name in survivors))


def signed_list(stated: bytes, site: str) -> bytes:
    """What a member signs: a statement, in its own name."""
    return digest("vote", stated, site.encode())


def partners_digest(
    context: bytes, announcements: dict[str, KeyAnnouncement], sharers: tuple[str, ...]
) -> bytes:
    """Identifies the members that had shared out secrets, with their keys."""
    parts = [part for name in sharers for part in (name.encode(), announcements[name].signed_part())]
    return digest("partners", context, *parts)


def digest(purpose: str, *parts: bytes) -> bytes:
    """SHA-256 of parts that cannot run into each other."""
    joined = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(f"confrere masked {purpose}\0".encode() + joined).digest()


def sign(key: Ed25519PrivateKey, data: bytes) -> bytes:
    return key.sign(b"confrere masked sum\0" + data)


@lru_cache(maxsize=1 << 16)
def verified(key: bytes, signature: bytes, data: bytes) -> bool:
    """Whether a signature is that of this key on this data, which is a digest. Cached, for many members in one process."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, b"confrere masked sum\0" + data)
    except (InvalidSignature, ValueError):
        return False
    return True


class _Blob:
    """The bytes of a message, apart from its text, one part after the other."""

    def __init__(self, data: bytes = b"") -> None:
        self.parts: list[bytes] = []
        self.data, self.length = data, 0

    def add(self, part: bytes) -> int:
        self.parts.append(part)
        return len(part)

    def take(self, length: Any) -> bytes:
        """The next part: no byte is read twice."""
        start, self.length = self.length, self.length + length
        if type(length) is not int or length < 0 or self.length > len(self.data):
            raise ValueError
        return self.data[start : self.length]


def encode(message: Message) -> bytes:
    """A message as bytes: its fields as JSON, with the lengths of those that are bytes, and then these bytes."""
    blob = _Blob()
    text = json.dumps([type(message).__name__, _plain(message, blob)], separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(4, "big"), text, *blob.parts])


def decode(data: bytes, kinds: Mapping[str, type[Message]] = _KIND) -> Message:
    """The message of `encode`, if it is one of these kinds; anything else is refused."""
    try:
        length = int.from_bytes(data[:4], "big")
        if len(data) < 4 + length:
            raise ValueError
        kind, found = json.loads(data[4 : 4 + length])
        blob = _Blob(data[4 + length :])
        message: Message = _typed(kinds[kind], found, blob)
        if blob.length != len(blob.data):
            raise ValueError
        return message
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadParcel("a message of a masked sum cannot be read") from None


def _plain(value: Any, blob: _Blob) -> Any:
    if isinstance(value, bytes):
        return blob.add(value)
    if isinstance(value, tuple):
        return [_plain(item, blob) for item in value]
    if isinstance(value, dict):
        return {name: blob.add(item) for name, item in value.items()}
    if isinstance(value, Message):
        return {f.name: _plain(getattr(value, f.name), blob) for f in fields(value)}
    return value


def _typed(kind: Any, value: Any, blob: _Blob) -> Any:
    """A value of a field's type; bytes are looked up in the blob."""
    if kind is bytes:
        return blob.take(value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_typed(get_args(kind)[0], item, blob) for item in value)
    if get_origin(kind) is dict and isinstance(value, dict):
        return {_text(name): blob.take(item) for name, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Message):
        hints = _hints(kind)
        if isinstance(value, dict) and value.keys() == hints.keys():
            return kind(**{name: _typed(hint, value[name], blob) for name, hint in hints.items()})
    elif type(value) is kind:
        return _text(value) if kind is str else value
    raise ValueError


def _text(value: str) -> str:
    value.encode()  # half of a surrogate pair has no bytes, and so no signature
    return value
