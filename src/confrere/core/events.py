"""Events and the journal: one stream of facts that progress bar, report, dashboard and audit log read.

Events have custody too: metrics, error counts and dropped records are PRIVATE, who sent what to whom is
PUBLIC. The journal is a file of JSON lines in which each line carries the hash of the one before.

kind           site            data
run-started    –               name, title, question, study (hash), seed, strategy, options, rounds, topology, task,
                               sites {name: {records (the public training size), declared (of the whole file), computed
                               (in a rehearsal, from records), private, proxy}}, versions, hardware, unproven,
                               privacy {epsilon, delta, unit, accountant, proven} or null
round-started  – (in a site's own journal: yes)   members, present, epoch
charged        yes             role, steps, epsilon (spent so far), delta, budget (or null), unit, accountant,
                               proven, units {unit: epsilon, or null without a bound}, ceiling, above_ceiling,
                               condition (what ε assumes of the other sites, where it does), noise_multiplier,
                               sample_rate, mechanism (what the ledger counts, for each step)
budget-spent   yes             text, relays; what was spent before, as in charged
trained        yes, PRIVATE    losses {role: number}, dropped, seconds, weights
sent           the sender      to, phase, bytes, custody, model (whether there was one), mass
missing        the receiver    senders, phase
absent, joined, left, lost     text
fitted         yes, PRIVATE    role, loss, prior, length, held_out_loss, shares: a site's own model trained to the end
evaluated      yes, PRIVATE    validation, test, common_test: each {role: {metric: number}} or null; majority: for each
                               of them the accuracy of always saying the site's most frequent class; patients: for each
                               of them how many patients the figures rest on, by class
deployed       yes, PRIVATE    model (collaborative or own), text, test {metric: number} of the site's own model if it is
                               deployed: which of the two did better on the site's own held-out records
judged         yes, PRIVATE    metric, gain, interval, word, tested, at_threshold, text: the collaborative model of this run
                               against one trained alone, on the site's test patients, after the last round
weighed        yes             weights {peer: number}, note: how much each peer counts in this site's model
connected, disconnected, unreachable (of a node)   peer, dialled or text
equivocated    the receiver    text, sender, first, second: two signed headers that contradict each other
notice         yes or –        text; where a study stops before its last round, stopped (the number of rounds) and, of a
                               site, reasons; of a node also cancelled, finished, leaving (the site), rehearsal, settled or
                               waiting, where it is about how the node runs
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

from confrere.core.compressed_list import PAGE, CompressedList
from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError
from confrere.core.owner_only import append_private
from confrere.core.terminal import json_text

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
        """An event from its JSON form."""
        return cls(row["kind"], row["site"], row["round"], Custody[row["custody"]], row["data"], row["time"])


GENESIS = "0" * 64


def _row(event: Event) -> list[Json]:
    return [event.kind, event.site, event.round, event.custody.name, dict(event.data), event.time]


def _event(row: list[Json]) -> Event:
    kind, site, round, custody, data, time = row
    return Event(kind, site, round, Custody[custody], data, time)


class Journal:
    """Appends events to a hash-chained file (or only to memory) and passes them to listeners."""

    page: int | None = PAGE
    """How many events are compressed together (core/compressed_list.py); None keeps all of them uncompressed."""

    def __init__(
        self, path: Path | None = None, *, listeners: tuple[Callable[[Event], None], ...] = ()
    ) -> None:
        self.path = path
        self.events: CompressedList[Event] = CompressedList(_row, _event, self.page)
        self.kinds: set[str] = set()
        """The kinds of the events so far, so that a search for an absent kind can be skipped."""
        self._listeners = list(listeners)
        self._head, self._count = GENESIS, 0
        if path is not None and path.exists():
            for event, head in verified(path):
                self.events.append(event)
                self.kinds.add(event.kind)
                self._head, self._count = head, self._count + 1
            _cut_torn_line(path)
        self._file = append_private(path) if path is not None else None

    def listen(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.kinds.add(event.kind)
        if self._file is not None:
            line = {"n": self._count, "prev": self._head, **event.as_json()}
            self._head = _digest(line)
            self._file.write(json_text({**line, "hash": self._head}) + "\n")
            self._file.flush()
        self._count += 1
        for listener in self._listeners:
            listener(event)

    def drain(self) -> list[bytes]:
        """Remove all events so far and return them as pages for `add_page` of another journal."""
        return self.events.drain()

    def add_page(self, page: bytes) -> None:
        """Add the events of a page that another journal's `drain` returned."""
        if self._file is not None:
            for event in CompressedList(_row, _event, None).add_page(page):
                self.add(event)
            return
        events = self.events.add_page(page)
        self._count += len(events)
        self.kinds.update(event.kind for event in events)
        for event in events if self._listeners else ():
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
            event = Event.of_json(row)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(
                f"{path}: line {count + 1} does not fit the hash chain: the journal was edited or damaged"
            ) from None
        head, count = stated, count + 1
        yield event, head
