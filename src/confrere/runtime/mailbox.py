"""Where parcels wait: each is taken once, in a fixed order, whatever the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from confrere.core.parcel import Inbox, Parcel

Slip = tuple[int, int, str]
"""Round, phase and sender of a parcel that is expected."""

NOBODY: Mapping[str, int] = {}


class Mailbox:
    """The parcels of one site that were delivered and not yet taken."""

    def __init__(self) -> None:
        self._parcels: dict[tuple[str, str, int], Parcel] = {}
        self._taken: set[tuple[str, str, int]] = set()
        self._here: set[Slip] = set()
        self._gone: dict[str, int] = {}
        self._finished: dict[str, int] = {}
        self._changed = asyncio.Event()

    def deliver(self, parcel: Parcel) -> bool:
        """Put a parcel in; False if it was here before."""
        if parcel.id in self._parcels or parcel.id in self._taken:
            return False
        self._parcels[parcel.id] = parcel
        self._here.add((parcel.round, parcel.phase, parcel.sender))
        self._changed.set()
        return True

    def gone(self, sender: str, since: int) -> None:
        """Do not wait for this sender's parcels of round `since` or later."""
        self._gone[sender] = min(since, self._gone.get(sender, since))
        self._changed.set()

    def back(self, sender: str) -> None:
        self._gone.pop(sender, None)

    def finished(self, sender: str, round: int) -> None:
        """This sender has ended that round: what it did not send in it will never come."""
        self._finished[sender] = max(round, self._finished.get(sender, round))
        self._changed.set()

    def look_again(self) -> None:
        """Something has changed that whoever waits should know of."""
        self._changed.set()

    def _waiting(self, expected: Iterable[Slip], ended: Mapping[str, int]) -> bool:
        return any(
            slip not in self._here
            and self._finished.get(slip[2], -1) < slip[0] < self._gone.get(slip[2], slip[0] + 1)
            and ended.get(slip[2], -1) < slip[0]
            for slip in expected
        )

    async def take(
        self,
        round: int,
        phase: int,
        epoch: int,
        expected: Iterable[Slip],
        patience: float | None,
        ended: Mapping[str, int] = NOBODY,
    ) -> Inbox:
        """Everything up to this round and phase, once all that is expected is here or given up on.

        Parcels of an earlier epoch were cancelled by the change of membership and are thrown away; those of a
        later one, whose sender learned of the change before this site did, wait for it.
        `patience` bounds the wait in seconds; None waits until somebody says that a sender is gone. `ended` says which
        round each sender has finished: what it did not send in it will never come.
        """
        expected = set(expected)
        deadline = None if patience is None else asyncio.get_running_loop().time() + patience
        while self._waiting(expected, ended):
            self._changed.clear()
            left = None if deadline is None else deadline - asyncio.get_running_loop().time()
            if left is not None and left <= 0:
                break
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                break
        missing = tuple(sorted({s for r, p, s in expected - self._here if (r, p) == (round, phase)}))
        ripe = [
            p for p in self._parcels.values() if (p.round, p.phase) <= (round, phase) and p.epoch <= epoch
        ]
        for parcel in ripe:
            del self._parcels[parcel.id]
            self._taken.add(parcel.id)
        kept = [p for p in ripe if p.epoch == epoch]
        kept.sort(key=lambda p: (p.round, p.phase, p.sender, p.sequence))
        return Inbox(tuple(kept), missing, round, phase)

    def waiting(self) -> list[Parcel]:
        """What was delivered and not yet taken, for a checkpoint."""
        return sorted(self._parcels.values(), key=lambda p: (p.round, p.phase, p.sender, p.sequence))
