"""One round of exchange between nodes on this machine, beside raw gRPC with mutual TLS streaming the same bytes.

    python benchmarks/exchange.py --json [--cases 8x10,32x1] [--rounds 7]

Three ways: connections alone; with a node's store in the path (the parcel is encoded, signed and debited to the outbox, then
sent, decoded, verified and credited to the inbox, each on the disk before the next); and raw gRPC.

Every node is a process of its own with connections to all others. In a round each sends one parcel to its neighbour and
is done when its own is credited and its neighbour's has arrived. The ways take turns, round by round. The
memory of a node is its highest resident size during a round over that after an exchange of tiny parcels; the
parcel that it sends and the one that it receives are both in it.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import multiprocessing
import os
import platform
import shutil
import socket
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from confrere.core.custody import Custody, public
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.node.delivery import ParcelReceiver
from confrere.node.malloc import give_back, share_heap
from confrere.node.store import Store
from confrere.transport import wire
from confrere.transport.body import Body
from confrere.transport.grpc.frames import CHUNK
from confrere.transport.grpc.greeting import Greeting
from confrere.transport.grpc.identity import Identity, new_identity
from confrere.transport.grpc.member import Member
from confrere.transport.receipt import ACCEPTED, Receipt

MB = 1_000_000
WAYS = ("ours", "stored", "raw")


@dataclass(frozen=True)
class Case:
    nodes: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.nodes} nodes x {self.size // MB} MB"


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Run a case in fresh processes; seconds, processor seconds and memory of every round."""
    names = [f"site{i:02}" for i in range(case.nodes)]
    ports = free_ports(2 * case.nodes)
    found = {name: new_identity(name, f"127.0.0.1:{port}") for name, port in zip(names, ports, strict=False)}
    raw = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports[case.nodes :], strict=True)}
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for name in names:
        here, there = context.Pipe()
        process = context.Process(target=node, args=(name, found, raw, case.size, there), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    try:
        gather(pipes)  # everybody is connected
        idle = command(pipes, "idle")
        out: dict[str, list[Any]] = {way: [] for way in WAYS}
        for way in WAYS:
            command(pipes, "tiny", way)
        command(pipes, "baseline")
        # alone first, since what one way leaves behind in the heap would count for the other
        memory = {
            way: max(a["memory"] for _ in range(rounds) for a in command(pipes, "round", way))
            for way in ("stored", "ours")
        }
        for _ in range(rounds):
            for way in WAYS:
                began = time.monotonic()
                answers = command(pipes, "round", way)
                took = max(a["ended"] for a in answers) - began
                out[way].append((took, sum(a["cpu"] for a in answers)))
        command(pipes, "stop")
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    return {**out, "idle": max(a["share"] for a in idle), "memory": memory}


def command(pipes: list[Connection], *words: str) -> list[dict[str, Any]]:
    for pipe in pipes:
        pipe.send(words)
    return gather(pipes)


def gather(pipes: list[Connection]) -> list[dict[str, Any]]:
    answers = [pipe.recv() for pipe in pipes]
    for answer in answers:
        if "error" in answer:
            raise SystemExit(answer["error"])
    return answers


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


# -- in the process of a node ---------------------------------------------------------------------------------------


def node(name: str, found: dict[str, Identity], raw: dict[str, str], size: int, pipe: Connection) -> None:
    share_heap()
    try:
        asyncio.run(Node(name, found, raw, size, pipe).run())
    except Exception as error:
        pipe.send({"error": f"{name}: {type(error).__name__}: {error}"})


class Node:
    """A site that does nothing but exchange."""

    def __init__(
        self, name: str, found: dict[str, Identity], raw: dict[str, str], size: int, pipe: Connection
    ) -> None:
        from confrere.transport.grpc.connections import Connections, Handlers
        from confrere.transport.link_limits import LinkLimits

        self.name, self.size, self.pipe, self.raw_addresses = name, size, pipe, raw
        self.identity = found[name]
        self.members: dict[str, Member] = {n: i.member for n, i in found.items()}
        names = sorted(found)
        self.next = names[(names.index(name) + 1) % len(names)]
        self.arrived = asyncio.Event()
        self.resting = 0
        self.connections = Connections(
            self.identity, self.members, Handlers(self.greet, self.deliver), LinkLimits(),
            listen=self.identity.member.address,
        )  # fmt: skip

    def greet(self, peer: str) -> Greeting:
        return Greeting("bench", "study", "roster", 0, self.name, peer)

    async def deliver(self, sender: str, body: Body) -> Receipt:
        with body.open() as file:
            stored = file.read(len(wire.MAGIC)) == wire.MAGIC
        answer = await self.parcel_receiver.deliver(sender, body) if stored else self.took(body)
        self.arrived.set()
        return answer

    @staticmethod
    def took(body: Body) -> Receipt:
        """All of it is looked at, in the way of a node: piece by piece."""
        give_back()
        assert sum(len(piece) for piece in body.pieces()) == body.size
        return ACCEPTED

    async def run(self) -> None:
        self.open_store()
        server = await self.open_raw()
        await self.connections.start()
        for peer in self.members:
            if peer != self.name:
                await self.connections.wait_connected(peer, 120)
        self.pipe.send({})
        loop = asyncio.get_running_loop()
        while True:
            words = await loop.run_in_executor(None, self.pipe.recv)
            if words[0] == "stop":
                break
            self.pipe.send(await getattr(self, words[0])(*words[1:]))
        self.pipe.send({})
        await self.connections.stop()
        await server.stop(0)

    async def idle(self) -> dict[str, Any]:
        await asyncio.sleep(3)  # until the last handshakes of others are over
        before, began = time.process_time(), time.monotonic()
        await asyncio.sleep(10)
        return {"share": (time.process_time() - before) / (time.monotonic() - began)}

    async def tiny(self, way: str) -> dict[str, Any]:
        return await self.exchange(way, 1000)

    async def baseline(self) -> dict[str, Any]:
        self.resting = memory("VmRSS")
        return {}

    async def round(self, way: str) -> dict[str, Any]:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return await self.exchange(way, self.size)

    async def exchange(self, way: str, size: int) -> dict[str, Any]:
        cpu = time.process_time()
        await asyncio.gather(getattr(self, f"send_{way}")(size), self.arrived.wait())
        self.arrived.clear()
        ended = time.monotonic()
        peak = memory("VmHWM") - self.resting
        return {"ended": ended, "cpu": time.process_time() - cpu, "memory": peak / size}

    async def send_ours(self, size: int) -> None:
        receipt = await self.connections.send(self.next, "", os.urandom(size))
        assert receipt == ACCEPTED

    # -- the path of a node

    def open_store(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="confrere-bench-", dir=Path.home()))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.store = Store(folder / "store.sqlite", run="bench", site=self.name)
        self.sequence = 0
        keys = {name: member.key for name, member in self.members.items()}
        shapes = {f"{n}": self.model(n).params.shapes for n in (self.size, 1000)}
        self.parcel_receiver = ParcelReceiver(
            self.name, "bench", 2**30, keys, shapes, self.store, lambda event: None, epoch=lambda: 0
        )
        self.proxies = {n: self.model(n) for n in (self.size, 1000)}

    @staticmethod
    def model(size: int) -> Model:
        return Model(Params({"weight": torch.randn(size // 4)}), f"{size}", Custody.PROTECTED)

    async def send_stored(self, size: int) -> None:
        self.sequence += 1
        parcel = Parcel(
            "bench", 0, self.sequence, 0, self.name, self.next, self.sequence, self.proxies[size],
            {"mass": public(0.5)},
        )  # fmt: skip
        await asyncio.to_thread(self.debit, parcel)
        ((number, body),) = await asyncio.to_thread(self.store.undelivered, self.next, 1)
        receipt = await self.connections.send(self.next, f"{number}", body)
        assert receipt == ACCEPTED, receipt
        await asyncio.to_thread(self.store.delivered, self.next, number)

    def debit(self, parcel: Parcel) -> None:
        self.store.debit([wire.seal(parcel, self.identity.key)])

    # -- raw gRPC: the same credentials and chunks, and nothing else

    async def open_raw(self) -> Any:
        import grpc
        import grpc.aio

        async def take(_: Any, context: Any) -> None:
            size = int(await context.read())
            data = bytearray(size)
            at = 0
            while at < size:
                chunk = await context.read()
                data[at : at + len(chunk)] = chunk
                at += len(chunk)
            self.arrived.set()
            await context.write(b"ok")

        own = self.identity
        roots = b"".join(m.root for m in self.members.values())
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler = grpc.stream_stream_rpc_method_handler(take)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", {"put": handler}),))
        server.add_secure_port(
            self.raw_addresses[self.name],
            grpc.ssl_server_credentials([(own.tls_key, own.chain)], roots, require_client_auth=True),
        )
        await server.start()
        to = self.members[self.next]
        self.channel = grpc.aio.secure_channel(
            self.raw_addresses[self.next],
            grpc.ssl_channel_credentials(to.root, own.tls_key, own.chain),
            options=[("grpc.ssl_target_name_override", to.host_name)],
        )
        return server

    async def send_raw(self, size: int) -> None:
        blob = os.urandom(size)
        call = self.channel.stream_stream("/raw/put")()
        await call.write(b"%d" % len(blob))
        for at in range(0, len(blob), CHUNK):
            await call.write(blob[at : at + CHUNK])
        assert await call.read() == b"ok"
        await call.done_writing()


def memory(what: str) -> int:
    """Bytes of this process, as the system counts them."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what + ":"))


def machine() -> dict[str, Any]:
    return {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}


def row(case: Case, result: dict[str, Any]) -> dict[str, Any]:
    ours, stored, raw = ([r[0] for r in result[way]] for way in WAYS)
    ratios = [a / b for a, b in zip(ours, raw, strict=True)]
    cpu = {way: statistics.median(r[1] for r in result[way]) for way in WAYS}
    return {
        "case": case.name,
        "ours": statistics.median(ours),
        "peer": statistics.median(raw),
        "unit": "s",
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "worst": max(ours),
        "processor_seconds": cpu,
        "processor_ratio": cpu["ours"] / cpu["raw"],
        "memory_proxies": result["memory"]["ours"],
        "stored": statistics.median(stored),
        "stored_worst": max(stored),
        "stored_ratio": statistics.median([a / b for a, b in zip(stored, raw, strict=True)]),
        "stored_memory_proxies": result["memory"]["stored"],
        "idle_share": result["idle"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--cases", default="8x10,32x1", help="nodes x megabytes, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    cases = [Case(int(n), int(mb) * MB) for n, mb in (text.split("x") for text in options.cases.split(","))]
    rows = [row(case, measure(case, options.rounds)) for case in cases]
    if options.json:
        print(json.dumps({"benchmark": "exchange", "machine": machine(), "rows": rows}, indent=1))
        return
    for r in rows:
        cpu = r["processor_seconds"]
        print(
            f"{r['case']}: {r['ours']:.2f} s a round (worst {r['worst']:.2f}), {cpu['ours']:.2f} s of a processor"
        )
        print(
            f"  raw gRPC {r['peer']:.2f} s, {cpu['raw']:.2f} s of a processor: ratio {r['ratio']:.2f} "
            f"({r['spread'][0]:.2f} to {r['spread'][1]:.2f}), of processors {r['processor_ratio']:.2f}"
        )
        print(
            f"  with the store {r['stored']:.2f} s (worst {r['stored_worst']:.2f}), {cpu['stored']:.2f} s of a processor:"
            f" ratio {r['stored_ratio']:.2f}"
        )
        print(
            f"  memory over baseline: {r['memory_proxies']:.1f} proxies, with the store "
            f"{r['stored_memory_proxies']:.1f}; idle {100 * r['idle_share']:.2f} % of a core"
        )


if __name__ == "__main__":
    main()
