"""The frames on a stream between two sites: a short header that gives the kind, then the content.

    G greeting, E memory   JSON (greeting.py)   Y  agreed              N refusal    text
    O offer      number · size · id          D  data  number · a chunk of the parcel
    C complete   number (all is here, being decided)                R receipt    number · outcome · reason · marks
    W withdrawn  number (the sender gave up in the middle)
    H heartbeat  (alive, and nothing else to say)                   M move       (please open another stream)
    B goodbye    (nothing more will come on this stream)

Numbers count one side's parcels on one stream. Whatever is not of this form is a `BadFrame`: the stream is
closed, and no parcel was touched.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from confrere.core.errors import PeerError
from confrere.core.terminal import printable
from confrere.transport import ledger_marks
from confrere.transport.grpc.greeting import LARGEST_GREETING
from confrere.transport.receipt import Outcome, Receipt

CHUNK = 128 * 1024
LARGEST_FRAME = CHUNK + 1024
LONGEST_ID = 512
LONGEST_REASON = 500

GREETING, MEMORY, AGREED, REFUSAL = b"G", b"E", b"Y", b"N"
OFFER, DATA, COMPLETE, RECEIPT, WITHDRAWN = b"O", b"D", b"C", b"R", b"W"
HEARTBEAT, MOVE, GOODBYE = b"H", b"M", b"B"

_NUMBER = struct.Struct(">I")
_OFFER = struct.Struct(">IQ")
_RECEIPT = struct.Struct(">IcH")
"""Number, outcome, and the length of the reason; the marks follow it."""
LARGEST_RECEIPT = 16 * 1024
_OUTCOMES = {b"a": Outcome.ACCEPTED, b"d": Outcome.DUPLICATE, b"r": Outcome.REFUSED, b"l": Outcome.DEFERRED}
_LETTERS = {outcome: letter for letter, outcome in _OUTCOMES.items()}


class BadFrame(PeerError):
    """A peer does not keep to the protocol."""


@dataclass(frozen=True)
class Offer:
    number: int
    size: int
    id: str


def kind_of(frame: bytes) -> bytes:
    return frame[:1]


def refusal(reason: str) -> bytes:
    return REFUSAL + reason.encode("utf-8", errors="replace")[: 2 * LONGEST_REASON]


def reason_in(frame: bytes) -> str:
    return printable(frame[1 : 4 * LONGEST_REASON].decode("utf-8", errors="replace"), LONGEST_REASON)


def body(frame: bytes) -> bytes:
    """The greeting in a frame."""
    if len(frame) > LARGEST_GREETING + 1:
        raise BadFrame("a greeting that is too long")
    return frame[1:]


def offer(number: int, size: int, parcel_id: str) -> bytes:
    return OFFER + _OFFER.pack(number, size) + parcel_id.encode()


def read_offer(frame: bytes) -> Offer:
    head = 1 + _OFFER.size
    if not head <= len(frame) <= head + LONGEST_ID:
        raise BadFrame("an offer of the wrong length")
    number, size = _OFFER.unpack_from(frame, 1)
    try:
        name = frame[head:].decode()
    except UnicodeDecodeError:
        raise BadFrame("an offer whose name is not text") from None
    return Offer(number, size, printable(name, LONGEST_ID))


def data(number: int, chunk: bytes) -> bytes:
    return b"".join((DATA, _NUMBER.pack(number), chunk))


def read_data(frame: bytes) -> tuple[int, memoryview]:
    if not 1 + _NUMBER.size < len(frame) <= LARGEST_FRAME:
        raise BadFrame("a chunk of the wrong length")
    return _NUMBER.unpack_from(frame, 1)[0], memoryview(frame)[1 + _NUMBER.size :]


def numbered(kind: bytes, number: int) -> bytes:
    return kind + _NUMBER.pack(number)


def read_number(frame: bytes) -> int:
    if len(frame) != 1 + _NUMBER.size:
        raise BadFrame("a message of the wrong length")
    return int(_NUMBER.unpack_from(frame, 1)[0])


def receipt(number: int, answer: Receipt) -> bytes:
    reason = answer.reason.encode("utf-8", errors="replace")[: 2 * LONGEST_REASON]
    head = RECEIPT + _RECEIPT.pack(number, _LETTERS[answer.outcome], len(reason))
    return head + reason + (ledger_marks.dumps(answer.seen) if answer.seen else b"")


def read_receipt(frame: bytes) -> tuple[int, Receipt]:
    head = 1 + _RECEIPT.size
    if not head <= len(frame) <= LARGEST_RECEIPT:
        raise BadFrame("a receipt of the wrong length")
    number, letter, length = _RECEIPT.unpack_from(frame, 1)
    if length > min(2 * LONGEST_REASON, len(frame) - head):
        raise BadFrame("a receipt of the wrong length")
    if letter not in _OUTCOMES:
        raise BadFrame("a receipt with an unknown outcome")
    reason = frame[head : head + length].decode("utf-8", errors="replace")
    try:
        seen = ledger_marks.loads(frame[head + length :])
    except ValueError as error:
        raise BadFrame(f"a receipt with {error}") from None
    return number, Receipt(_OUTCOMES[letter], printable(reason, LONGEST_REASON), seen)
