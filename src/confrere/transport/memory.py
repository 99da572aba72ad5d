"""The in-memory transport between the sites of one process; sizes are those on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from confrere.core.errors import PeerMissing
from confrere.core.parcel import Parcel
from confrere.transport import wire


class MemoryNetwork:
    """Connects the sites of a simulation: one queue per site."""

    def __init__(self) -> None:
        self.queues: dict[str, asyncio.Queue[Parcel]] = {}
        self.forward: Callable[[Parcel], None] | None = None
        """Takes parcels for sites that have no queue here: they belong to another worker."""
        self.receivers: dict[str, Callable[[Parcel], object]] = {}
        """Functions that take a site's parcels at once, instead of the queue."""
        self._measured: Parcel | None = None
        self._content_size = 0

    def open(self, site: str) -> MemoryTransport:
        self.queues[site] = asyncio.Queue()
        return MemoryTransport(self, site)

    def size(self, parcel: Parcel) -> int:
        """The length of a parcel on the wire. Content that goes to several sites in turn is measured once."""
        last = self._measured
        if last is None or parcel.model is not last.model or parcel.scalars is not last.scalars:
            self._measured, self._content_size = parcel, wire.content_size(parcel)
        return self._content_size + wire.route_size(parcel)


class MemoryTransport:
    """One site's end of the network."""

    def __init__(self, network: MemoryNetwork, site: str) -> None:
        self.network, self.site = network, site

    def deliver_to(self, receive: Callable[[Parcel], object]) -> None:
        """From now on, call `receive` with every parcel for this site."""
        self.network.receivers[self.site] = receive
        for parcel in self.received():
            receive(parcel)

    async def send(self, to: str, parcel: Parcel) -> int:
        receive = self.network.receivers.get(to)
        if receive is not None:
            receive(parcel)
        elif to in self.network.queues:
            self.network.queues[to].put_nowait(parcel)
        elif self.network.forward is not None:
            self.network.forward(parcel)
        else:
            raise PeerMissing(f'site "{self.site}" sends to "{to}", which is not part of this run')
        return self.network.size(parcel)

    async def receive(self) -> Parcel:
        return await self.network.queues[self.site].get()

    def received(self) -> list[Parcel]:
        """Everything that is here now, without waiting."""
        queue, out = self.network.queues[self.site], list[Parcel]()
        while not queue.empty():
            out.append(queue.get_nowait())
        return out
