"""An enrolled peer that floods a running node: what it costs in bytes on disk, in memory and in log lines is bounded.

Before there were quotas, 1,709 valid parcels with invented epochs took 119 MB of disk in 40 seconds, for good, and every refused
parcel and connection added a line to journal and log.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from confrere.core.custody import public
from confrere.core.errors import PeerMissing, PeerRefused
from confrere.core.parcel import Parcel
from confrere.node.conduct import LINES_BURST
from confrere.node.config import NodeConfig
from confrere.node.delivery import MOST_WAITING
from confrere.node.node import Node
from confrere.node.status import status_of
from confrere.study import Models
from confrere.transport import wire
from confrere.transport.body import Body
from confrere.transport.grpc import channel, handshake
from confrere.transport.grpc.connections import Connections, Handlers
from confrere.transport.grpc.link import Broken
from confrere.transport.link_limits import LinkLimits
from confrere.transport.receipt import ACCEPTED, Receipt
from tests.system.sites import at
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network
from tests.unit.quick import quick

SECONDS = 6.0
"""How long each kind of flood lasts."""
WIDTH = 3000
"""A parcel is as large as those of the attack: 70 KB."""
MEGABYTE = 2**20
PATIENCE = 5.0

pytestmark = pytest.mark.slow


@dataclass
class Flood:
    """`site1`, with valid keys and over real connections, against the running node of `site0`."""

    node: Node
    places: dict[str, NodeConfig]
    greeter: Node
    connections: Connections
    sequence: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    bytes_sent: int = 0

    async def send(self, **changes: Any) -> None:
        self.sequence += 1
        model = self.node.site.build("proxy")
        whole = Parcel(
            self.places["site0"].run, 0, 0, 0, "site1", "site0", self.sequence, model, {"mass": public(0.001)}
        )
        body = wire.encode(wire.sign(replace(whole, **changes), self.places["site1"].identity.key))
        with suppress(PeerMissing):
            await self.connections.wait_connected("site0", 5.0)
            receipt = await self.connections.send("site0", f"site1/site0/{self.sequence}", Body.of(body))
            self.outcomes[receipt.outcome.name] += 1
            self.bytes_sent += len(body)

    async def connect_again(self) -> None:
        """Open a stream as a process that was just started, and drop it."""
        here = at(self.places["site0"].identity.member, self.node.links.port)  # type: ignore[attr-defined]
        opened = channel.open_channel(self.places["site1"].identity, here)
        try:
            stream = channel.Stream(channel.open_stream(opened), here)
            greeting = self.greeter.handshake.greet("site0")
            await handshake.introduce(stream, replace(greeting, process=str(time.time_ns())), lambda *_: None)
            self.outcomes["CONNECTED"] += 1
        except (PeerRefused, Broken):  # the node may hang up before the greeting is complete
            self.outcomes["TURNED AWAY"] += 1
        finally:
            await opened.close(None)


@asynccontextmanager
async def flooded(folder: Path) -> AsyncIterator[Flood]:
    study = quick(
        "avgpush", rounds=400, patience=PATIENCE, models=Models("linear", {"name": "mlp", "hidden": [WIDTH]})
    )
    places = settings(folder, study)
    node = Node(replace(places["site0"], listen="127.0.0.1:0"))
    greeter = Node(places["site1"], connect=Network().connect)
    running = asyncio.create_task(node.run())
    while node.links.port is None:  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)

    async def take(sender: str, body: Body) -> Receipt:
        return ACCEPTED

    connections = Connections(
        places["site1"].identity,
        {"site0": at(places["site0"].identity.member, node.links.port)},  # type: ignore[attr-defined]
        Handlers(greeter.handshake.greet, take),
        LinkLimits(patience=PATIENCE),
    )
    await connections.start()
    try:
        await connections.wait_connected("site0", 20.0)
        yield Flood(node, places, greeter, connections)
        assert not running.done(), "the node goes on"
    finally:
        await connections.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        greeter.close()


def bytes_in(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def lines_about(peer: str, node: Node) -> int:
    journal = [e for e in node.journal.events if peer in (e.data.get("peer"), e.data.get("sender"))]
    log = (node.config.home / "log.jsonl").read_text("utf-8").splitlines()
    return max(len(journal), sum(f'"{peer}"' in line and '"sent"' not in line for line in log))


def resident() -> int:
    status = Path("/proc/self/statm").read_text("utf-8").split()
    return int(status[1]) * 4096


FLOODS: dict[str, Callable[[Flood, int], Any]] = {
    "invented epochs": lambda flood, n: flood.send(epoch=1 + n, round=min(399, n)),
    "another run": lambda flood, n: flood.send(run=f"run {n}"),
    "rounds to come": lambda flood, n: flood.send(round=n % 400),
    "connections": lambda flood, n: flood.connect_again(),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_what_a_flood_costs_a_running_node_is_bounded(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        async with flooded(tmp_path) as flood:
            node = flood.node
            home = node.config.home
            await asyncio.sleep(1.0)
            disk, memory, lines = bytes_in(home), resident(), lines_about("site1", node)
            ends, number = time.monotonic() + SECONDS, 0
            while time.monotonic() < ends:
                await FLOODS[kind](flood, number)
                number += 1
            grown, more = bytes_in(home) - disk, lines_about("site1", node) - lines
            kept = node.store.kept_of("site1")
            rss = resident() - memory
            with capsys.disabled():
                print(
                    f"\n{kind}: {number} attempts, {flood.bytes_sent / MEGABYTE:.1f} MB sent, {dict(flood.outcomes)};"
                    f" disk {grown / MEGABYTE:+.2f} MB, memory {rss / MEGABYTE:+.1f} MB, {more} lines, {kept} parcels kept"
                )
            largest = node.parcel_receiver.rules.limits.total
            assert kept <= MOST_WAITING
            assert grown < (MOST_WAITING + 2) * largest + 4 * MEGABYTE
            if kind != "rounds to come":
                assert grown < 4 * MEGABYTE
            assert more <= LINES_BURST + 5
            assert rss < 100 * MEGABYTE
            found = status_of(node)["peers"]["site1"]["conduct"]
            if kind != "connections":
                assert found["refused"] + found["put_off"] > 0, "status names the offender"

    asyncio.run(story())
