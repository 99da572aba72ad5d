"""Masked sums between sites: which site adds up, what a site needs for it in each runtime, and what is opened.

A sum goes through one site, the centre of a star or the next one of a rota. Each step of it is one message from every
member to the summing site and one back, in a phase of its own:

    numbers   the state that a share was computed from, and the numbers that go with it  →  whether there will be a sum
    then the steps of `exchange.secure`, each with its answer; the last answer is the opened sum

The charge of a share is written when enough members have answered, and before its vector leaves. Simulations may leave out
the masks (`masked.simulate = "sums"`): then the vectors themselves are the second step, and the opened sum is the same to
the bit. `masked_turns` has the steps, with successors of a summing site and further attempts, which only nodes make.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confrere.core.custody import Custody, Scalar
from confrere.core.errors import StudyError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.core.protocols import OpenedSum
from confrere.core.sum_terms import FAR, SumTerms
from confrere.exchange.secure.agreement import Agreement, MaskingMember
from confrere.exchange.secure.mask_graph import COMPLETE
from confrere.exchange.secure.member_site import MemberSite, MemoryFacts
from confrere.privacy.gate import Gate
from confrere.site.faults import Point
from confrere.site.masked_messages import Place, TurnStart
from confrere.site.schedule import ScheduledRound


class SumRound(Protocol):
    """What a masked sum needs of a site's round: its members, its gate, and a way to send messages."""

    me: str
    round: int
    run: str
    epoch: int
    gate: Gate
    journal: Journal

    @property
    def scheduled(self) -> ScheduledRound: ...
    @property
    def missing(self) -> set[str]:
        """The sites that do not have what the others have in common after this round."""

    async def reach(self, point: Point) -> None: ...
    async def send_message(
        self, to: str, place: Place, message: Model, scalars: Mapping[str, Scalar]
    ) -> None: ...
    async def take_messages(self, place: Place, senders: Sequence[str]) -> list[Parcel]: ...
    def fall_behind(self) -> None: ...


@dataclass(frozen=True)
class SumOutcome:
    """What a call of `peers.sum` came to at one site."""

    opened: OpenedSum | None = None
    behind: bool = False
    """Whether the others may go on from a state that this site does not have."""
    led: bool = False
    """Whether this site was the summing site: it sends the common state to those that do not have it."""
    diverged: bool = False
    """Whether nothing was opened because sites have different states, and this site's state is to be the common one."""
    attempt: int = 0
    result: bytes = b""
    """The opened sum as its summing site has signed it."""
    missing: tuple[str, ...] = ()


class SumLog(Protocol):
    """Where a node keeps what must be known after a crash: outcomes, and which turns it has led."""

    async def read(self, round: int) -> SumOutcome | None:
        """The outcome of this call from before a crash."""

    async def write(self, round: int, outcome: SumOutcome) -> None: ...
    async def closed(self, round: int) -> int:
        """The last turn of this round that this site has led beyond its first step; −1 if none."""

    async def close(self, round: int, turn: int) -> None: ...


class MessageChannel(Protocol):
    """How messages of masked sums travel between nodes, and how long they are waited for."""

    async def send(self, to: str, parcel: Parcel) -> int: ...
    async def take(self, round: int, epoch: int, place: Place, senders: Sequence[str]) -> list[Parcel]: ...
    def heard(self, sender: str, round: int) -> None:
        """A peer says that it is in this round."""


class Answers:
    """What a node answers to members that ask for a sum too late: the opened sum if it has it, or where to ask."""

    KEPT = 3
    """The sums of how many rounds are remembered."""

    def __init__(self) -> None:
        self._round, self._turn = -1, 0
        self._ended: dict[int, tuple[TurnStart, Mapping[str, Scalar], Custody]] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when members that wait may have an answer now."""
        self._leaders: tuple[int, int, Sequence[str]] | None = None

    def expect(self, round: int, epoch: int, leaders: Sequence[str]) -> None:
        """A sum of this round begins, with these summing sites in its turns."""
        self._leaders = (round, epoch, leaders)

    def leader(self, round: int, epoch: int, turn: int) -> str | None:
        """The summing site of a turn; None if it is not known yet, empty if there is no such turn."""
        if self._leaders is None or self._leaders[:2] != (round, epoch):
            return None
        leaders = self._leaders[2]
        return leaders[turn] if turn < len(leaders) else ""

    def begin(self, round: int, turn: int) -> None:
        self._round, self._turn = round, turn
        self.changed()

    def end(self, round: int, start: TurnStart, numbers: Mapping[str, Scalar], custody: Custody) -> None:
        self._ended[round] = (start, numbers, custody)
        for old in sorted(self._ended)[: -self.KEPT]:
            del self._ended[old]
        self.changed()

    def to(self, round: int, place: Place) -> tuple[TurnStart, Mapping[str, Scalar], Custody] | None:
        """The answer to a member's numbers; None until this site has ended that turn.

        A member that asks too late waits for the outcome: the opened sum, or the turn in which it can take part.
        """
        if round in self._ended:
            return self._ended[round]
        if round < self._round:
            return TurnStart(moved=True, at=self._round), {}, Custody.PUBLIC
        if round > self._round or place.turn > self._turn:
            return None
        if place.turn < self._turn:
            return TurnStart(moved=True, turn=self._turn), {}, Custody.PUBLIC
        return None


async def at_once(work: Callable[..., Any], *what: Any) -> Any:
    """Compute here and now; a node computes in another thread."""
    return work(*what)


@dataclass(frozen=True)
class MaskedSums:
    """How a site adds up with others behind masks. Without the later fields: as in a simulation."""

    sizes: Mapping[str, int]
    """The public training sizes of all sites."""
    seed: int = 0
    """What the signing keys and mask graphs of a simulation are derived from."""
    plain: bool = True
    """Whether masks are left out."""
    keys: Mapping[str, bytes] | None = None
    """The public keys of all members, where they are real."""
    own: MemberSite | None = None
    """This site's signing key and ledger, where they are real."""
    attempts: int = 1
    successors: int = 0
    """How many further summing sites an attempt has, if one is lost."""
    channel: MessageChannel | None = None
    log: SumLog | None = None
    answers: Answers = field(default_factory=Answers)
    work: Callable[..., Awaitable[Any]] = at_once
    passing: Callable[[str], None] = lambda point: None
    """Called at each step of the protocol (`node.failpoints`)."""
    _agreements: dict[tuple[tuple[str, ...], SumTerms, int], Agreement] = field(
        default_factory=dict, repr=False
    )

    def member_site(self, site: str) -> MemberSite:
        """What a member needs from its site. A simulation keeps its facts in memory."""
        return self.own or MemberSite(site, self._simulated_key(site), MemoryFacts())

    def _simulated_key(self, site: str) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(_seed_bytes(self.seed, "key", site))

    def _public_key(self, site: str) -> bytes:
        if self.keys is not None:
            return self.keys[site]
        return b"" if self.plain else self._simulated_key(site).public_key().public_bytes_raw()

    def agreement(self, members: Sequence[str], terms: SumTerms, epoch: int) -> Agreement:
        """What the members of an epoch agree on; computed once."""
        which = (tuple(sorted(members)), terms, epoch)
        if which not in self._agreements:
            listed = []
            for name in which[0]:
                if name not in self.sizes:
                    raise StudyError(f'"{name}" is not part of the agreement on masked sums')
                listed.append(MaskingMember(name, self._public_key(name), self.sizes[name]))
            seed = _seed_bytes(self.seed, "graph", str(epoch)) if len(listed) > COMPLETE else b""
            self._agreements[which] = Agreement(tuple(listed), terms, epoch, seed)
        return self._agreements[which]


def _seed_bytes(seed: int, *purpose: str) -> bytes:
    return hashlib.sha256("\0".join(["confrere masks", str(seed), *purpose]).encode()).digest()


def summing_site(scheduled: ScheduledRound, round: int) -> str | None:
    """The site that adds up: the centre if it is there, otherwise the next member of the rota that is."""
    return next(iter(summing_sites(scheduled, round)), None)


def summing_sites(scheduled: ScheduledRound, round: int) -> list[str]:
    """The site that adds up, followed by its successors: the members that are there, in the order of the rota."""
    names = sorted(scheduled.members)
    start = round % max(1, len(names))
    if scheduled.centre in scheduled.present:
        start = names.index(scheduled.centre)
    return [name for name in names[start:] + names[:start] if name in scheduled.present]


def longest_sum(
    agreement: Agreement, survivors: Sequence[str], weights: Mapping[str, float] | None = None
) -> float:
    """The largest length of an opened sum of honest sites: their clipped sums with their weights, rounding, and noise."""
    terms, weights = agreement.terms, weights or {}
    records = sum(weights.get(name, 1.0) * agreement.member(name).declared for name in survivors)
    clipped = terms.clip * math.sqrt(terms.vectors) * records
    noise = terms.noise_std * math.sqrt(len(survivors) / terms.honest) * (math.sqrt(terms.size) + FAR)
    return clipped + noise * 1.001 + terms.grid * math.sqrt(terms.size) * len(survivors)
