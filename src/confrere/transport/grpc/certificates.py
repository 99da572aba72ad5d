"""Keeps a running node's certificate fresh: takes a renewed one from its folder, and renews it in time itself."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable

from confrere.core.errors import ConfrereError
from confrere.transport.grpc import identity as identities
from confrere.transport.grpc.identity import Identity

LOOK_EVERY = 30.0


class CertificateKeeper:
    """Holds the identity that is in use, and tells when its certificate was replaced."""

    def __init__(
        self, identity: Identity, changed: Callable[[], None], notice: Callable[[str], None]
    ) -> None:
        self.identity = identity
        self._changed, self._notice = changed, notice
        self._complaint = ""

    def use(self, identity: Identity) -> None:
        """Another certificate of the same site; it counts for every handshake from now on."""
        if identity.member.identity != self.identity.member.identity:
            raise ValueError("an identity cannot be exchanged while a node runs")
        if identity.certificate != self.identity.certificate:
            self.identity = identity
            self._changed()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self.look()

    def look(self, now: dt.datetime | None = None) -> None:
        """Once: see whether there is a newer certificate, or a need for one."""
        folder = self.identity.folder
        if folder is None:
            return
        try:
            found = identities.load_identity(folder)
            if found.expires - (now or dt.datetime.now(dt.UTC)) < identities.RENEW_BEFORE:
                found = identities.renew(folder, now=now)
                self._notice(f"the certificate was renewed and is valid until {found.expires:%Y-%m-%d}")
            self.use(found)
            self._complaint = ""
        except (ConfrereError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._notice(f"the certificate in use stays: {error}")
