"""The heap of a node: one for all of its threads, so that what one has freed the next can use.

The C library gives each thread a heap of its own and keeps what was freed there. A node's threads (the store, gRPC) handle
one parcel each for a moment, so every heap grows to the size of a parcel: 7 proxies over the baseline
instead of 4, and nothing is faster for it (`benchmarks/exchange.py`).
"""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8


def share_heap() -> bool:
    """Call before threads are started; False where the C library has no such setting."""
    try:
        return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1))
    except (AttributeError, OSError):
        return False
