"""Members of masked sums that are killed at any instant, and a network that loses, repeats and reorders."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import ConfrereError
from confrere.core.sum_terms import SumTerms
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.attempt import AttemptMember
from confrere.exchange.secure.attempt_storage import MemberSite, MemoryAttempts
from confrere.exchange.secure.in_process import simulated_members
from confrere.exchange.secure.messages import (
    AttemptId,
    MaskedVector,
    Message,
    OpenedShares,
    SealedShares,
    SumResult,
    Vote,
    decode,
    encode,
)  # fmt: skip
from confrere.exchange.secure.summing import SummingSite, read_result

SIZE = 4
AGREED = {n: simulated_members({f"site-{k:02}": 100 for k in range(n)}) for n in range(3, 9)}


def agreement_of(n: int, colluding: int, dropouts: int, size: int = SIZE) -> Agreement:
    return Agreement(AGREED[n][0], SumTerms(n, colluding, dropouts, noise_std=1.5, clip=1.0, size=size))


class Killed(Exception):
    """The process died here."""


@dataclass
class Disk(MemoryAttempts):
    """What a site keeps. Its process may die just before or just after anything is written."""

    death: float = 0.0
    chance: random.Random = field(default_factory=random.Random)
    charges: list[str] = field(default_factory=list)

    def _maybe_die(self) -> None:
        if self.chance.random() < self.death:
            raise Killed

    def save(self, attempt: str, part: str, data: bytes) -> None:
        self._maybe_die()
        super().save(attempt, part, data)
        self._maybe_die()

    def write_once(self, subject: str, fact: str, value: str, /) -> str:
        self._maybe_die()
        found = super().write_once(subject, fact, value)
        self._maybe_die()
        return found

    def charge(self, attempt: str) -> None:
        """As the ledger does it: a charge of which nothing left is used again."""
        self._maybe_die()
        if attempt not in self.charges:
            self.charges.append(attempt)
        self._maybe_die()


@dataclass
class Source:
    """A vector that is drawn anew whenever it is asked for."""

    world: World
    name: str
    attempt: AttemptId

    def charge(self) -> None:
        self.world.disks[self.name].charge(str(self.attempt))

    def draw(self) -> NDArray[np.int64]:
        assert str(self.attempt) in self.world.disks[self.name].charges
        drawn = np.array([self.world.chance.randrange(-(2**40), 2**40) for _ in range(SIZE)], dtype=np.int64)
        self.world.drawn[str(self.attempt), self.name] = drawn
        return drawn


class World:
    """All sites and all that was ever sent."""

    def __init__(self, seed: int, n: int, colluding: int, dropouts: int, death: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.agreement = agreement_of(n, colluding, dropouts)
        self.keys = AGREED[n][1]
        self.disks = {name: Disk(death=death, chance=self.chance) for name in self.agreement.names}
        self.members: dict[str, AttemptMember] = {}
        self.summing: dict[str, SummingSite] = {}
        self.flying: list[tuple[str, str, str, bytes]] = []
        self.drawn: dict[tuple[str, str], NDArray[np.int64]] = {}
        self.sent: list[tuple[str, Message]] = []
        self.turn = 0

    # -- what happens ---------------------------------------------------------------------------------

    def begin(self, attempt: int) -> None:
        self.attempt = AttemptId("run", 3, "proxy", 0, attempt)
        for member in self.members.values():
            with suppress(Killed):
                member.close()
        self.members, self.summing, self.flying = {}, {}, []
        self.leader = self.elect()
        for name in self.agreement.names:
            self.revive(name)

    def elect(self) -> str:
        self.leader = self.agreement.rota(self.turn)[0]
        self.turn += 1
        if self.leader not in self.summing:
            self.summing[self.leader] = SummingSite(
                self.agreement, self.attempt, self.leader, self.keys[self.leader]
            )
        return self.leader

    def revive(self, name: str) -> None:
        """Start a site from its disk; it sends again all that it has sent."""
        disk = self.disks[name]
        site = MemberSite(name, self.keys[name], disk, disk)
        member = AttemptMember(self.agreement, self.attempt, site, Source(self, name, self.attempt))
        self.members[name] = member
        self.act(name, lambda: [*member.start(), *member.resend()])

    def kill(self, name: str) -> None:
        self.members.pop(name, None)
        self.summing.pop(name, None)

    def act(self, name: str, step) -> None:  # type: ignore[no-untyped-def]
        """Let a member do something and send the result, unless it dies in between."""
        try:
            replies = step()
        except Killed:
            self.kill(name)
            return
        except ConfrereError:
            return
        for reply in replies:
            self.sent.append((name, reply))
            self.flying.append(("summing", name, self.leader, encode(reply)))

    def deliver(self, at: int, *, keep: bool = False) -> None:
        kind, sender, to, data = self.flying[at] if keep else self.flying.pop(at)
        message = decode(data)
        if kind == "member":
            if (member := self.members.get(to)) is not None:
                self.act(to, lambda: member.receive(message))
        elif (summing := self.summing.get(to)) is not None:
            try:
                found = summing.receive(sender, message)
            except ConfrereError:
                return
            self.send(to, found)

    def send(self, leader: str, found: list[tuple[str, Message]]) -> None:
        for to, message in found:
            self.sent.append((leader, message))
            self.flying.append(("member", leader, to, encode(message)))

    def step(self, loss: float, deaths: float) -> None:
        """One thing happens."""
        alive = list(self.members)
        roll = self.chance.random()
        if roll < deaths and alive:
            self.kill(self.chance.choice(alive))
        elif roll < 2.5 * deaths and len(alive) < self.agreement.n:
            self.revive(self.chance.choice([name for name in self.agreement.names if name not in alive]))
        elif not self.flying or roll > 1 - deaths / 4:
            self.wait_no_longer()
        else:
            at = self.chance.randrange(len(self.flying))
            if self.chance.random() < loss:
                self.flying.pop(at)
            else:
                self.deliver(at, keep=self.chance.random() < loss)

    def wait_no_longer(self) -> None:
        summing = self.summing.get(self.leader)
        if summing is not None and not summing.done:
            self.send(self.leader, summing.advance())
            return
        self.elect()
        for name, member in list(self.members.items()):
            self.act(name, member.resend)

    @property
    def finished(self) -> bool:
        ended = [s.done for s in self.summing.values()]
        return bool(ended) and all(ended) and not self.flying

    # -- what must hold -------------------------------------------------------------------------------

    def results(self, attempt: int) -> list[SumResult]:
        context = AttemptId("run", 3, "proxy", 0, attempt).context(self.agreement)
        return [m for _, m in self.sent if isinstance(m, SumResult) and m.context == context]

    def check(self, attempts: int) -> int:
        """The invariants of the protocol over everything that was ever sent; returns how many sums were opened."""
        opened = 0
        for attempt in range(attempts):
            id = AttemptId("run", 3, "proxy", 0, attempt)
            found = self.results(attempt)
            sums = {(r.certificate.survivors, r.vector) for r in found}
            assert len(sums) <= 1, "two sums were opened"
            opened += len(sums)
            for result in found:
                survivors = result.certificate.survivors
                assert len(survivors) >= self.agreement.terms.quorum
                expected = sum(self.drawn[str(id), name] for name in survivors)
                assert (read_result(self.agreement, result).steps == expected).all(), (
                    "not the sum of the survivors"
                )
        self._check_messages()
        self._check_charges(attempts)
        return opened

    def _check_charges(self, attempts: int) -> None:
        """One charge for each vector that left; it is a release or an attempt that was given up, and nothing else is charged."""
        for attempt in range(attempts):
            id = AttemptId("run", 3, "proxy", 0, attempt)
            context = id.context(self.agreement)
            shared = {by for by, m in self.sent if isinstance(m, SealedShares) and m.context == context}
            left = {by for by, m in self.sent if isinstance(m, MaskedVector) and m.context == context}
            charged = {name for name, disk in self.disks.items() if str(id) in disk.charges}
            assert left <= charged, "a vector left that was not charged"
            assert not charged or len(shared) >= self.agreement.terms.quorum, (
                "charged before enough members answered"
            )
            for result in self.results(attempt):
                assert set(result.certificate.survivors) <= charged
        for disk in self.disks.values():
            assert len(disk.charges) == len(set(disk.charges)) <= attempts

    def _check_messages(self) -> None:
        vectors, votes = defaultdict(set), defaultdict(set)
        halves: dict[tuple[bytes, str], set[str]] = defaultdict(set)
        for sender, message in self.sent:
            if isinstance(message, MaskedVector):
                vectors[message.context, sender].add(encode(message))
            elif isinstance(message, Vote):
                votes[message.context, sender].add(message)
            elif isinstance(message, OpenedShares):
                for site in message.seed_shares:
                    halves[message.context, site].add("seed")
                for site in message.key_shares:
                    halves[message.context, site].add("key")
        assert all(len(found) == 1 for found in vectors.values()), "two vectors of one site in one attempt"
        assert all(len(found) == 1 for found in votes.values()), "two lists signed by one site in one attempt"
        assert all(len(found) == 1 for found in halves.values()), "both halves of one site were opened"
