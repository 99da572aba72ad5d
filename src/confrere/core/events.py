"""One stream of facts. Progress bar, report, dashboard and audit log all read it; nothing else is logged.

Events have custody too: metrics, error counts and dropped records are PRIVATE, who sent what to whom is
PUBLIC. The journal is a file of JSON lines in which each line carries the hash of the one before.

kind           site            data
run-started    –               name, title, question, study (hash), seed, strategy, options, rounds, topology, task,
                               sites {name: {records (declared), private, proxy}}, versions, hardware, unproven,
                               privacy {epsilon, delta, unit, accountant, proven} or null
round-started  –               members, present, epoch
charged        yes             role, steps, epsilon (spent so far), delta, budget (or null), unit, accountant,
                               proven, noise_multiplier, sample_rate
budget-spent   yes             text, relays
trained        yes, PRIVATE    losses {role: number}, dropped, seconds, weights
sent           the sender      to, phase, bytes, custody, model (whether there was one), mass
missing        the receiver    senders, phase
absent, joined, left, lost     text
fitted         yes, PRIVATE    role, loss, prior, length, held_out_loss, shares: a site's own model trained to the end
evaluated      yes, PRIVATE    validation, test, common_test: each {role: {metric: number}} or null; majority: for each
                               of them the accuracy of always saying the site's most frequent class
weighed        yes             weights {peer: number}, note: how much each peer counts in this site's model
connected, disconnected, unreachable (of a node)   peer, dialled or text
notice         yes or –        text; where a study stops before its last round, stopped (after so many rounds)
resumed        –               round (the first one that is done again)
run-finished   –               seconds, result (what `simulate --json` prints)
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError

Json = Any


@dataclass(frozen=True, slots=True)
class Event:
    """A fact: what happened, where, in which round, and who may know."""

    kind: str
    site: str | None = None
    round: int | None = None
    custody: Custody = Custody.PUBLIC
    data: Mapping[str, Json] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def as_json(self) -> dict[str, Json]:
        return {
            "kind": self.kind,
            "site": self.site,
            "round": self.round,
            "custody": self.custody.name,
            "data": dict(self.data),
            "time": round(self.time, 6),
        }

    @classmethod
    def of_json(cls, row: Mapping[str, Json]) -> Event:
        """The event that another process has told."""
        return cls(row["kind"], row["site"], row["round"], Custody[row["custody"]], row["data"], row["time"])


GENESIS = "0" * 64


class Journal:
    """Appends events to a hash-chained file (or only to memory) and tells whoever listens."""

    def __init__(
        self, path: Path | None = None, *, listeners: tuple[Callable[[Event], None], ...] = ()
    ) -> None:
        self.path = path
        self.events: list[Event] = []
        self._listeners = list(listeners)
        self._head, self._count = GENESIS, 0
        if path is not None and path.exists():
            for event, head in verified(path):
                self.events.append(event)
                self._head, self._count = head, self._count + 1
            _cut_torn_line(path)
        self._file = open(path, "a", encoding="utf-8") if path is not None else None  # noqa: SIM115

    def listen(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def add(self, event: Event) -> None:
        self.events.append(event)
        if self._file is not None:
            line = {"n": self._count, "prev": self._head, **event.as_json()}
            self._head = _digest(line)
            self._file.write(json.dumps({**line, "hash": self._head}, ensure_ascii=False) + "\n")
            self._file.flush()
        self._count += 1
        for listener in self._listeners:
            listener(event)

    def sync(self) -> None:
        """Make sure that everything so far is on the disk."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None


def _digest(line: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(line, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _cut_torn_line(path: Path) -> None:
    """Drop what a killed process left of a last line, before more is appended."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def verified(path: Path) -> Iterator[tuple[Event, str]]:
    """The events of a journal with their hashes; an edited or cut line is an error, a torn last one is not.

    A process that was killed in the middle of a write leaves a last line without its end: that line
    was never acknowledged, so it is passed over. Anything else that does not fit the chain was edited.
    """
    head, count = GENESIS, 0
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    for line in data[: max(whole - 1, 0)].decode("utf-8", errors="replace").split("\n") if whole else ():
        try:
            row = json.loads(line)
            stated = row.pop("hash")
            if row["n"] != count or row["prev"] != head or _digest(row) != stated:
                raise ValueError
            event = Event(
                row["kind"], row["site"], row["round"], Custody[row["custody"]], row["data"], row["time"]
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(
                f"{path}: line {count + 1} does not fit the hash chain: the journal was edited or damaged"
            ) from None
        head, count = stated, count + 1
        yield event, head
