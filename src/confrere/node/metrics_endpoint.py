"""Prometheus metrics of a running node, on loopback only; none is derived from records.

Model quality, losses and dropped records are PRIVATE and are not here: a monitoring system is outside the building.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from confrere.core.errors import StudyError
from confrere.node.status import last_charge, missing

if TYPE_CHECKING:
    from confrere.node.node import Node


@dataclass(frozen=True)
class NodeMetrics(Collector):
    """Reads a node's counters and clocks whenever Prometheus asks."""

    node: Node

    def collect(self) -> Iterator[Metric]:
        node, links = self.node, self.node.links
        owed, missed = node.store.owed(), missing(node.journal.events)
        yield _gauge("rounds_done", "Rounds that this site has completed.", node.done)
        yield _gauge("rounds", "Rounds of the study.", node.study.rounds)
        yield _gauge("paused", "1 while the owner has paused the node.", node.paused)
        yield self._per_peer("peer_connected", "1 while a peer is connected.", lambda p: p in links.connected)
        yield self._per_peer(
            "peer_last_contact_seconds", "Unix time of the last contact with a peer.", links.last_contact.get
        )
        yield self._per_peer(
            "peer_missing",
            "Recent rounds in which a peer did not send in time.",
            lambda p: len(missed.get(p, [])),
        )
        yield self._per_peer(
            "outbox_parcels", "Parcels that a peer has not acknowledged.", lambda p: owed.get(p, 0)
        )
        for name, help in (
            ("refused", "Parcels of a peer that no honest site sends."),
            ("left_aside", "Parcels of a peer with numbers out of the study's bounds."),
            ("put_off", "Parcels of a peer that were not taken because too many wait or came in vain."),
        ):
            counts = {peer: found[name] for peer, found in node.conduct.counts().items()}
            yield self._per_peer(f"peer_parcels_{name}", help, counts.get)
        yield self._per_peer(
            "peer_seconds_waited",
            "Seconds that rounds waited for a peer after most of the others were there.",
            lambda p: node.conduct[p].seconds_waited,
        )
        yield _counter("bytes_sent", "Bytes sent to peers.", sum(links.bytes_sent.values()))
        yield _counter("bytes_received", "Bytes received from peers.", sum(links.bytes_received.values()))
        yield from self._privacy()

    def _per_peer(self, name: str, help: str, value: Callable[[str], float | None]) -> Metric:
        family = GaugeMetricFamily(f"confrere_{name}", help, labels=["peer"])
        for peer in self.node.peer_names:
            if (found := value(peer)) is not None:
                family.add_metric([peer], float(found))
        return family

    def _privacy(self) -> Iterator[Metric]:
        spent = last_charge(self.node.journal.events)
        if spent is None:
            return
        stated = {k: str(getattr(spent, k)) for k in ("delta", "unit", "accountant", "proven")}
        stated |= {"condition": spent.condition} if spent.condition else {}
        for name, value, help in (
            ("epsilon_spent", spent.epsilon, "Privacy spent on this site's records."),
            ("epsilon_budget", spent.budget, "The most that may be spent."),
            ("epsilon_ceiling", spent.ceiling, "The site's ceiling on what was spent."),
        ):
            if value is not None:
                family = GaugeMetricFamily(f"confrere_{name}", help, labels=list(stated))
                family.add_metric(list(stated.values()), value)
                yield family


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"confrere_{name}", help, float(value))


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"confrere_{name}", help, float(value))


def registry(node: Node) -> CollectorRegistry:
    """The metrics of this node and nothing else: no default collectors of the process."""
    found = CollectorRegistry(auto_describe=False)
    found.register(NodeMetrics(node))
    return found


def serve(port: int, node: Node) -> Callable[[], None]:
    """Answer on the loopback interface from a thread of its own; the result stops it."""
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry(node))
    except (OSError, OverflowError) as error:
        raise StudyError(
            f"the metrics cannot be served on 127.0.0.1:{port}: {error}; state another `metrics` in site.toml"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
