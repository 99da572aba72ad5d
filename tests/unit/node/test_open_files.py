"""Running out of file descriptors is recognised, waited out, and never taken for damage."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from confrere.node import open_files
from confrere.node.database import Database, DiskFull, TooManyOpenFiles
from confrere.node.store import Store
from confrere.transport import body as bodies


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Lower the limit, and hold every descriptor below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_raised_to_the_highest_that_is_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        assert open_files.raise_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_shortage_is_recognised_also_where_sqlite_does_not_name_it(tmp_path: Path) -> None:
    missing = sqlite3.OperationalError("unable to open database file")
    assert open_files.enough()
    assert not open_files.caused(missing)
    assert not open_files.caused(OSError(errno.ENOENT, "No such file"))
    assert open_files.caused(OSError(errno.ENFILE, "Too many open files in system"))
    with no_descriptors():
        assert not open_files.enough()
        assert open_files.caused(missing)
        with pytest.raises(TooManyOpenFiles, match="too many open files; nothing was lost"):
            Database(tmp_path / "new.sqlite", "")
    assert issubclass(TooManyOpenFiles, DiskFull)


def test_a_state_that_cannot_be_opened_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "IN_MEMORY", 10)
    store = Store(tmp_path / "node.sqlite", run="r", site="a")
    store.close_round(1, b"x" * 1000)
    with no_descriptors(), pytest.raises((DiskFull, OSError)):
        list(store.latest())
    assert list(store.latest()) == [(1, b"x" * 1000)]
    store.close()
