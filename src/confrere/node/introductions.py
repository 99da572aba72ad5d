"""What a node says of itself at every handshake, and what it remembers of its peers' ledgers.

A ledger that was put back from an old copy looks right from inside. So peers keep the highest mark that a site has
signed and return it; whoever is shown a higher one than its own ledger has stops training. A folder that was put back
would give numbers to parcels that were used before, and forget what it has taken in: peers return the header of the last
parcel that they were sent, and whoever is shown one that it does not know of stops as well.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict

from confrere.core.errors import CheckpointError, ConfrereError, PeerRefused, PrivacyError
from confrere.node.database import DiskFull
from confrere.node.setting import Setting
from confrere.node.store import Store
from confrere.privacy.ledger import Ledger
from confrere.transport.greeting import LONGEST_HEADER, Greeting, LedgerMark
from confrere.transport.wire import proven
from confrere.version import __version__


class Introductions:
    """The two callbacks of `Connections` that concern a handshake."""

    def __init__(self, setting: Setting, store: Store, ledger: Ledger) -> None:
        self._setting, self._store, self._ledger = setting, store, ledger
        self.rolled_back: ConfrereError | None = None
        """Set once a peer has shown that this site's ledger or folder was rolled back: it must not go on."""

    def greet(self, peer: str) -> Greeting:
        setting, known = self._setting, self._known(peer)
        mark = LedgerMark(setting.run, setting.me, self._ledger.counter, self._ledger.head)
        return Greeting(
            setting.run, setting.digest or setting.agreed, setting.roster, setting.epoch, setting.me, peer,
            mark=mark.signed(setting.identity.key), seen=known, last=self._last(peer), version=__version__,
        )  # fmt: skip

    def met(self, peer: str, greeting: Greeting) -> None:
        """Learn where one's own ledger stood, and keep where the peer's stands."""
        seen, setting = greeting.seen, self._setting
        if seen is not None and (seen.run, seen.site) == (setting.run, setting.me):
            self._compare(seen)
        self._compare_parcels(peer, greeting.last)
        mark, known = greeting.mark, self._known(peer)
        if mark is None or (mark.run, mark.site) != (setting.run, peer):
            return
        if mark.genuine(setting.peers[peer].key) and (known is None or known.counter < mark.counter):
            with suppress(DiskFull):  # there will be another handshake
                self._store.note(**{f"mark:{peer}": json.dumps(asdict(mark))})

    def _compare(self, seen: LedgerMark) -> None:
        if not seen.genuine(self._setting.identity.member.key):  # a peer may make one up
            return
        try:
            self._ledger.refuse_rollback(seen.counter, seen.head)
        except PrivacyError as error:
            self.rolled_back = error
            raise PeerRefused(str(error)) from None

    def _compare_parcels(self, peer: str, text: str) -> None:
        header = proven(text, self._setting.identity.member.key) if text else None
        if header is None or (header.run, header.receiver) != (self._setting.run, peer):
            return
        own = self._store.highest_sent(peer)
        if header.sequence > own:
            self.rolled_back = CheckpointError(
                f'{self._setting.home} is an old copy, or a new folder: "{peer}" has parcel {header.sequence} of this'
                f" site, with its signature, and the folder knows of {own}. Bring back the newest folder; if there is"
                " none, leave (`confrere roster leave`) and agree on another run (another seed)"
            )
            raise PeerRefused(str(self.rolled_back))

    def _last(self, peer: str) -> str:
        text = self._store.facts().get(f"last:{peer}", "")
        return text if len(text) <= LONGEST_HEADER else ""

    def _known(self, peer: str) -> LedgerMark | None:
        found = self._store.facts().get(f"mark:{peer}")
        return LedgerMark(**json.loads(found)) if found else None
