"""Hold parcels until they are used: each is taken once, in an order that does not depend on their arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from confrere.core.parcel import Inbox, Parcel

ExpectedParcel = tuple[int, int, str]
"""Round, phase and sender of a parcel that is expected."""

NOTHING: frozenset[ExpectedParcel] = frozenset()
NO_NUMBERS: frozenset[int] = frozenset()


class TakeRequest(NamedTuple):
    """What is taken out of a mailbox, everything up to this round and phase, and what is waited for before."""

    round: int
    phase: int
    epoch: int
    expected: Sequence[ExpectedParcel]
    patience: float | None
    """The longest wait in seconds; with None it ends when the missing senders are declared `gone`."""
    ended: Mapping[str, int] = MappingProxyType({})
    """The last round that each sender has finished: what it did not send in that round will never come."""


class Mailbox:
    """The parcels of one site that were delivered and not yet taken."""

    def __init__(self) -> None:
        self._parcels: dict[tuple[str, str, int], Parcel] = {}
        self._here: dict[int, set[ExpectedParcel]] = {}
        """What has come of each round that may still be waited for."""
        self._gone: dict[str, int] = {}
        self._refused: set[ExpectedParcel] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._before = TakenNumbers()
        self.last_taken: list[Parcel] = []
        """What the last taking took out, whether it was handed on or thrown away."""

    def deliver(self, parcel: Parcel) -> bool:
        """Put a parcel in; False if it was here before."""
        sender, receiver, number = name = parcel.id
        if name in self._parcels or self._before.has((sender, receiver), number):
            return False
        self._parcels[name] = parcel
        self._here.setdefault(parcel.round, set()).add((parcel.round, parcel.phase, sender))
        if self._waiters:
            self.wake()
        return True

    def refused(self, slip: ExpectedParcel) -> None:
        """Do not wait for a parcel that arrived and was refused; count its sender as missing."""
        self._refused.add(slip)
        self.wake()

    def gone(self, sender: str, since: int) -> None:
        """Do not wait for this sender's parcels of round `since` or later."""
        self._gone[sender] = min(since, self._gone.get(sender, since))
        self.wake()

    def back(self, sender: str) -> None:
        self._gone.pop(sender, None)

    def wake(self) -> None:
        """Let `take` check again whether it can stop waiting."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _awaited(self, request: TakeRequest) -> Iterator[ExpectedParcel]:
        """What is expected and may still come."""
        for slip in request.expected:
            round, _, sender = slip
            if slip in self._here.get(round, NOTHING) or slip in self._refused:
                continue
            if request.ended.get(sender, -1) >= round:
                continue
            if round < self._gone.get(sender, round + 1):
                yield slip

    def _waits(self, request: TakeRequest) -> bool:
        return next(self._awaited(request), None) is not None

    async def take(self, request: TakeRequest) -> Inbox:
        """Everything up to this round and phase, once all that is expected is here or given up on.

        Parcels of an earlier epoch were cancelled by the change of membership and are thrown away; those of a
        later one, whose sender learned of the change before this site did, wait for it.
        """
        round, phase, epoch = request.round, request.phase, request.epoch
        if request.expected:
            await self._until_here(request)
        elif not self._parcels:
            self.last_taken = []
            return Inbox((), (), round, phase)
        here = self._here.get(round, NOTHING)
        missing = {s for r, p, s in request.expected if r == round and p == phase and (r, p, s) not in here}
        place = _place(phase)
        ripe = [
            p
            for p in self._parcels.values()
            if p.epoch <= epoch and (p.round < round or (p.round == round and _place(p.phase) <= place))
        ]
        for parcel in ripe:
            sender, receiver, number = name = parcel.id
            del self._parcels[name]
            self._before.add((sender, receiver), number)
        if len(self._here) > 1:  # earlier rounds are never waited for again
            self._here = {r: slips for r, slips in self._here.items() if r >= round}
        if self._refused:
            self._refused = {slip for slip in self._refused if slip[0] >= round}
        self.last_taken = ripe
        kept = sorted([p for p in ripe if p.epoch == epoch], key=in_order)
        return Inbox(tuple(kept), tuple(sorted(missing)), round, phase)

    async def _until_here(self, request: TakeRequest) -> None:
        """Wait for what is expected until it is here, given up on, or patience ends."""
        deadline = None if request.patience is None else asyncio.get_running_loop().time() + request.patience
        while self._waits(request):
            left = self._seconds_left(deadline, request)
            if left is not None and left <= 0:
                return
            await self._something_new(left)

    def _seconds_left(self, deadline: float | None, request: TakeRequest) -> float | None:
        """How much longer to wait for what is still missing; None without a limit."""
        return None if deadline is None else deadline - asyncio.get_running_loop().time()

    async def _something_new(self, within: float | None) -> None:
        """Return once something was delivered or has changed, or after `within` seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if within is None:
            await waiter
        else:
            await asyncio.wait([waiter], timeout=within)

    def waiting(self) -> list[Parcel]:
        """What was delivered and not yet taken, for a checkpoint."""
        return sorted(self._parcels.values(), key=in_order)


SHARED = 8
"""The phases from this one on are those of distances by way of two servers. They, and those of masked sums, come before those
that bring the common model, from 2 on."""
MASKED = 16
"""The phases from this one on are those of masked sums."""


def _place(phase: int) -> float:
    """Where a phase comes in its round."""
    return 2 - 1 / (1 + phase) if phase >= SHARED else float(phase)


class TakenNumbers:
    """The numbers that were taken of each sender: all up to one and, where some are still to come, which beyond it."""

    def __init__(self) -> None:
        self.up_to: dict[tuple[str, str], int] = {}
        self.beyond: dict[tuple[str, str], set[int]] = {}

    def has(self, route: tuple[str, str], number: int) -> bool:
        return number <= self.up_to.get(route, 0) or number in self.beyond.get(route, NO_NUMBERS)

    def add(self, route: tuple[str, str], number: int) -> None:
        last = self.up_to.get(route, 0)
        if number > last + 1:
            self.beyond.setdefault(route, set()).add(number)
            return
        self.up_to[route] = last = max(last, number)
        while last + 1 in self.beyond.get(route, NO_NUMBERS):
            self.up_to[route] = last = last + 1
            self.beyond[route].remove(last)


def in_order(parcel: Parcel) -> tuple[int, int, str, int]:
    return (parcel.round, parcel.phase, parcel.sender, parcel.sequence)
