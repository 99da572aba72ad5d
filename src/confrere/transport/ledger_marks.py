"""Signed marks of the state of a site's ledger, which peers keep to detect that an older copy was restored.

A ledger that was put back from a backup looks right from inside. So a site signs where its ledger stands in every
parcel and every greeting; peers keep the highest mark of each of its ledgers, across runs, and return it with every
receipt and at every handshake. Only a mark that the site itself has signed is evidence against it: a peer can return an
old one, and cannot invent a higher one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from confrere.core.parcel import LedgerMark

MOST_LEDGERS = 16
"""Ledgers of one site whose marks are kept and returned; a site has one for each population of patients."""


class MarkFields(BaseModel):
    """A mark as it is written in headers, greetings and receipts."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    ledger: str = Field(pattern=r"^[0-9a-f]{64}$")
    counter: int = Field(ge=0, lt=2**53)
    head: str = Field(pattern=r"^[0-9a-f]{64}$")
    signature: str = Field(pattern=r"^([0-9a-f]{2}){0,64}$")

    def mark(self) -> LedgerMark:
        return LedgerMark(**self.model_dump())


Marks = Annotated[list[MarkFields], Field(max_length=MOST_LEDGERS)]
_MARKS: TypeAdapter[list[MarkFields]] = TypeAdapter(Marks)


def sign(mark: LedgerMark, key: Ed25519PrivateKey) -> LedgerMark:
    return replace(mark, signature=key.sign(_signed_text(mark)).hex())


def genuine(mark: LedgerMark, key: Ed25519PublicKey) -> bool:
    """Whether the holder of the key has signed this mark."""
    try:
        key.verify(bytes.fromhex(mark.signature), _signed_text(mark))
    except (InvalidSignature, ValueError):
        return False
    return True


def dumps(marks: Sequence[LedgerMark]) -> bytes:
    return json.dumps([asdict(mark) for mark in marks], separators=(",", ":")).encode()


def loads(data: bytes) -> tuple[LedgerMark, ...]:
    """The marks in these bytes; ValueError for anything else."""
    try:
        return tuple(fields.mark() for fields in _MARKS.validate_json(data or b"[]"))
    except ValidationError:
        raise ValueError("marks that cannot be read") from None


def _signed_text(mark: LedgerMark) -> bytes:
    fields: list[Any] = [mark.ledger, mark.counter, mark.head]
    return b"confrere ledger 2\n" + json.dumps(fields, separators=(",", ":")).encode()
