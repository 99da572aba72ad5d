"""Shortages that a node waits out: no space on the disk, or no free file descriptor.

A shortage changes nothing that was stored: the work that met it is repeated once the shortage is over.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from confrere.core.errors import CheckpointError, PrivacyError
from confrere.node import open_files

PAUSE = 1.0
"""Seconds between two looks at whether a shortage is over."""
NEARLY_FULL = 2**20
"""Free bytes below which an input or output error of SQLite counts as a full disk."""


class Shortage(CheckpointError):
    """Something has run out for the moment; nothing was changed."""

    short: ClassVar[str]
    remedy: ClassVar[str] = ""
    over: ClassVar[str]
    """What a node reports when it goes on."""

    def __init__(self, where: Path | None = None) -> None:
        place = "" if where is None else f"{where}: "
        remedy = f"{self.remedy}, " if self.remedy else ""
        super().__init__(f"{place}{self.short}; {remedy}nothing was lost")

    def advice(self, home: Path) -> str:
        """What the owner of a node in this folder can do."""
        raise NotImplementedError


class DiskFull(Shortage):
    """The disk is full."""

    short, remedy, over = "the disk is full", "free some space", "there is room again: goes on"

    def advice(self, home: Path) -> str:
        return f"free some space at {home}; nothing is lost, the node goes on by itself"


class TooManyOpenFiles(Shortage):
    """No file can be opened."""

    short, over = "too many open files", "files can be opened again: goes on"

    def advice(self, home: Path) -> str:
        return (
            "raise the limit (ulimit -n, LimitNOFILE), and open the port to peers only; nothing is lost, the node"
            " goes on by itself"
        )


def shortage_of(error: BaseException | None, where: Path) -> Shortage | None:
    """The shortage that caused an error, or an error that it was raised from; `where` is the file that was used."""
    while error is not None:
        if isinstance(error, Shortage):
            return error
        number = error.errno if isinstance(error, OSError) else None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if number in (errno.EMFILE, errno.ENFILE):
            return TooManyOpenFiles(where)
        if code == sqlite3.SQLITE_CANTOPEN and not open_files.enough():  # SQLite does not give the reason
            return TooManyOpenFiles(where)
        if number in (errno.ENOSPC, errno.EDQUOT) or code == sqlite3.SQLITE_FULL:
            return DiskFull(where)
        if code == sqlite3.SQLITE_IOERR and shutil.disk_usage(where.parent).free < NEARLY_FULL:
            return DiskFull(where)
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def recognising_shortages(where: Path) -> Iterator[None]:
    """Raise `Shortage` instead of an error that is caused by one."""
    try:
        yield
    except (OSError, sqlite3.Error, PrivacyError) as error:
        found = shortage_of(error, where)
        if found is None:
            raise
        raise found from None


WaitForSpace = Callable[[Shortage], Awaitable[None]]
"""Returns once a shortage is over."""


async def until_over(can_write: Callable[[], bool]) -> None:
    """Wait until the disk has room and files can be opened, whatever was short."""
    while not (await asyncio.to_thread(can_write) and open_files.enough()):
        await asyncio.sleep(PAUSE)
