"""The journal: one chain of facts that shows every edit, and forgives only a torn last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError
from confrere.core.events import Event, Journal, verified


def written(path: Path, events: int = 4) -> list[str]:
    journal = Journal(path)
    for n in range(events):
        journal.add(Event("notice", f"site{n}", n, Custody.PRIVATE, {"text": "é", "n": n}))
    journal.close()
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def test_what_was_written_is_read_back_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, 2)
    again = Journal(path)
    again.add(Event("resumed", data={"round": 1}))
    again.close()
    found = [event for event, _ in verified(path)]
    assert [e.kind for e in found] == ["notice", "notice", "resumed"]
    assert (found[0].custody, found[0].data) == (Custody.PRIVATE, {"text": "é", "n": 0})
    assert [json.loads(line)["n"] for line in path.read_text(encoding="utf-8").splitlines()] == [0, 1, 2]


@pytest.mark.parametrize("line", range(4))
def test_an_edited_removed_or_doubled_line_is_noticed(tmp_path: Path, line: int) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path)
    edits = [
        [*lines[:line], lines[line].replace("notice", "nothing"), *lines[line + 1 :]],
        [*lines[:line], lines[line], *lines[line:]],
        [*lines[:line], "no json\n", *lines[line + 1 :]],
    ]
    if line < 3:  # that the last lines are missing, only somebody who has seen them can tell
        edits.append([*lines[:line], *lines[line + 1 :]])
    for edit in edits:
        path.write_text("".join(edit), encoding="utf-8")
        with pytest.raises(CheckpointError, match="does not fit the hash chain"):
            list(verified(path))


def test_a_line_that_was_torn_by_a_crash_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path)
    path.write_text("".join(lines)[:-9], encoding="utf-8")
    journal = Journal(path)
    assert len(journal.events) == 3
    journal.add(Event("resumed"))
    journal.close()
    assert [e.kind for e, _ in verified(path)] == ["notice"] * 3 + ["resumed"]


def test_whoever_listens_hears_everything_in_order() -> None:
    heard: list[str] = []
    journal = Journal(None, listeners=(lambda e: heard.append(e.kind),))
    for kind in ("one", "two"):
        journal.add(Event(kind))
    assert heard == ["one", "two"] == [e.kind for e in journal.events]
