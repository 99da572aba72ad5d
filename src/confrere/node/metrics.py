"""Numbers for Prometheus, on this machine only, and none of them from records.

Model quality, losses and dropped records are PRIVATE and are not here: a monitoring system is not the building.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from confrere.node.status import last_charge, missing

if TYPE_CHECKING:
    from confrere.node.daemon import Node

Labels = Mapping[str, object]


def exposition(node: Node) -> str:
    """The text that Prometheus reads."""
    lines: list[str] = []

    def metric(name: str, kind: str, help: str, *values: tuple[Labels, float]) -> None:
        lines.append(f"# HELP confrere_{name} {help}")
        lines.append(f"# TYPE confrere_{name} {kind}")
        for labels, value in values:
            inside = ",".join(f'{k}="{_escaped(v)}"' for k, v in labels.items())
            number = f"{value:.17g}"  # all of its digits: a time in seconds has ten before the point
            lines.append(f"confrere_{name}{{{inside}}} {number}" if inside else f"confrere_{name} {number}")

    links, store, events = node.links, node.store, node.journal.events
    owed, missed, spent = store.owed(), missing(events), last_charge(events)
    metric("rounds_done", "gauge", "Rounds that this site has behind it.", ({}, node.done))
    metric("rounds", "gauge", "Rounds of the study.", ({}, node.study.rounds))
    metric("paused", "gauge", "Whether the owner has paused the node.", ({}, float(node.paused)))
    metric(
        "peer_connected", "gauge", "Whether a peer is there.",
        *(({"peer": p}, float(p in links.connected)) for p in node.others),
    )  # fmt: skip
    metric(
        "peer_last_contact_seconds", "gauge", "When a peer was last heard, in seconds since 1970.",
        *(({"peer": p}, t) for p, t in sorted(links.last_contact.items())),
    )  # fmt: skip
    metric(
        "peer_missing", "gauge", "Latest rounds in which a peer was expected and did not send in time.",
        *(({"peer": p}, len(missed.get(p, []))) for p in node.others),
    )  # fmt: skip
    metric(
        "outbox_parcels", "gauge", "Parcels that a peer has not acknowledged.",
        *(({"peer": p}, owed.get(p, 0)) for p in node.others),
    )  # fmt: skip
    metric("bytes_sent_total", "counter", "Bytes sent to peers.", ({}, sum(links.bytes_sent.values())))
    metric("bytes_received_total", "counter", "Bytes from peers.", ({}, sum(links.bytes_received.values())))
    if spent is not None:
        said = {k: spent[k] for k in ("delta", "unit", "accountant", "proven")}
        metric("epsilon_spent", "gauge", "Privacy spent on this site's records.", (said, spent["epsilon"]))
        if spent["budget"] is not None:
            metric("epsilon_budget", "gauge", "The most that may be spent.", (said, spent["budget"]))
    return "\n".join(lines) + "\n"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def serve(port: int, text: Callable[[], str]) -> asyncio.Server:
    """Answer GET /metrics on the loopback interface, and nothing else anywhere."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
            right = request.startswith((b"GET /metrics ", b"GET / "))
            body = (await asyncio.to_thread(text)).encode() if right else b"there is /metrics\n"
            head = "200 OK" if right else "404 Not Found"
            writer.write(
                f"HTTP/1.1 {head}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port, limit=2**16)
