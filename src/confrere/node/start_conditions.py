"""Whether a site may start a round now: owner's pause, allowed hours, peers present."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confrere.node.config import Setting, within
from confrere.node.replay import DurableMailbox


class StartConditions:
    """Asked again and again before a round; remembers whether everybody was there once."""

    def __init__(self, setting: Setting, connected: Callable[[], frozenset[str]]) -> None:
        self._setting, self._connected = setting, connected
        self._met = False

    def obstacle(self, peers: Sequence[str], mailroom: DurableMailbox, paused: bool, waited: float) -> str:
        """Why no round begins, in words; empty if one may. `waited` are the seconds since it was first asked."""
        caps, over = self._setting.caps, waited > self._setting.study.patience
        if paused:
            return "paused by its owner"
        if not within(caps.hours, time.localtime().tm_hour):
            return f"outside of its hours ({caps.hours})"
        if not peers:
            return ""
        here = self._connected() & set(peers)
        if not here:
            return "no peer can be reached"
        if not self._met and len(here) < len(peers):
            if not over:
                return f"for {', '.join(sorted(set(peers) - here))} to be there for the first time"
        elif here <= mailroom.given_up():
            if not over:
                return "no word from any peer"
            for peer in here:
                mailroom.back(peer)
        self._met = True
        return ""
