"""All members of a masked sum in one process, for tests and benchmarks.

The members are the same as on nodes; only messages are passed by function calls, and the facts of their ledgers are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from confrere.core.errors import PeerError
from confrere.exchange.secure.agreement import Agreement, MaskingMember
from confrere.exchange.secure.attempt import AttemptMember, VectorSource
from confrere.exchange.secure.masking import from_ring, to_ring
from confrere.exchange.secure.member_site import MemberSite, MemoryFacts
from confrere.exchange.secure.messages import AttemptId, Message
from confrere.exchange.secure.summing import Opened, SummingSite, read_result


@dataclass(frozen=True)
class GivenVector:
    """A source that is there already and costs nothing."""

    steps: NDArray[np.int64]

    def charge(self) -> None:
        """There is nothing to charge."""

    def draw(self) -> NDArray[np.int64]:
        return self.steps


def simulated_members(
    declared: Mapping[str, int],
) -> tuple[tuple[MaskingMember, ...], dict[str, Ed25519PrivateKey]]:
    """Members with fresh signing keys, by their declared sizes."""
    keys = {name: Ed25519PrivateKey.generate() for name in declared}
    found = (
        MaskingMember(name, keys[name].public_key().public_bytes_raw(), size)
        for name, size in declared.items()
    )
    return tuple(sorted(found)), keys


def open_sum(
    agreement: Agreement,
    attempt: AttemptId,
    sources: Mapping[str, VectorSource],
    keys: Mapping[str, Ed25519PrivateKey],
    *,
    silent: Collection[str] = (),
) -> Opened:
    """Run one attempt with all members that contribute. Those in `silent` drop out just before they would send their vector.

    Raises a PeerError if the attempt is given up.
    """
    names = [name for name in agreement.rota(attempt.turn) if name in sources and name not in silent]
    if not names:
        raise PeerError("no member of the masked sum is there")
    summing = SummingSite(agreement, attempt, names[0], keys[names[0]])
    members = {}
    for name, source in sources.items():
        members[name] = AttemptMember(agreement, attempt, MemberSite(name, keys[name], MemoryFacts()), source)
        members[name].succeed(summing.name)
    queue: deque[tuple[str, Message]] = deque()
    for name, member in members.items():
        for reply in member.start():
            queue.extend(summing.receive(name, reply))
    while not summing.done:
        if not queue:
            queue.extend(summing.advance())
            continue
        to, message = queue.popleft()
        if to not in members or (to in silent and summing.shares_sent):
            continue
        for reply in members[to].receive(summing.name, message):
            queue.extend(summing.receive(to, reply))
    for member in members.values():
        member.close()
    if summing.result is None:
        raise PeerError(f"the masked sum was given up: {summing.given_up}")
    return read_result(agreement, summing.result)


def plain_sum(agreement: Agreement, vectors: Mapping[str, NDArray[np.int64]]) -> Opened:
    """The same sum without masks, bit for bit: for simulations in which nothing has to be hidden."""
    total = np.zeros(agreement.terms.size, dtype=np.uint64)
    for name in sorted(vectors):
        total += to_ring(vectors[agreement.member(name).name], 64)
    return Opened(tuple(sorted(vectors)), from_ring(total, agreement.terms.bits), agreement.terms.grid)
