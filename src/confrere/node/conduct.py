"""Count each peer's misbehaviour and throttle its parcels and log lines.

A peer with valid keys may still send nonsense, or connect again and again. What that costs is bounded here: once its
allowance is used up its parcels are put off unread, and lines about it are counted instead of written. The counts are
shown by `confrere status` and by the metrics, each with the name of the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confrere.core.events import Event
from confrere.transport.token_bucket import TokenBucket

FUTILE_BURST, FUTILE_SECONDS = 100, 1.0
"""Parcels of one peer that may be refused, repeated or deferred: the burst, and the seconds for each one more."""
LINES_BURST, LINES_SECONDS = 60, 60.0
"""Lines about one peer in journal and log: the burst, and the seconds for each one more."""
THROTTLED = ("connected", "disconnected", "unreachable", "notice")
"""Events that a peer can cause without limit."""


@dataclass
class PeerConduct:
    """The counts of one peer since the node was started."""

    refused: int = 0
    """Parcels that no honest site sends: malformed, unsigned, of another run."""
    left_aside: int = 0
    """Parcels whose numbers are out of the study's bounds."""
    put_off: int = 0
    """Parcels that were deferred because too many of its parcels wait already, or were useless."""
    lines_left_out: int = 0
    """Lines about it that were counted instead of written."""
    seconds_waited: float = 0.0
    """How long rounds waited for it after most of the others were there."""
    futile: TokenBucket = field(default_factory=lambda: TokenBucket(FUTILE_BURST, FUTILE_SECONDS), repr=False)
    lines: TokenBucket = field(default_factory=lambda: TokenBucket(LINES_BURST, LINES_SECONDS), repr=False)

    def counts(self) -> dict[str, float]:
        """What status and metrics show."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, TokenBucket)}


class Conduct:
    """The conduct of all peers; passes events on to the journal, and throttles those that a peer causes."""

    def __init__(self, me: str, peers: Iterable[str], record: Callable[[Event], None]) -> None:
        self._me, self._record = me, record
        self._peers = {peer: PeerConduct() for peer in peers}

    def __getitem__(self, peer: str) -> PeerConduct:
        return self._peers.setdefault(peer, PeerConduct())

    def counts(self) -> dict[str, dict[str, float]]:
        return {peer: found.counts() for peer, found in self._peers.items()}

    def waited(self, peer: str, seconds: float) -> None:
        self[peer].seconds_waited += seconds

    def add(self, event: Event) -> None:
        """Record an event, unless it is one line too many about a peer."""
        peer = event.data.get("peer", event.data.get("sender"))
        if peer is None or event.kind not in THROTTLED:
            self._record(event)
            return
        found = self[str(peer)]
        if found.lines.take():
            self._record(event)
            return
        found.lines_left_out += 1
        if found.lines_left_out == 1:
            text = f'"{peer}" causes too many lines: further ones are counted, one in a minute is written'
            self._record(Event("notice", self._me, data={"text": text, "peer": peer}))
