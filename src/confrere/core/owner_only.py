"""Create and check files that only their owner can read (keys, ledgers, models)."""

from __future__ import annotations

import os
import stat
from errno import ENOTDIR
from pathlib import Path
from typing import TextIO

from confrere.core.errors import ConfrereError

OTHERS = stat.S_IRWXG | stat.S_IRWXO
WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def require_owner_only(
    path: Path, error: type[ConfrereError], advice: str = "", facts: os.stat_result | None = None
) -> None:
    """Raise `error`, with the chmod that closes it, if the group or others have any right to a file or folder."""
    facts = facts or path.stat()
    if facts.st_mode & OTHERS:
        mode = "700" if stat.S_ISDIR(facts.st_mode) else "600"
        raise error(
            f"{path} (mode {stat.S_IMODE(facts.st_mode):03o}) is open to others than its owner;"
            f" close it with `chmod {mode} {path}`{advice}"
        )


def require_irreplaceable(path: Path, error: type[ConfrereError]) -> None:
    """Raise `error` if others than the owner can read a file, write to it, or replace it in its folder."""
    require_owner_only(path, error)
    folder = path.resolve().parent
    mode = folder.stat().st_mode
    if mode & WRITABLE and not mode & stat.S_ISVTX:
        raise error(
            f"{folder} lets others than its owner replace {path.name}; close it with `chmod go-w {folder}`"
        )


def make_private_folder(path: Path) -> Path:
    """The folder, made with its parents if it is not there; a new one is its owner's alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(exist_ok=True, mode=0o700)
    except FileExistsError:
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(path)) from None
    return path


def write_private(path: Path, data: bytes | str) -> None:
    """Write a file whole or not at all; at no time can anyone but its owner read it."""
    raw = data.encode() if isinstance(data, str) else data
    if path.exists() and not path.is_file():  # a pipe, or /dev/stdout
        path.write_bytes(raw)
        return
    draft = private_draft(path)
    try:
        with open(draft, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def append_private(path: Path) -> TextIO:
    """Open a text file to append to it; a new one is its owner's alone."""
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def private_draft(path: Path) -> Path:
    """A new, empty file beside `path` that only its owner can read, to be filled and renamed to it."""
    draft = path.with_name(path.name + ".part")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return draft
