"""One message from one site to another, and the box in which messages arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from confrere.core.custody import Scalar
from confrere.core.model import Model
from confrere.core.quick import quick


@quick
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

    @property
    def id(self) -> tuple[str, str, int]:
        return (self.sender, self.receiver, self.sequence)

    def scalar(self, name: str, default: float | None = None) -> float:
        """A number that came along."""
        if name in self.scalars:
            return self.scalars[name].value
        if default is None:
            raise KeyError(name)
        return default


@quick
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
