"""Members of masked sums that are killed at any instant, ledgers that fail or are restored, and a network that loses, repeats
and reorders. A killed member loses its memory; its ledger remains."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import ConfrereError, PrivacyError
from confrere.core.sum_terms import SumTerms
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.attempt import AttemptMember
from confrere.exchange.secure.in_process import simulated_members
from confrere.exchange.secure.member_site import MemberSite, MemoryFacts
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
class Disk(MemoryFacts):
    """The ledger of a site. Its process may die just before or just after anything is written, and writing may fail."""

    death: float = 0.0
    failure: float = 0.0
    chance: random.Random = field(default_factory=random.Random)
    charges: list[str] = field(default_factory=list)
    backups: list[tuple[dict[tuple[str, str], str], list[str]]] = field(default_factory=list)
    restored: bool = False
    """Whether the ledger was ever replaced by an older one that differs from it."""
    paid: list[str] = field(default_factory=list)
    """All charges, whatever was restored."""

    def _maybe_fail(self) -> None:
        if self.chance.random() < self.death:
            raise Killed
        if self.chance.random() < self.failure:
            raise PrivacyError("the ledger could not be written")

    def write_once(self, subject: str, fact: str, value: str, /) -> str:
        self._maybe_fail()
        found = super().write_once(subject, fact, value)
        self._maybe_fail()
        return found

    def charge(self, attempt: str) -> None:
        """A charge of a masked sum is never used again."""
        self._maybe_fail()
        self.charges.append(attempt)
        self.paid.append(attempt)
        self._maybe_fail()

    def back_up(self) -> None:
        self.backups.append((dict(self.facts), list(self.charges)))

    def restore(self) -> None:
        """Put back an older state, as a backup of the whole machine does."""
        if self.backups:
            facts, charges = self.chance.choice(self.backups)
            self.restored |= (facts, charges) != (self.facts, self.charges)
            self.facts, self.charges = dict(facts), list(charges)


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
        self.world.drawn[str(self.attempt), self.name].append(drawn)
        return drawn


class World:
    """All sites and all that was ever sent."""

    def __init__(
        self,
        seed: int,
        n: int,
        colluding: int,
        dropouts: int,
        death: float = 0.0,
        failure: float = 0.0,
        restores: float = 0.0,
    ) -> None:
        self.restores = restores
        self.chance = random.Random(seed)
        self.agreement = agreement_of(n, colluding, dropouts)
        self.keys = AGREED[n][1]
        self.disks = {
            name: Disk(death=death, failure=failure, chance=self.chance) for name in self.agreement.names
        }
        self.members: dict[str, AttemptMember] = {}
        self.summing: dict[str, SummingSite] = {}
        self.flying: list[tuple[str, str, str, bytes]] = []
        self.drawn: dict[tuple[str, str], list[NDArray[np.int64]]] = defaultdict(list)
        self.halves: dict[bytes, set[str]] = defaultdict(set)
        """By the mask key of a member, which of its two secrets any share was opened of."""
        self.sent: list[tuple[str, Message]] = []
        self.ids: list[AttemptId] = []

    # -- what happens ---------------------------------------------------------------------------------

    def begin(self, attempt: int) -> None:
        self.attempt = AttemptId("run", 3, "proxy", 0, attempt, self.chance.randrange(self.agreement.n))
        self.ids.append(self.attempt)
        self.members, self.summing, self.flying = {}, {}, []
        self.rota = list(self.agreement.rota(self.attempt.turn))
        self.elect()
        for name in self.agreement.names:
            self.revive(name)

    def elect(self) -> None:
        """The next one of the rota adds up, if there is one."""
        self.leader = self.rota.pop(0)
        self.summing[self.leader] = SummingSite(
            self.agreement, self.attempt, self.leader, self.keys[self.leader]
        )

    def revive(self, name: str) -> None:
        """Start the process of a site, without anything but its ledger."""
        disk = self.disks[name]
        if self.chance.random() < self.restores:
            disk.restore()
        site = MemberSite(name, self.keys[name], disk)
        member = AttemptMember(self.agreement, self.attempt, site, Source(self, name, self.attempt))
        self.members[name] = member
        self.act(name, lambda: [*member.succeed(self.leader), *member.start()])

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
            if isinstance(reply, OpenedShares):
                known = self.members[name]._announcements
                for half, given in (("seed", reply.seed_shares), ("key", reply.key_shares)):
                    for site in given:
                        self.halves[known[site].mask_key].add(half)
            self.flying.append(("summing", name, self.leader, encode(reply)))

    def deliver(self, at: int, *, keep: bool = False) -> None:
        kind, sender, to, data = self.flying[at] if keep else self.flying.pop(at)
        message = decode(data)
        if kind == "member":
            if (member := self.members.get(to)) is not None:
                self.act(to, lambda: member.receive(sender, message))
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
        if self.restores and self.chance.random() < 0.05:
            self.disks[self.chance.choice(self.agreement.names)].back_up()
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
        if not self.rota:
            return
        self.elect()
        for name, member in list(self.members.items()):
            self.act(name, lambda member=member: member.succeed(self.leader))

    @property
    def finished(self) -> bool:
        leader = self.summing.get(self.leader)
        return not self.flying and (leader.done if leader is not None else not self.rota)

    # -- what must hold -------------------------------------------------------------------------------

    def results(self, id: AttemptId) -> list[SumResult]:
        context = id.context(self.agreement)
        return [m for _, m in self.sent if isinstance(m, SumResult) and m.context == context]

    def check(self) -> int:
        """The invariants of the protocol over everything that was ever sent; returns how many sums were opened."""
        opened = 0
        for id in self.ids:
            found = self.results(id)
            sums = {(r.certificate.survivors, r.vector) for r in found}
            assert len(sums) <= 1, "two sums were opened"
            opened += len(sums)
            for result in found:
                survivors = result.certificate.survivors
                assert len(survivors) >= self.agreement.terms.quorum
                steps = read_result(self.agreement, result).steps
                drawn = product(*(self.drawn[str(id), name] for name in survivors))
                assert any((steps == sum(chosen)).all() for chosen in drawn), "not the sum of the survivors"
        self._check_messages()
        self._check_charges()
        return opened

    def _check_charges(self) -> None:
        """A charge for each vector that left, and none before enough members answered."""
        for id in self.ids:
            context = id.context(self.agreement)
            shared = {by for by, m in self.sent if isinstance(m, SealedShares) and m.context == context}
            left = [(by, m) for by, m in self.sent if isinstance(m, MaskedVector) and m.context == context]
            for name, disk in self.disks.items():
                vectors = {m.header.vector_digest for by, m in left if by == name}
                assert len(vectors) <= disk.paid.count(str(id)), "a vector left that was not charged"
                assert not disk.paid.count(str(id)) or len(shared) >= self.agreement.terms.quorum, (
                    "charged before enough members answered"
                )
                if vectors and not disk.restored:
                    assert str(id) in disk.charges
            for result in self.results(id):
                assert all(str(id) in self.disks[name].paid for name in result.certificate.survivors)

    def _check_messages(self) -> None:
        """What holds for a site whose ledger was not restored, and for the secrets of any site."""
        vectors, votes = defaultdict(set), defaultdict(set)
        for sender, message in self.sent:
            if isinstance(message, MaskedVector):
                vectors[message.context, sender].add(encode(message))
            elif isinstance(message, Vote):
                votes[message.context, sender].add(message)
        for what, sent in (("vectors", vectors), ("lists signed", votes)):
            for (_, site), found in sent.items():
                assert len(found) == 1 or self.disks[site].restored, f"two {what} of one site in one attempt"
        assert all(len(found) == 1 for found in self.halves.values()), "both halves of one site were opened"
        facts = {(site, key) for site, disk in self.disks.items() for key in disk.facts}
        for (context, site), _ in vectors.items():
            known = any(by == site and context.hex()[:16] in key[0] for by, key in facts)
            assert known or self.disks[site].restored, "a vector left that the ledger does not know"
