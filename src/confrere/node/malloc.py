"""Memory allocation of a node: one heap for all threads, and freed memory returned to the system.

The C library gives each thread its own heap and keeps what was freed there. A node's threads (the store, gRPC) handle
one parcel each for a moment, so every heap would grow to the size of a parcel, and nothing is faster for it. And what is
freed in the middle of a heap is kept for later, where a parcel of the same size often does not fit by a few bytes: after
some rounds a node would hold the memory of several (`benchmarks/exchange.py`).
"""

from __future__ import annotations

import ctypes
from typing import Any

M_ARENA_MAX = -8


def share_heap() -> bool:
    """Call before threads are started; False where the C library has no such setting."""
    try:
        return bool(_library().mallopt(M_ARENA_MAX, 1))
    except (AttributeError, OSError):
        return False


def give_back() -> bool:
    """Return to the system what was freed; a few milliseconds."""
    try:
        return bool(_library().malloc_trim(0))
    except (AttributeError, OSError):
        return False


def _library() -> Any:
    return ctypes.CDLL(None)
