"""The journal of a node, written by several threads and surviving a full disk, and a plain log of its public events.

The log holds the same facts as JSON lines without the hash chain, and nothing PRIVATE: it may be shipped to the
institution's log server. The journal itself stays at the site.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from confrere.core.custody import may_leave
from confrere.core.events import Event, Journal, _digest
from confrere.core.terminal import json_text
from confrere.node.shortage import Shortage, recognising_shortages


class NodeJournal(Journal):
    """A journal in which each line is whole or absent. While the disk is full, lines wait in memory."""

    page = None  # threads look through the events while others are added

    def __init__(self, path: Path, *, listeners: tuple[Callable[[Event], None], ...] = ()) -> None:
        path.touch(mode=0o600)
        super().__init__(path, listeners=listeners)
        self._where = path
        self._between = threading.RLock()
        self._pending: list[bytes] = []

    def add(self, event: Event) -> None:
        with self._between:
            if self._file is None:
                return
            line = {"n": self._count, "prev": self._head, **event.as_json()}
            self._head, self._count = _digest(line), self._count + 1
            self._pending.append((json_text({**line, "hash": self._head}) + "\n").encode())
            self.events.append(event)
            self.kinds.add(event.kind)
            self.flush()
            for listener in self._listeners:
                listener(event)

    def flush(self) -> bool:
        """Write what waits; whether all of it is written."""
        with self._between:
            while self._pending and self._file is not None:
                try:
                    write_whole(self._file.fileno(), self._pending[0], self._where)
                except Shortage:
                    return False
                self._pending.pop(0)
            return not self._pending


class Log:
    """A listener that writes what is not PRIVATE as JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, event: Event) -> None:
        if not may_leave(event.custody, consent=True):
            return
        row: dict[str, Any] = {
            "time": round(event.time, 3), "event": event.kind, "site": event.site, "round": event.round,
            **event.data,
        }  # fmt: skip
        with suppress(Shortage):  # the journal has it; a log line is not worth stopping for
            write_whole(self._descriptor, (json_text(row) + "\n").encode(), self._path)

    def close(self) -> None:
        os.close(self._descriptor)


def write_whole(descriptor: int, data: bytes, where: Path) -> None:
    """Append all of `data` or nothing of it."""
    before = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        with recognising_shortages(where):
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
    except (Shortage, OSError):
        os.ftruncate(descriptor, before)
        raise
