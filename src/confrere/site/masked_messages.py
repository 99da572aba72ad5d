"""The messages of a masked sum as parcels: their phases, what they hold, and how the summing site opens a turn.

A sum goes through one site at a time, the *summing site* of a turn. Members send to it and are answered, step by step. On nodes
a summing site that is lost has successors, and a sum that was given up is attempted again: each is a turn of its own, with
phases of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from confrere.core.custody import Custody
from confrere.core.errors import BadParcel
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.secure.messages import Message, decode, encode
from confrere.site.mailbox import MASKED

MESSAGE = "masked message"
"""The architecture, and the only tensor, of what a parcel of these phases holds."""

TURN = 256
"""How far the phases of two turns are apart; `node.equivocation.LEAVING` is between those of two steps."""


def is_masked(phase: int) -> bool:
    """Whether a parcel of this phase holds a message of a masked sum."""
    return phase >= MASKED and phase % TURN >= MASKED and phase % TURN != TURN - 1


@dataclass(frozen=True)
class Place:
    """Which message of a sum a phase is for."""

    turn: int
    step: int
    answers: bool = False
    """Whether it is from the summing site."""

    @property
    def phase(self) -> int:
        return MASKED + 2 * self.step + self.answers + TURN * self.turn

    @classmethod
    def of(cls, phase: int) -> Place:
        turn, within = divmod(phase, TURN)
        return cls(turn, (within - MASKED) // 2, bool((within - MASKED) % 2))


def check_message(parcel: Parcel) -> None:
    """Refuse a parcel of a masked phase that holds anything but one message."""
    model = parcel.model
    if model is None:
        return
    alone = model.architecture == MESSAGE and list(model.params) == [MESSAGE]
    if not alone or model.params[MESSAGE].dtype != torch.uint8 or model.params[MESSAGE].ndim != 1:
        raise BadParcel("a parcel of a masked sum that holds something else than a message of it")


def as_message(content: bytes, custody: Custody) -> Model:
    """A message of a masked sum as what a parcel holds."""
    data = (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.zeros(0, dtype=torch.uint8)
    )
    return Model(Params({MESSAGE: data}), MESSAGE, custody)


def content_of(parcel: Parcel) -> bytes:
    if parcel.model is None:
        return b""
    return bytes(parcel.model.params[MESSAGE].numpy().tobytes())


def joined(messages: Sequence[Message]) -> bytes:
    """Messages as bytes, each after its length; one message, which is the rule, as it is."""
    if len(messages) < 2:
        return encode(messages[0]) if messages else b""
    parts = [encode(message) for message in messages]
    return b"".join([SEVERAL, *(len(part).to_bytes(8, "big") + part for part in parts)])


SEVERAL = b"\xff\xff\xff\xff"
"""What several messages begin with: one message begins with the length of its text, which is smaller."""
MOST_JOINED = 8


def divided(content: bytes) -> list[Message]:
    """The messages of `joined`; anything else is refused."""
    if not content.startswith(SEVERAL):
        return [decode(content)] if content else []
    found: list[Message] = []
    at = len(SEVERAL)
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "big")
        if not length or len(found) == MOST_JOINED or at + 8 + length > len(content):
            raise BadParcel("messages of a masked sum that cannot be read")
        found.append(decode(content[at + 8 : at + 8 + length]))
        at += 8 + length
    return found


@dataclass(frozen=True)
class TurnStart:
    """What a summing site answers to the numbers of a member: whether there will be a sum, and of which vectors."""

    since: int | None = None
    """The common state that the vectors are computed from; None if it goes on without the member that asked."""
    given_up: str = ""
    """Why there will be no sum."""
    moved: bool = False
    """Whether this turn is over: a later summing site, or another attempt, is to be asked."""
    attempt: int | None = None
    """Of an opened sum that follows: in which attempt it was opened."""
    at: int | None = None
    """The round that the site is in, if this one is over for it."""
    turn: int | None = None
    """The turn of this round that the site is in, if it is a later one."""
    result: bytes = b""

    def written(self) -> bytes:
        head = {"since": self.since, "given_up": self.given_up}
        more = {"moved": self.moved, "attempt": self.attempt, "at": self.at, "turn": self.turn}
        text = json.dumps({**head, **{k: v for k, v in more.items() if v is not None and v is not False}})
        return text.encode() + (b"\n" + self.result if self.result else b"")

    @classmethod
    def read(cls, content: bytes) -> TurnStart:
        head, _, result = content.partition(b"\n")
        try:
            found: Any = json.loads(head or b"{}")
            start = cls(
                **{k: found[k] for k in ("since", "given_up", "moved", "attempt", "at", "turn") if k in found}
            )
        except (ValueError, TypeError, RecursionError):
            raise BadParcel("an answer of a summing site that cannot be read") from None
        numbers = (start.since, start.attempt, start.at, start.turn)
        if not all(n is None or (type(n) is int and 0 <= n < 2**53) for n in numbers):
            raise BadParcel("an answer of a summing site with numbers that cannot be")
        if type(start.given_up) is not str or type(start.moved) is not bool or len(start.given_up) > 400:
            raise BadParcel("an answer of a summing site that cannot be read")
        return replace(start, result=result)


def joined_plain(survivors: Sequence[str], vector: bytes) -> bytes:
    """A sum without masks, for simulations."""
    return json.dumps(list(survivors)).encode() + b"\n" + vector


def divided_plain(content: bytes) -> tuple[tuple[str, ...], bytes]:
    head, _, vector = content.partition(b"\n")
    return tuple(json.loads(head)), vector
