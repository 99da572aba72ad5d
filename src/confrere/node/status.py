"""Collect the status of a running or stopped node, as JSON for its owner."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confrere.core.errors import CheckpointError, StudyError
from confrere.core.events import Event, verified
from confrere.core.results import PrivacySpent
from confrere.core.seeds import NOT_PRIVATE

if TYPE_CHECKING:
    from confrere.node.node import Node

LATEST = 20
"""For how many of the latest rounds missing peers are listed."""


def status_of(node: Node) -> dict[str, Any]:
    """Everything that `confrere status` shows."""
    links, store, events = node.links, node.store, node.journal.events
    owed, heard, missed = store.owed(), store.latest_rounds(), missing(events)
    reasons: Mapping[str, str] = getattr(links, "reasons", {})
    peers = {
        peer: {
            "connected": peer in links.connected,
            "last_contact": links.last_contact.get(peer),
            "heard_in_round": heard[peer] + 1 if peer in heard else None,
            "parcels_waiting": owed.get(peer, 0),
            "missing_in_rounds": missed.get(peer, []),
            "reason": "" if peer in links.connected else reasons.get(peer, ""),
            "conduct": node.conduct[peer].counts(),
        }
        for peer in node.peer_names
    }
    return {
        "site": node.me,
        "study": {"name": node.study.name, "hash": node.config.agreed},
        "doing": node.doing,
        "reason": node.reason or _waits_for(node),
        "rehearsal": node.config.rehearsal,
        "round": node.done,
        "rounds": node.study.rounds,
        "peers": peers,
        "left": {site: number + 1 for site, number in store.leaving().items()},
        "equivocations": store.equivocations(),
        "privacy": _privacy(node),
        "bytes": {
            "in_parcels": store.bytes_out(),
            "sent": sum(links.bytes_sent.values()),
            "received": sum(links.bytes_received.values()),
        },
        "quality_private": (node.quality.get("test") or {}).get(node.strategy.deploys[0], {}),
        "tested_private": (node.quality.get("patients") or {}).get("test"),
        **_deployed(node.journal.events),
        **_verdict(node.journal.events),
        "since": node.began,
    }


def _waits_for(node: Node) -> str:
    """The peers that a masked sum waits for."""
    waiting = () if node.sums is None else node.sums.waiting
    return f"the masked sum waits for {', '.join(waiting)}" if waiting else ""


def _privacy(node: Node) -> dict[str, Any] | None:
    spent = last_charge(node.journal.events) or PrivacySpent.from_json(node.site.spending())
    if spent is None:
        return None
    site, rounds = node.site, node.site.rounds_left(node.ledger)
    note = NOT_PRIVATE if node.config.rehearsal else ""
    return {**spent.as_json(), "rounds_left": rounds, "training_ended": site.spent, "note": note}


def last_charge(events: Sequence[Event]) -> PrivacySpent | None:
    """The latest record of privacy spent in the journal, including what was spent before this study."""
    charges = (
        e.data for e in reversed(events) if e.kind in ("charged", "budget-spent") and "epsilon" in e.data
    )
    return PrivacySpent.from_json(next(charges, None))


def _at_rest(events: Sequence[Event]) -> dict[str, Any] | None:
    spent = last_charge(events)
    over = any(e.kind == "budget-spent" for e in events)
    return None if spent is None else {**spent.as_json(), "training_ended": over}


def missing(events: Sequence[Event]) -> dict[str, list[int]]:
    """For each peer, the latest rounds (counted from 1) in which it was expected and did not send in time."""
    found: dict[str, list[int]] = {}
    for event in events:
        if event.kind == "missing" and event.round is not None:
            for sender in event.data["senders"]:
                rounds = found.setdefault(str(sender), [])
                if not rounds or rounds[-1] != event.round + 1:
                    rounds.append(event.round + 1)
    return {peer: rounds[-LATEST:] for peer, rounds in found.items()}


def last_contacts(events: Sequence[Event]) -> dict[str, float]:
    """When each peer came or went last, as the journal has it."""
    return {str(e.data["peer"]): e.time for e in events if e.kind in ("connected", "disconnected")}


def _last_quality(events: Sequence[Event]) -> dict[str, Any]:
    tested = next((e.data.get("test") for e in reversed(events) if e.kind == "evaluated"), None) or {}
    return dict(tested.get("private") or next(iter(tested.values()), {}))


def _last_tested(events: Sequence[Event]) -> dict[str, Any] | None:
    """The patients that these figures rest on; journals of earlier versions do not state it."""
    found = next((e.data.get("patients") for e in reversed(events) if e.kind == "evaluated"), None) or {}
    return found.get("test")


def _deployed(events: Sequence[Event]) -> dict[str, Any]:
    """Which model was saved and why; if it is the site's own, its figures replace the collaborative model's."""
    found = next((e.data for e in reversed(events) if e.kind == "deployed"), None)
    if found is None:
        return {}
    own = {"quality_private": found["test"]} if found["model"] == "own" else {}
    return {"deployed_private": {"model": found["model"], "text": found["text"]}, **own}


def _verdict(events: Sequence[Event]) -> dict[str, Any]:
    """The collaborative model against one trained alone; nothing before the last round is over."""
    found = next((e.data for e in reversed(events) if e.kind == "judged"), None)
    return {} if found is None else {"verdict_private": dict(found)}


def resting_status(home: Path) -> dict[str, Any]:
    """The status of a stopped node, from its files."""
    if not (home / "node.sqlite").exists():
        raise StudyError(f"{home}: no node has worked here; its folder is `home` in site.toml")
    try:
        with closing(sqlite3.connect(f"file:{home / 'node.sqlite'}?mode=ro", uri=True)) as database:
            facts = dict(database.execute("SELECT key, value FROM facts"))
            done = database.execute("SELECT coalesce(max(done), 0) FROM states").fetchone()[0]
            owed = dict(
                database.execute("SELECT receiver, count(*) FROM outbox WHERE status = 0 GROUP BY receiver")
            )
            size = database.execute("SELECT coalesce(sum(size), 0) FROM outbox").fetchone()[0]
            leaving = dict(database.execute("SELECT site, round FROM leaving"))
        events = [event for event, _ in verified(home / "journal.jsonl")]
    except (sqlite3.Error, OSError) as error:
        raise CheckpointError(f"{home}: the node's files cannot be read ({error})") from None
    start = next((e.data for e in events if e.kind == "run-started"), {})
    missed, met = missing(events), last_contacts(events)
    others = [m for m in start.get("members", []) if m != facts.get("site")]
    return {
        "site": facts.get("site"),
        "study": {"name": start.get("name"), "hash": start.get("study")},
        "doing": "not running",
        "reason": "finished" if facts.get("finished") == "yes" else "",
        "rehearsal": bool(start.get("rehearsal")),
        "round": done,
        "rounds": start.get("rounds"),
        "peers": {
            p: {
                "connected": False, "last_contact": met.get(p), "parcels_waiting": owed.get(p, 0),
                "missing_in_rounds": missed.get(p, []), "reason": "",
            }
            for p in others
        },
        "left": {site: number + 1 for site, number in leaving.items()},
        "equivocations": dict(Counter(str(e.data["sender"]) for e in events if e.kind == "equivocated")),
        "privacy": _at_rest(events),
        "bytes": {"in_parcels": int(facts.get("bytes_out", 0)) + size},
        "quality_private": _last_quality(events),
        "tested_private": _last_tested(events),
        **_deployed(events),
        **_verdict(events),
        "since": None,
    }  # fmt: skip


def ago(moment: float | None) -> str:
    """How long ago, in words."""
    if moment is None:
        return "never"
    seconds = max(0, int(time.time() - moment))
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = seconds // size
            return f"{count} {word}{'s' if count > 1 else ''} ago"
    return f"{seconds} seconds ago" if seconds > 1 else "now"
