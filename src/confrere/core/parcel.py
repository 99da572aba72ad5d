"""Parcels, the inbox of a round, and the ledger mark that a parcel carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from confrere.core.custody import Custody, Scalar, public
from confrere.core.model import Model


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """Where a ledger of a site stands, signed by the site (`transport.ledger_marks`)."""

    ledger: str
    """The ledger's id."""
    counter: int
    head: str
    """The hash of the entry with this number."""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A model and some numbers on their way. Only the gate makes parcels.

    `sequence` numbers a sender's parcels to one receiver, so that a parcel has an identity of its
    own (sender, receiver, sequence): delivered twice, it counts once.
    """

    run: str
    epoch: int
    round: int
    phase: int
    sender: str
    receiver: str
    sequence: int
    model: Model | None
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    signature: bytes = b""
    mark: LedgerMark | None = None
    """Where the sender's ledger stood when the parcel was made; a rehearsal in memory has none."""

    @property
    def id(self) -> tuple[str, str, int]:
        return (self.sender, self.receiver, self.sequence)

    @property
    def custodies(self) -> list[Custody]:
        """The custody of each thing that it holds."""
        held = [number.custody for number in self.scalars.values()]
        return held if self.model is None else [*held, self.model.custody]

    def scalar(self, name: str, default: float | None = None) -> Scalar:
        """A number that came along, with its custody; a default is public."""
        if name in self.scalars:
            return self.scalars[name]
        if default is None:
            raise KeyError(name)
        return public(default)


@dataclass(frozen=True, slots=True)
class Inbox:
    """What arrived in time, oldest first, and who was expected and did not send.

    `late` parcels belong to an earlier round: push-sum must credit them or mass is lost,
    averaging must not look at them.
    """

    parcels: tuple[Parcel, ...]
    missing: tuple[str, ...] = ()
    round: int = 0
    phase: int = 0

    @property
    def current(self) -> tuple[Parcel, ...]:
        if not self.parcels:
            return ()
        found = [p for p in self.parcels if p.round == self.round and p.phase == self.phase]
        return self.parcels if len(found) == len(self.parcels) else tuple(found)

    @property
    def late(self) -> tuple[Parcel, ...]:
        return tuple(p for p in self.parcels if not (p.round == self.round and p.phase == self.phase))

    def __iter__(self) -> Iterator[Parcel]:
        return iter(self.parcels)

    def __len__(self) -> int:
        return len(self.parcels)
