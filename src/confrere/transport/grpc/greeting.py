"""The greeting: what two sites send first about themselves, and the reasons to refuse one.

TLS has shown who the other side is. The greeting shows that both mean the same: protocol, run, study, roster and
epoch. Its first message has had the same form since version 0.1, so that any two versions can name each other's.

A second message holds what each side remembers of the other: the highest marks of its ledgers (`transport.ledger_marks`) and
the header of the last parcel that it was sent, since a site whose folder is older than that would use numbers twice.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from confrere.core.errors import PeerRefused
from confrere.core.parcel import LedgerMark
from confrere.core.terminal import printable
from confrere.transport.ledger_marks import MarkFields, Marks, genuine

PROTOCOL = 2
LARGEST_GREETING = 24 * 1024
LONGEST_HEADER = 8 * 1024

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class Greeting:
    """The greeting of one side. `sender`, `receiver`, `seen` and `process` are filled in for each peer."""

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
    seen: tuple[LedgerMark, ...] = ()
    """The highest mark that the sender keeps of each ledger of the receiver."""
    last: str = ""
    """The header of the last parcel of the receiver's that the sender has taken in, as the receiver signed it."""
    process: str = ""
    """Names this run of the program, so that a peer can tell a restart from a second connection."""
    protocol: int = PROTOCOL
    version: str = ""


class LedgerBehind(PeerRefused):
    """The peer's mark is lower than one that this side has seen of the same ledger."""

    def __init__(self, text: str, shown: int, seen: int) -> None:
        super().__init__(text)
        self.shown, self.seen = shown, seen


def refuse_version(own: Greeting, theirs: Greeting) -> None:
    """Raises PeerRefused unless both speak the same protocol."""
    if theirs.protocol != own.protocol:
        version = printable(theirs.version, 40) or "of an unknown version"
        raise PeerRefused(
            f'"{own.receiver}" runs Confrère {version} (protocol {theirs.protocol}) and "{own.sender}" {own.version}'
            f" (protocol {own.protocol}): update the older of the two"
        )


def refuse(own: Greeting, theirs: Greeting, key: Ed25519PublicKey) -> None:
    """Raises PeerRefused, in words that the other side's owner understands, unless both mean the same.

    `own` is this side's greeting to that peer, `key` the peer's identity. `own.seen` is what this side remembers of
    the peer's ledgers: a peer whose ledger stands lower was rolled back. A peer may have several ledgers; whether one
    of them is gone it can see for itself.
    """
    me, you = own.sender, own.receiver
    refuse_version(own, theirs)
    if theirs.sender != you or theirs.receiver != me:
        as_, for_ = printable(theirs.sender, 80), printable(theirs.receiver, 80)
        raise PeerRefused(f'"{you}" introduced itself to "{me}" as "{as_}" for "{for_}"')
    for what, here, there in (
        ("run", own.run, theirs.run),
        ("study (hash)", own.study, theirs.study),
        ("epoch of membership", str(own.epoch), str(theirs.epoch)),
        ("roster (hash)", own.roster, theirs.roster),
    ):
        if here != there:
            raise PeerRefused(
                f'"{you}" has another {what} than "{me}": {printable(there, 64)} instead of {here[:64]}; '
                "compare the two sites' files"
            )
    mark = theirs.mark
    if mark is not None and not genuine(mark, key):
        raise PeerRefused(f'"{you}" sent a ledger mark without its own valid signature')
    highest = max(
        (seen.counter for seen in own.seen if mark is None or seen.ledger == mark.ledger), default=0
    )
    shown = 0 if mark is None else mark.counter
    if shown < highest:
        stands = "shows no ledger" if mark is None else f"stands at entry {mark.counter} of its ledger"
        raise LedgerBehind(
            f'"{you}" {stands}, but "{me}" saw entry {highest}: that ledger was rolled back. '
            "Never restore a ledger from an old copy; bring back the newest one",
            shown,
            highest,
        )


def pack(greeting: Greeting) -> bytes:
    """The first message. Version 0.1 refuses a greeting without the fields for marks, which are empty here."""
    fields = {name: getattr(greeting, name) for name in _Greeting.model_fields}
    return _canonical({**fields, "mark": None, "seen": None, "last": ""})


def pack_memory(greeting: Greeting) -> bytes:
    """The second message."""
    return _canonical({name: asdict(greeting)[name] for name in _Memory.model_fields})


def unpack(data: bytes) -> Greeting:
    """The greeting in these bytes; anything else is refused."""
    found = _read(_Greeting, data).model_dump()
    return Greeting(**{**found, "mark": None, "seen": (), "last": ""})


def unpack_memory(greeting: Greeting, data: bytes) -> Greeting:
    """The greeting, completed by its second message."""
    found = _read(_Memory, data)
    mark = None if found.mark is None else found.mark.mark()
    return replace(greeting, mark=mark, seen=tuple(m.mark() for m in found.seen), last=found.last)


def _read(form: type[T], data: bytes) -> T:
    if len(data) > LARGEST_GREETING:
        raise PeerRefused(f"a greeting of {len(data):,} bytes; at most {LARGEST_GREETING:,} are read")
    try:
        return form.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its text"
        raise PeerRefused(f"a greeting that cannot be read: {printable(where, 80)}") from None


class _StrictMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Memory(_StrictMessage):
    mark: MarkFields | None
    seen: Marks
    last: str = Field(max_length=LONGEST_HEADER)


class _Greeting(_StrictMessage):
    run: str = Field(max_length=256)
    study: str = Field(max_length=128)
    roster: str = Field(max_length=128)
    epoch: int = Field(ge=0, lt=2**53)
    sender: str = Field(max_length=256)
    receiver: str = Field(max_length=256)
    mark: Any = None
    seen: Any = None
    last: Any = ""
    process: str = Field(max_length=64)
    protocol: int = Field(ge=0, lt=2**31)
    version: str = Field(max_length=64)


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
