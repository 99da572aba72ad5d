"""Parcels handed over inside one process. A transport like any other: sizes are those of the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from confrere.core.errors import PeerMissing
from confrere.core.parcel import Parcel
from confrere.transport import wire


class Post:
    """The sorting office of a simulation: one box per site."""

    def __init__(self) -> None:
        self.boxes: dict[str, asyncio.Queue[Parcel] | None] = {}
        """None until something is put in: where parcels go through a door, most boxes are never used."""
        self.elsewhere: Callable[[Parcel], None] | None = None
        """Takes parcels for sites that have no box here: they belong to another worker's share of the simulation."""
        self.doors: dict[str, Callable[[Parcel], object]] = {}
        """Where parcels are handed over at once, instead of waiting in the box."""

    def open(self, site: str) -> MemoryTransport:
        self.boxes[site] = None
        return MemoryTransport(self, site)

    def box(self, site: str) -> asyncio.Queue[Parcel]:
        found = self.boxes[site]
        if found is None:
            found = self.boxes[site] = asyncio.Queue()
        return found


class MemoryTransport:
    """One site's access to the post."""

    def __init__(self, post: Post, site: str) -> None:
        self.post, self.site = post, site

    def hand_over_to(self, door: Callable[[Parcel], object]) -> None:
        """From now on every parcel for this site goes straight through this door."""
        self.post.doors[self.site] = door
        for parcel in self.received():
            door(parcel)

    async def send(self, to: str, parcel: Parcel) -> int:
        if to in self.post.doors:
            self.post.doors[to](parcel)
        elif to in self.post.boxes:
            self.post.box(to).put_nowait(parcel)
        elif self.post.elsewhere is not None:
            self.post.elsewhere(parcel)
        else:
            raise PeerMissing(f'site "{self.site}" sends to "{to}", which is not part of this run')
        return wire.size(parcel)

    async def receive(self) -> Parcel:
        return await self.post.box(self.site).get()

    def received(self) -> list[Parcel]:
        """Everything that is here now, without waiting."""
        box, out = self.post.boxes[self.site], list[Parcel]()
        while box is not None and not box.empty():
            out.append(box.get_nowait())
        return out
