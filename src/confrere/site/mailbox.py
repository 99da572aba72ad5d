"""Hold parcels until they are used: each is taken once, in an order that does not depend on their arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from confrere.core.parcel import Inbox, Parcel

ExpectedParcel = tuple[int, int, str]
"""Round, phase and sender of a parcel that is expected."""

NONE_ENDED: Mapping[str, int] = {}
NOTHING: frozenset[ExpectedParcel] = frozenset()


class Mailbox:
    """The parcels of one site that were delivered and not yet taken."""

    def __init__(self) -> None:
        self._parcels: dict[tuple[str, str, int], Parcel] = {}
        self._here: dict[int, set[ExpectedParcel]] = {}
        """What has come of each round that may still be waited for."""
        self._gone: dict[str, int] = {}
        self._refused: set[ExpectedParcel] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._before: dict[tuple[str, str], int | SequenceNumbers] = {}
        """What was taken of each sender: all numbers up to this one or, where some are still to come, which."""
        self.last_taken: list[Parcel] = []
        """What the last taking took out, whether it was handed on or thrown away."""

    def deliver(self, parcel: Parcel) -> bool:
        """Put a parcel in; False if it was here before."""
        sender, receiver, number = name = parcel.id
        taken = self._before.get((sender, receiver))
        if name in self._parcels:
            return False
        if taken is not None and (number <= taken if isinstance(taken, int) else number in taken):
            return False
        self._parcels[name] = parcel
        slip = (parcel.round, parcel.phase, sender)
        here = self._here.get(parcel.round)
        if here is None:
            self._here[parcel.round] = {slip}
        else:
            here.add(slip)
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

    def _waiting(self, expected: Sequence[ExpectedParcel], ended: Mapping[str, int]) -> bool:
        here = self._here
        for slip in expected:
            round, _, sender = slip
            if slip in here.get(round, NOTHING) or slip in self._refused:
                continue
            if ended.get(sender, -1) >= round:
                continue
            if round < self._gone.get(sender, round + 1):
                return True
        return False

    async def take(
        self,
        round: int,
        phase: int,
        epoch: int,
        expected: Sequence[ExpectedParcel],
        patience: float | None,
        ended: Mapping[str, int] = NONE_ENDED,
    ) -> Inbox:
        """Everything up to this round and phase, once all that is expected is here or given up on.

        Parcels of an earlier epoch were cancelled by the change of membership and are thrown away; those of a
        later one, whose sender learned of the change before this site did, wait for it.
        `patience` bounds the wait in seconds; with None it ends when the missing senders are declared `gone`. `ended` is the
        last round that each sender has finished: what it did not send in that round will never come.
        """
        if expected:
            if self._waiting(expected, ended):
                await self._until_here(expected, patience, ended)
        elif not self._parcels:
            self.last_taken = []
            return Inbox((), (), round, phase)
        here, before = self._here.get(round, NOTHING), self._before
        missing = [s for r, p, s in expected if r == round and p == phase and (r, p, s) not in here]
        ripe = [
            p
            for p in self._parcels.values()
            if p.epoch <= epoch and (p.round < round or (p.round == round and p.phase <= phase))
        ]
        for parcel in ripe:
            sender, receiver, number = name = parcel.id
            del self._parcels[name]
            taken = before.get((sender, receiver), 0)
            if taken == number - 1:
                before[sender, receiver] = number
            elif isinstance(taken, int):
                before[sender, receiver] = found = SequenceNumbers(taken)
                found.add(number)
            else:
                taken.add(number)
        if len(self._here) > 1:  # earlier rounds are never waited for again
            self._here = {r: slips for r, slips in self._here.items() if r >= round}
        if self._refused:
            self._refused = {slip for slip in self._refused if slip[0] >= round}
        self.last_taken = ripe
        kept = [p for p in ripe if p.epoch == epoch]
        if len(kept) > 1:
            kept.sort(key=_in_order)
        return Inbox(tuple(kept), tuple(sorted(set(missing))) if missing else (), round, phase)

    async def _until_here(
        self, expected: Sequence[ExpectedParcel], patience: float | None, ended: Mapping[str, int]
    ) -> None:
        """Wait for what is expected until it is here, given up on, or patience ends."""
        deadline = None if patience is None else asyncio.get_running_loop().time() + patience
        while self._waiting(expected, ended):
            left = self._seconds_left(deadline, expected, ended)
            if left is not None and left <= 0:
                return
            await self._something_new(left)

    def _seconds_left(
        self, deadline: float | None, expected: Sequence[ExpectedParcel], ended: Mapping[str, int]
    ) -> float | None:
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
        return sorted(self._parcels.values(), key=_in_order)


class SequenceNumbers:
    """A set of whole numbers that mostly come one after the other: kept as the runs that they form."""

    __slots__ = ("_runs",)

    def __init__(self, up_to: int = 0) -> None:
        """All numbers from 1 to this one; none without it."""
        self._runs: list[list[int]] = [[1, up_to]] if up_to else []

    def __contains__(self, number: int) -> bool:
        runs = self._runs
        if not runs or number > runs[-1][1]:
            return False
        return any(first <= number <= last for first, last in reversed(runs))

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._runs)

    def add(self, number: int) -> None:
        if not self._runs:
            self._runs.append([number, number])
        elif self._runs[-1][1] + 1 == number:
            self._runs[-1][1] = number
        elif number not in self:
            self._runs = _joined(sorted([*self._runs, [number, number]]))

    @property
    def runs(self) -> int:
        """How many unbroken runs there are: what the set takes in memory."""
        return len(self._runs)


def _joined(runs: list[list[int]]) -> list[list[int]]:
    """Runs that follow each other without a gap become one."""
    out: list[list[int]] = []
    for first, last in runs:
        if out and first == out[-1][1] + 1:
            out[-1][1] = last
        else:
            out.append([first, last])
    return out


def _in_order(parcel: Parcel) -> tuple[int, int, str, int]:
    return (parcel.round, parcel.phase, parcel.sender, parcel.sequence)
