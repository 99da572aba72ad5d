"""Check from outside that mass and privacy charges of all nodes of a rehearsal are consistent.

What is asked: is all mass that the sites started with still somewhere, and once; was every release paid for; is there
one release a round; is anything private among the parcels that are still to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from confrere.core.custody import may_leave
from confrere.core.events import verified
from confrere.core.model import Model
from confrere.data.records import Federation
from confrere.node.store import Store
from confrere.privacy.ledger import Ledger
from confrere.site import snapshot
from confrere.site.site_run import run_id
from confrere.study import Study
from confrere.transport import wire
from tests.unit.node.sites import arrived


@dataclass
class ConsistencyReport:
    """What was found; `problems` is empty if all is well."""

    mass: float = 0.0
    started_with: float = 0.0
    releases: int = 0
    charges: int = 0
    parcels: int = 0
    problems: list[str] = field(default_factory=list)


def check_nodes(study: Study, federation: Federation, homes: Mapping[str, Path]) -> ConsistencyReport:
    """Open the files of nodes that are not at work, and add them up."""
    run, books = run_id(study), ConsistencyReport()
    stores = {n: Store(home / "node.sqlite", run=run, site=n) for n, home in homes.items()}
    try:
        states = {n: _state(store) for n, store in stores.items()}
        private = [t for _, state in states.values() for t in _private(state)]
        private += [row for site in federation.sites.values() for row in site.train.inputs]
        for name, store in stores.items():
            done, state = states[name]
            mass = getattr(state, "mass", None)
            if mass is not None:
                books.started_with += mass.start.value
                books.mass += mass.held.value + _under_way(name, store, done, stores)
            _releases(books, name, homes[name])
            _left(books, store, private)
    finally:
        for store in stores.values():
            store.close()
    if not math.isclose(books.mass, books.started_with, rel_tol=1e-6):
        books.problems.append(f"mass {books.mass:.6f}; the sites started with {books.started_with:.6f}")
    return books


def _state(store: Store) -> tuple[int, Any]:
    done, body = next(iter(store.latest()))
    return done, snapshot.loads(body)["state"]


def _under_way(name: str, store: Store, done: int, stores: Mapping[str, Store]) -> float:
    """Mass between states: debited in a round that is not over, under way, or arrived and not absorbed."""
    total = 0.0
    for receiver, sequence, number, mass in store._rows(
        "SELECT receiver, sequence, round, mass FROM outbox WHERE status < 2"
    ):
        there = {(s, n) for s, n, _, _ in arrived(stores[receiver])} if receiver in stores else set()
        total -= mass if number >= done else 0.0
        total += mass if (name, sequence) not in there else 0.0
    return total + sum(mass for _, _, taken, mass in arrived(store) if taken == -1 or taken >= done)


def _releases(books: ConsistencyReport, name: str, home: Path) -> None:
    events = [event for event, _ in verified(home / "journal.jsonl")]
    sent = {e.round for e in events if e.kind == "sent" and e.data["custody"] == "PROTECTED"}
    rounds = sent & {e.round for e in events if e.kind == "trained" and set(e.data["losses"]) - {"private"}}
    with Ledger(home / "ledger.sqlite") as ledger:
        paid = sum(1 for entry in ledger.entries() if entry["charges"])
    books.releases, books.charges = books.releases + len(rounds), books.charges + paid
    if paid < len(rounds):
        books.problems.append(f"{name}: {len(rounds)} rounds were released and {paid} were paid for")


def _left(books: ConsistencyReport, store: Store, private: list[Tensor]) -> None:
    """Parcels that arrived are exactly what left their senders."""
    rows = store._rows("SELECT sender, round, body FROM inbox WHERE body IS NOT NULL")
    released: dict[tuple[str, int, int], bytes] = {}
    for sender, number, body in rows:
        books.parcels += 1
        parcel = wire.decode(store.body(body))
        if parcel.model is None:
            continue
        if not may_leave(parcel.model.custody):
            books.problems.append(f"a parcel of {sender} holds a model that is {parcel.model.custody.name}")
        for tensor in parcel.model.params.values():
            if any(same(p, tensor) for p in private):
                books.problems.append(f"a parcel of {sender} holds private numbers")
        weights = parcel.model.params.flatten().numpy().tobytes()
        if parcel.phase == 0 and released.setdefault((sender, number, 0), weights) != weights:
            books.problems.append(f"{sender} released two models in round {number + 1}")


def _private(state: Any) -> list[Tensor]:
    """Every tensor of a state that may not leave."""
    models = [
        m for m in vars(state).values() if isinstance(m, Model) and not may_leave(m.custody, consent=True)
    ]
    return [t.flatten() for m in models for t in m.params.values()]


def same(private: Tensor, left: Tensor) -> bool:
    """Whether these very numbers are somewhere in what left; a tensor of zeros says nothing."""
    numbers = private.numpy()
    return bool(np.any(numbers)) and numbers.tobytes() in left.contiguous().flatten().numpy().tobytes()
