"""Fault injection: lose a site at a chosen point of a round, to rehearse how the others react."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Point = Literal["before-exchange", "mid-exchange", "before-answer"]


@dataclass(frozen=True)
class Fault:
    """A site that stops at this point of this round: until the next round, or `forever`."""

    site: str
    round: int
    point: Point = "mid-exchange"
    forever: bool = False


class Faults:
    """The planned losses of a run; `lose` is what the runtime does when one strikes."""

    def __init__(
        self, planned: tuple[Fault, ...] = (), lose: Callable[[Fault], Awaitable[None]] | None = None
    ):
        self.planned, self._lose = planned, lose

    async def reach(self, site: str, round: int, point: Point) -> None:
        for fault in self.planned:
            if self._lose and (fault.site, fault.round, fault.point) == (site, round, point):
                await self._lose(fault)
