"""How long a round waits for each peer: less for a peer that has delayed the others more than its share.

Once most of the others are there, waiting is charged to those that are not. Each peer has an account. It begins with
`GRACE` times the study's patience, gains as much time as this site itself works between two exchanges, and loses what
was waited for it. So a peer may be twice as slow as the site for ever, and slower than that for a while. With an empty
account it is waited for as long as it gains, and never less than the study's window, the `WINDOW`th part of the patience.
Before most of the others are there, and where there is only one peer, each is waited for with the whole patience.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

GRACE = 3
WINDOW = 60


class Lateness:
    """The accounts of all peers. `charge` is called with each peer that a round has waited for, and the seconds."""

    def __init__(self, charge: Callable[[str, float], None] = lambda peer, seconds: None) -> None:
        self._charge = charge
        self._account: dict[str, float] = {}
        self._in_time: dict[str, bool] = {}
        """Whether each peer that was ever expected sent something the last time."""
        self._expected: frozenset[str] = frozenset()
        self._awaited: frozenset[str] = frozenset()
        self._patience = self._began = 0.0
        self._ended: float | None = None
        self._most: float | None = None
        """Since when most of the others are there."""

    def begin(self, expected: Collection[str], patience: float, now: float) -> None:
        """An exchange begins to wait for these peers."""
        worked = 0.0 if self._ended is None else now - self._ended
        self._expected = self._awaited = frozenset(expected)
        self._patience, self._began, self._most = patience, now, None
        for peer in self._expected:
            self._in_time.setdefault(peer, False)
            full = GRACE * patience
            self._account[peer] = min(full, self._account.get(peer, full) + worked)

    def left(self, awaited: Collection[str], now: float) -> float:
        """Seconds left to wait for missing peers."""
        self._note(awaited, now)
        return max((self._deadline(peer) - now for peer in self._awaited), default=0.0)

    def end(self, awaited: Collection[str], now: float) -> None:
        """The exchange goes on without those who are still awaited."""
        self._note(awaited, now)
        for peer in self._expected:
            self._in_time[peer] = peer not in self._awaited
        self._pay(self._awaited, now)
        self._expected = self._awaited = frozenset()
        self._ended = now

    def _deadline(self, peer: str) -> float:
        latest = self._began + self._patience
        if self._most is None:
            return latest
        return min(latest, self._most + max(self._account[peer], self._patience / WINDOW))

    def _note(self, awaited: Collection[str], now: float) -> None:
        here = self._awaited - frozenset(awaited)
        self._awaited -= here
        self._pay(here, now)
        if self._most is None:
            there = sum(
                peer not in self._awaited if peer in self._expected else in_time
                for peer, in_time in self._in_time.items()
            )
            if there and 2 * there >= len(self._in_time) - 1:
                self._most = now

    def _pay(self, peers: Collection[str], now: float) -> None:
        """These were waited for until now."""
        waited = 0.0 if self._most is None else now - self._most
        for peer in peers if waited > 0 else ():
            self._account[peer] = max(0.0, self._account[peer] - waited)
            self._charge(peer, waited)
