"""Set one list in a study file and leave everything else as it is, comments included."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from confrere.core.errors import StudyError

HEADER = re.compile(r"^\s*\[")
AFTER = ("topology", "strategy", "rounds", "seed", "question", "title", "name")
"""Where a new key goes: behind the first of these that the file has."""


def write_list(path: Path, key: str, values: Sequence[str], why: str = "") -> None:
    """Set a list of names at the top level of a study's file; `why` is put behind it as a comment."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from None
    new = with_list(text, key, values, why, str(path))
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(new, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be written: {error.strerror}") from None


def with_list(text: str, key: str, values: Sequence[str], why: str = "", where: str = "study") -> str:
    """The text of a study with this list; an error, and nothing changed, where that cannot be done by a single line."""
    line = f"{key} = {json.dumps(list(values), ensure_ascii=False)}" + (f"  # {why}" if why else "")
    lines = text.splitlines(keepends=True)
    ending = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    top = next((n for n, found in enumerate(lines) if HEADER.match(found) and _whole(lines[:n])), len(lines))
    old = _span(lines[:top], key)
    if old is not None:
        lines[old[0] : old[1]] = [line + ending]
    else:
        spans = [s for name in AFTER if (s := _span(lines[:top], name)) is not None]
        at = spans[0][1] if spans else top
        if at and not lines[at - 1].endswith("\n"):
            lines[at - 1] += ending
        lines[at:at] = [line + ending]
    new = "".join(lines)
    try:
        before, after = tomllib.loads(text), tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        before, after = {}, {}
    if not after or after.get(key) != list(values) or {**before, key: 0} != {**after, key: 0}:
        raise StudyError(f"{where}: {key} cannot be put in without touching more; write it yourself: {line}")
    return new


def _span(lines: Sequence[str], key: str) -> tuple[int, int] | None:
    """The lines from a key to the end of its value."""
    start = next((n for n, line in enumerate(lines) if re.match(rf'\s*"?{re.escape(key)}"?\s*=', line)), None)
    if start is None:
        return None
    ends = range(start + 1, len(lines) + 1)
    return next(((start, end) for end in ends if _whole(lines[start:end])), None)


def _whole(lines: Sequence[str]) -> bool:
    """Whether nothing is left open: a header within a text of several lines is none."""
    try:
        tomllib.loads("".join(lines))
    except tomllib.TOMLDecodeError:
        return False
    return True
