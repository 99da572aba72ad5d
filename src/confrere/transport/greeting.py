"""What two sites tell each other before anything else, and why one of them may refuse.

TLS has shown who the other side is. The greeting shows that both mean the same: protocol, run, study, roster and
epoch. It also carries ledger marks. A ledger that was put back from a backup cannot be noticed from inside, so every
site hands its peers a signed mark of where its ledger stands, peers keep the highest, and return it at every
greeting. The mark is signed by the site that it is about: a peer can return an old one, but not invent a higher one.
For the same reason it returns the header of the last parcel that it was sent: a site whose folder is older than that would
use numbers twice.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from confrere.core.errors import PeerRefused

PROTOCOL = 1
LARGEST_GREETING = 16 * 1024
LONGEST_HEADER = 8 * 1024


@dataclass(frozen=True)
class LedgerMark:
    """«The ledger of this site, in this run, stands at this entry», signed by the site."""

    run: str
    site: str
    counter: int
    head: str
    signature: str = ""

    def signed(self, key: Ed25519PrivateKey) -> LedgerMark:
        return replace(self, signature=key.sign(self._text()).hex())

    def genuine(self, key: Ed25519PublicKey) -> bool:
        try:
            key.verify(bytes.fromhex(self.signature), self._text())
        except (InvalidSignature, ValueError):
            return False
        return True

    def _text(self) -> bytes:
        return b"confrere ledger 1\n" + _canonical([self.run, self.site, self.counter, self.head])


@dataclass(frozen=True)
class Greeting:
    """What one side says. `sender`, `receiver`, `seen` and `process` are filled in for each peer."""

    run: str
    study: str
    """The hash of the study."""
    roster: str
    """The hash of the signed roster."""
    epoch: int
    sender: str
    receiver: str
    mark: LedgerMark | None = None
    """Where the sender's ledger stands."""
    seen: LedgerMark | None = None
    """Where the receiver's ledger stood when the sender last heard of it."""
    last: str = ""
    """The header of the last parcel of the receiver's that the sender has taken in, as the receiver signed it."""
    process: str = ""
    """Names this run of the program, so that a peer can tell a restart from a second connection."""
    protocol: int = PROTOCOL
    version: str = ""


def refuse(own: Greeting, theirs: Greeting, key: Ed25519PublicKey) -> None:
    """Raises PeerRefused, in words that the other side's owner understands, unless both mean the same.

    `own` is what this side says to that peer, `key` the peer's identity. `own.seen` is what this side remembers of
    the peer's ledger: a peer whose ledger stands lower was rolled back.
    """
    me, you = own.sender, own.receiver
    if theirs.protocol != own.protocol:
        raise PeerRefused(
            f'"{you}" speaks protocol {theirs.protocol} and "{me}" protocol {own.protocol}: '
            f"update the older of the two programs"
        )
    if theirs.sender != you or theirs.receiver != me:
        raise PeerRefused(f'"{you}" introduced itself to "{me}" as "{theirs.sender}" for "{theirs.receiver}"')
    for what, here, there in (
        ("run", own.run, theirs.run),
        ("study (hash)", own.study, theirs.study),
        ("epoch of membership", str(own.epoch), str(theirs.epoch)),
        ("roster (hash)", own.roster, theirs.roster),
    ):
        if here != there:
            raise PeerRefused(
                f'"{you}" has another {what} than "{me}": {there[:64]} instead of {here[:64]}; '
                "compare the two sites' files"
            )
    mark = theirs.mark
    if mark is not None and ((mark.run, mark.site) != (own.run, you) or not mark.genuine(key)):
        raise PeerRefused(f'"{you}" sent a ledger mark without its own valid signature')
    seen = own.seen
    if seen is not None and (mark is None or mark.counter < seen.counter):
        stands = "shows no ledger" if mark is None else f"stands at entry {mark.counter} of its ledger"
        raise PeerRefused(
            f'"{you}" {stands}, but "{me}" saw entry {seen.counter}: that ledger was rolled back. '
            "Never restore a ledger from an old copy; bring back the newest one"
        )


def pack(greeting: Greeting) -> bytes:
    return _canonical(asdict(greeting))


def unpack(data: bytes) -> Greeting:
    """The greeting in these bytes; anything else is refused."""
    if len(data) > LARGEST_GREETING:
        raise PeerRefused(f"a greeting of {len(data):,} bytes; at most {LARGEST_GREETING:,} are read")
    try:
        found = _Greeting.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its text"
        raise PeerRefused(f"a greeting that cannot be read: {where[:80]}") from None
    table: dict[str, Any] = found.model_dump()
    for name in ("mark", "seen"):
        table[name] = None if table[name] is None else LedgerMark(**table[name])
    return Greeting(**table)


def printable(text: str, most: int = 300) -> str:
    """What another site wrote, fit for a log or a terminal."""
    return re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text[: 4 * most])).strip()[
        :most
    ]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Mark(_Strict):
    run: str = Field(max_length=256)
    site: str = Field(max_length=256)
    counter: int = Field(ge=0, lt=2**53)
    head: str = Field(max_length=128)
    signature: str = Field(pattern=r"^([0-9a-f]{2}){0,64}$")


class _Greeting(_Strict):
    run: str = Field(max_length=256)
    study: str = Field(max_length=128)
    roster: str = Field(max_length=128)
    epoch: int = Field(ge=0, lt=2**53)
    sender: str = Field(max_length=256)
    receiver: str = Field(max_length=256)
    mark: _Mark | None
    seen: _Mark | None
    last: str = Field(max_length=LONGEST_HEADER)
    process: str = Field(max_length=64)
    protocol: int = Field(ge=0, lt=2**31)
    version: str = Field(max_length=64)


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
