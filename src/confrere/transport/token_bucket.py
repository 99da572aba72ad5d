"""A token bucket: limits how often a peer may trigger an action."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """At most `burst` times at once, and once more every `seconds` seconds."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._left, self._since = float(burst), clock()

    def allows(self) -> bool:
        """Whether it may happen now, without counting it."""
        now = self._clock()
        self._left = min(float(self._burst), self._left + (now - self._since) / self._seconds)
        self._since = now
        return self._left >= 1

    def take(self) -> bool:
        """Count one time; False if it may not happen now."""
        if not self.allows():
            return False
        self._left -= 1
        return True
