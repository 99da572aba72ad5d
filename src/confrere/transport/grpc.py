"""A site's connections to its peers: mutual TLS 1.3 over gRPC, one stream per pair that both use.

    connections = Connections(identity, members, greet=greet, deliver=deliver, notice=journal.add, ...)
    await connections.start()                     # listens, if the site has an address, and dials everybody it can
    receipt = await connections.send("b", "a/b/7", blob)   # PeerMissing if b is not there, or is lost meanwhile
    await connections.stop()

- `members` is the roster: every other site by name (`transport.member.Member`); `node.roster.Roster.members` gives it.
- `greet(peer) -> Greeting` is called at every handshake, so it may look up the epoch, the ledger and the marks.
- `met(peer, greeting)`, if given, sees the verified greeting of a peer before anything is exchanged. It is the place to
  store `greeting.mark` durably and to compare `greeting.seen` with one's own ledger; raising PeerRefused refuses.
- `deliver(sender, blob) -> Receipt` gets each whole parcel of an authenticated peer, one at a time, and returns what it
  did with it once that is durable. Raising means «not now»: the sender keeps the parcel and sends it again.
- `notice(event)` hears `connected`, `disconnected`, `refused` and `notice`, each once per change and not per attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from confrere.core.events import Event
from confrere.transport.greeting import Greeting
from confrere.transport.identity import Identity
from confrere.transport.member import Member
from confrere.transport.receipt import Receipt


class Connections:
    """Everything that a node needs to know about its peers being there or not."""

    def __init__(
        self,
        identity: Identity,
        members: Mapping[str, Member],
        *,
        greet: Callable[[str], Greeting],
        deliver: Callable[[str, bytes], Awaitable[Receipt]],
        notice: Callable[[Event], None] = lambda event: None,
        met: Callable[[str, Greeting], None] = lambda peer, greeting: None,
        listen: str | None = None,
        largest: int = 256 * 2**20,
        patience: float = 60.0,
    ) -> None:
        """`listen` is host:port to bind (port 0: any, see `port`); None for a site that only dials out.
        `largest` bounds a parcel before a byte of it is read; take it from the study's expected parcel."""
        raise NotImplementedError

    port: int | None
    """Where this site listens, once started."""

    async def start(self) -> None:
        """Listen and dial. Refuses with IdentityError if the own certificate is expired."""
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def send(self, to: str, parcel_id: str, blob: bytes) -> Receipt:
        """Stream a parcel in chunks; returns once the peer durably credited, refused or put it off."""
        raise NotImplementedError

    async def wait_connected(self, peer: str, timeout: float) -> None:
        """Returns once the peer is there; PeerMissing after `timeout` seconds, with the last reason."""
        raise NotImplementedError

    def renew(self, identity: Identity) -> None:
        """Use a new certificate from now on; streams are replaced without losing what is under way."""
        raise NotImplementedError

    @property
    def connected(self) -> frozenset[str]:
        raise NotImplementedError

    @property
    def last_contact(self) -> Mapping[str, float]:
        """When each peer was last heard, in seconds since 1970."""
        raise NotImplementedError

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each peer that is not connected is not."""
        raise NotImplementedError

    @property
    def bytes_sent(self) -> Mapping[str, int]:
        raise NotImplementedError

    @property
    def bytes_received(self) -> Mapping[str, int]:
        raise NotImplementedError
