"""The limit on open files of a node's process: raised at the start, and a shortage is waited out.

Strangers can hold connections open, each of which takes a file descriptor. gRPC bounds these (`transport.grpc.channel`).
Where descriptors run out all the same, a node waits, as it does while the disk is full.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

ENOUGH = 16
"""Descriptors that must be free before a node goes on: an event loop in a thread takes three."""
SHORTAGE = (errno.EMFILE, errno.ENFILE)


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


def caused(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, says that too many files are open.

    SQLite only reports that it cannot open a file, so the number of free descriptors decides there.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in SHORTAGE:
            return True
        if "too many open files" in str(error):
            return True
        if "unable to open database file" in str(error) and not enough():
            return True
        error = error.__cause__ or error.__context__
    return False
