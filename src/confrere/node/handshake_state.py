"""Handshake callbacks of a node: what it announces, and how it detects a ledger or folder that was rolled back.

A ledger that was put back from an old copy looks right from inside. So peers keep the highest marks that a site has
signed (`rollback_check.py`) and return them; a site that is shown one that its own ledger does not contain stops training, and
remembers that. A peer's mark is kept only once the peer has accepted the handshake, which it does after it has compared what
it was shown: a ledger that has forked would otherwise replace the mark that proves it. A folder
that was put back would give numbers to parcels that were used before, and forget what it has taken in: peers return the
header of the last parcel that they were sent, and a site that is shown one that it does not know of stops as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from confrere.core.errors import CheckpointError, ConfrereError, LedgerRolledBack, PeerRefused
from confrere.core.parcel import LedgerMark
from confrere.node.config import NodeConfig
from confrere.node.equivocation import LEAVING
from confrere.node.rollback_check import RollbackCheck
from confrere.node.shortage import Shortage
from confrere.node.store import Store
from confrere.privacy.ledger import Ledger
from confrere.transport import ledger_marks
from confrere.transport.grpc.greeting import LONGEST_HEADER, Greeting
from confrere.transport.wire import proven
from confrere.version import __version__


class HandshakeCallbacks:
    """The two callbacks of `Connections` that concern a handshake, and what peers return with receipts."""

    def __init__(
        self, config: NodeConfig, store: Store, ledger: Ledger, rollback_check: RollbackCheck
    ) -> None:
        self._config, self._store, self._ledger, self._rollback_check = config, store, ledger, rollback_check
        self.rolled_back: ConfrereError | None = None
        """Set once a peer has shown that this site's ledger or folder was rolled back: it must not go on."""

    def greet(self, peer: str) -> Greeting:
        config = self._config
        return Greeting(
            config.run, config.digest or config.agreed, config.roster, config.epoch, config.me, peer,
            mark=self.mark(), seen=self.seen(peer), last=self._last(peer), version=__version__,
        )  # fmt: skip

    def met(self, peer: str, greeting: Greeting) -> None:
        """Compare this site's ledger with the marks that the peer returns, and the peer's mark with those kept here."""
        self.compare(greeting.seen)
        if isinstance(self.rolled_back, LedgerRolledBack):
            self._stop(self.rolled_back, "its ledger was rolled back")
        self._compare_parcels(peer, greeting.last)
        mark, key = greeting.mark, self._config.peers[peer].key
        if mark is not None and ledger_marks.genuine(mark, key) and self._rollback_check.note_fork(key, mark):
            raise PeerRefused(
                f'"{peer}" has signed two different entries of one number in its ledger: an old copy of it was restored'
                " and used. Both signatures are kept, and that ledger is not accepted any more; see «Backup and restore»"
                " in docs/operations.md"
            )

    def agreed(self, peer: str, greeting: Greeting) -> None:
        """Keep the mark of a peer that has accepted the handshake: its ledger contains what it was shown."""
        if greeting.mark is not None:
            with suppress(Shortage):  # there will be another handshake
                self.keep(peer, greeting.mark)

    def mark(self) -> LedgerMark:
        """Where this site's ledger stands, signed."""
        return ledger_marks.sign(self._ledger.mark(), self._config.identity.key)

    def keep(self, peer: str, mark: LedgerMark) -> bool:
        """Remember where a peer's ledger stands; whether the peer has signed that."""
        key = self._config.peers[peer].key
        genuine = ledger_marks.genuine(mark, key)
        if genuine:
            self._rollback_check.keep(key, mark)
        return genuine

    def seen(self, peer: str) -> tuple[LedgerMark, ...]:
        """What to return to a peer."""
        return self._rollback_check.marks(self._config.peers[peer].key)

    def compare(self, seen: Sequence[LedgerMark]) -> None:
        """Notice, for good, that a ledger here is not the one that this site has signed; a peer may make marks up."""
        for mark in seen:
            if ledger_marks.genuine(mark, self._config.identity.member.key):
                try:
                    self._ledger.refuse_older_than(mark)
                except LedgerRolledBack as error:
                    self.rolled_back = error
                    with suppress(Shortage):  # the peer keeps its copy of it
                        self._rollback_check.keep_rollback(mark)

    def _compare_parcels(self, peer: str, text: str) -> None:
        header = proven(text, self._config.identity.member.key) if text else None
        if header is None or (header.run, header.receiver) != (self._config.run, peer):
            return
        own = self._store.highest_sent(peer)
        if (
            header.phase < LEAVING and header.sequence > own
        ):  # a farewell has a number that no exchange reaches
            error = CheckpointError(
                f'{self._config.home} is an old copy, or a new folder: "{peer}" has parcel {header.sequence} of this'
                f" site, with its signature, and the folder knows of {own}. Bring back the newest folder; if there is"
                " none, leave (`confrere roster leave`) and agree on another run (another seed)"
            )
            self._stop(error, "its folder is an old copy, or a new one")

    def _stop(self, error: ConfrereError, reason: str) -> None:
        """End the node with what its owner has to know; the peer is given the reason without any local detail."""
        self.rolled_back = error
        raise PeerRefused(f'"{self._config.me}" cannot go on: {reason}') from None

    def _last(self, peer: str) -> str:
        text = self._store.facts().get(f"last:{peer}", "")
        return text if len(text) <= LONGEST_HEADER else ""
