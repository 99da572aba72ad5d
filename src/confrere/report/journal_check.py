"""Check that a journal is complete and unaltered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.events import GENESIS, verified


@dataclass(frozen=True)
class VerifiedJournal:
    """A journal whose every line follows from the one before.

    Lines cut off at the end leave no trace in the file: compare `head` with a hash noted before.
    """

    path: Path
    events: int
    head: str
    """The hash of the last event."""

    def as_json(self) -> dict[str, Any]:
        """What `confrere journal verify --json` prints."""
        return {"journal": str(self.path), "events": self.events, "head": self.head, "whole": True}


def verify_journal(path: str | Path) -> VerifiedJournal:
    """Check a journal, or the one in the folder of a run or a node; an edited or removed line is an error.

    >>> confrere.verify_journal(folder).events > 10
    True
    """
    path = Path(path)
    path = path / "journal.jsonl" if path.is_dir() else path
    if not path.exists():
        raise StudyError(f"{path}: no such journal")
    heads = [head for _, head in verified(path)]
    return VerifiedJournal(path, len(heads), heads[-1] if heads else GENESIS)
