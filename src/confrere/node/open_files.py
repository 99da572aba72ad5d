"""The limit on open files of a node's process: raised at the start, and checked before files are needed.

Strangers can hold connections open, each of which takes a file descriptor. gRPC bounds these (`transport.grpc.channel`).
If descriptors run out nevertheless, a node waits (`node.shortage`).
"""

from __future__ import annotations

import os
from contextlib import suppress

ENOUGH = 16
"""Descriptors that must be free before a node goes on: an event loop in a thread takes three."""


def raise_limit() -> int | None:
    """Raise the limit on open files to the highest that is allowed; returns it, or None if the system has none."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems allow less than they state
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


def enough() -> bool:
    """Whether some more files can be opened now."""
    opened: list[int] = []
    try:
        for _ in range(ENOUGH):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True
