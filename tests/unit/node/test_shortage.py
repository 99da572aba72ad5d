"""A full disk and too few file descriptors are recognised, waited out, and never taken for damage."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from confrere.core.errors import PrivacyError
from confrere.node import open_files
from confrere.node.database import Database
from confrere.node.shortage import DiskFull, Shortage, TooManyOpenFiles, recognising_shortages, shortage_of
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
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file") as caught:
        sqlite3.connect(tmp_path)
    missing = caught.value
    assert open_files.enough()
    assert shortage_of(missing, tmp_path) is None
    assert shortage_of(OSError(errno.ENOENT, "No such file"), tmp_path) is None
    too_many = OSError(errno.ENFILE, "Too many open files in system")
    assert isinstance(shortage_of(too_many, tmp_path), TooManyOpenFiles)
    with no_descriptors():
        assert not open_files.enough()
        assert isinstance(shortage_of(missing, tmp_path), TooManyOpenFiles)
        with pytest.raises(TooManyOpenFiles, match="too many open files; nothing was lost"):
            Database(tmp_path / "new.sqlite", "")


def test_a_state_that_cannot_be_opened_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "IN_MEMORY", 10)
    store = Store(tmp_path / "node.sqlite", run="r", site="a")
    store.close_round(1, b"x" * 1000)
    with no_descriptors(), pytest.raises((Shortage, OSError)):
        list(store.latest())
    assert list(store.latest()) == [(1, b"x" * 1000)]
    store.close()


def test_a_full_disk_is_recognised_behind_the_error_of_a_ledger(tmp_path: Path) -> None:
    """A ledger reports that it could not be written; the error of SQLite is behind that."""
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.execute("CREATE TABLE t (x TEXT)")
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")

    def spend() -> None:
        try:
            database.execute("INSERT INTO t VALUES (?)", ("x" * 100_000,))
        except sqlite3.Error as error:
            raise PrivacyError(f"could not be written ({error})") from None

    with pytest.raises(DiskFull, match="the disk is full; free some space"), recognising_shortages(tmp_path):
        spend()
    database.close()
    with pytest.raises(PrivacyError, match="the disk is full"), recognising_shortages(tmp_path):
        raise PrivacyError("the disk is full")  # only words
