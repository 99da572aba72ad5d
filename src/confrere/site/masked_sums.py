"""Masked sums between sites: which site adds up, which messages pass, and what is opened.

A sum goes through one site, the centre of a star or the next one of a rota. Each step of it is one message from every
member to the summing site and one back, in a phase of its own:

    numbers   the state that a share was computed from, and the numbers that go with it  →  whether there will be a sum
    then the steps of `exchange.secure`, each with its answer; the last answer is the opened sum

The charge of a share is written when enough members have answered, and before its vector leaves. Simulations may leave out
the masks (`masked.simulate = "sums"`): then the vectors themselves are the second step, and the opened sum is the same to
the bit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from confrere.core.custody import Custody, Scalar, Share, public, strictest, total
from confrere.core.errors import BadParcel, PeerError, PrivacyError, StudyError
from confrere.core.events import Event, Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.core.protocols import OpenedSum
from confrere.core.sum_terms import FAR, SumTerms
from confrere.exchange.secure import masking
from confrere.exchange.secure.agreement import Agreement, MaskingMember
from confrere.exchange.secure.attempt import AttemptMember
from confrere.exchange.secure.mask_graph import COMPLETE
from confrere.exchange.secure.member_site import MemberSite, MemoryFacts
from confrere.exchange.secure.messages import AttemptId, GivenUp, Message, SumResult, decode, encode
from confrere.exchange.secure.summing import SummingSite, read_result
from confrere.exchange.sums import SINCE, Summand, answered_numbers, common_state, sum_scalars, version_after
from confrere.privacy.gate import Gate
from confrere.site.faults import Point
from confrere.site.mailbox import MASKED
from confrere.site.masked_share import SiteShare, held_by
from confrere.site.schedule import ScheduledRound

MESSAGE = "masked message"
"""The architecture, and the only tensor, of what a parcel of these phases holds."""

STEPS = 5
"""How many messages each member sends to the summing site in a masked sum."""


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
        self, to: str, phase: int, message: Model, scalars: Mapping[str, Scalar]
    ) -> None: ...
    async def take_messages(self, phase: int, senders: Sequence[str]) -> list[Parcel]: ...
    def fall_behind(self) -> None: ...


def is_masked(phase: int) -> bool:
    """Whether a parcel of this phase holds a message of a masked sum."""
    return phase >= MASKED


def summing_site(scheduled: ScheduledRound, round: int) -> str | None:
    """The site that adds up: the centre if it is there, otherwise the next member of the rota that is."""
    if scheduled.centre in scheduled.present:
        return scheduled.centre
    names = sorted(scheduled.members)
    start = round % max(1, len(names))
    return next((name for name in names[start:] + names[:start] if name in scheduled.present), None)


def check_message(parcel: Parcel) -> None:
    """Refuse a parcel of a masked phase that holds anything but one message."""
    model = parcel.model
    if model is None:
        return
    alone = model.architecture == MESSAGE and list(model.params) == [MESSAGE]
    if not alone or model.params[MESSAGE].dtype != torch.uint8:
        raise BadParcel("a parcel of a masked sum that holds something else than a message of it")


@dataclass(frozen=True)
class MaskedSums:
    """How the sites of a rehearsal add up; all of it is the same at every site."""

    sizes: Mapping[str, int]
    """The public training sizes of all sites."""
    seed: int
    """What signing keys and mask graphs are derived from."""
    plain: bool = True
    """Whether masks are left out."""
    _agreements: dict[tuple[tuple[str, ...], SumTerms, int], Agreement] = field(
        default_factory=dict, repr=False
    )

    def key(self, site: str) -> Ed25519PrivateKey:
        """A site's signing key in a rehearsal."""
        return Ed25519PrivateKey.from_private_bytes(_seed_bytes(self.seed, "key", site))

    def agreement(self, members: Sequence[str], terms: SumTerms, epoch: int) -> Agreement:
        """What the members of an epoch agree on; computed once."""
        which = (tuple(sorted(members)), terms, epoch)
        if which not in self._agreements:
            listed = []
            for name in which[0]:
                if name not in self.sizes:
                    raise StudyError(f'"{name}" is not part of the agreement on masked sums')
                public_key = b"" if self.plain else self.key(name).public_key().public_bytes_raw()
                listed.append(MaskingMember(name, public_key, self.sizes[name]))
            seed = _seed_bytes(self.seed, "graph", str(epoch)) if len(listed) > COMPLETE else b""
            self._agreements[which] = Agreement(tuple(listed), terms, epoch, seed)
        return self._agreements[which]


def _seed_bytes(seed: int, *purpose: str) -> bytes:
    return hashlib.sha256("\0".join(["confrere masks", str(seed), *purpose]).encode()).digest()


async def masked_sum(
    at: SumRound, masks: MaskedSums, share: Share, since: int, scalars: Mapping[str, Scalar]
) -> OpenedSum | None:
    """The opened sum of this round; None where it was given up, or this site was left out of it."""
    held = held_by(at.gate, share)
    await at.reach("before-exchange")
    call = _MaskedSum(at, masks, held, share.opens_as, since, scalars)
    opened = await (call.lead() if call.summing == at.me else call.follow())
    if opened is None:
        at.fall_behind()
    return opened


class _MaskedSum:
    """One call of `peers.sum` at one site."""

    def __init__(
        self,
        at: SumRound,
        masks: MaskedSums,
        share: SiteShare,
        opens_as: Custody,
        since: int,
        scalars: Mapping[str, Scalar],
    ) -> None:
        self.at, self.masks, self.share, self.opens_as = at, masks, share, opens_as
        self.since, self.scalars = since, scalars
        self.agreement = masks.agreement(at.scheduled.members, share.terms, at.epoch)
        self.summing = summing_site(at.scheduled, at.round)
        self.numbers = {SINCE: public(since), **(scalars if share.counts else {})}
        self.others = sorted(at.scheduled.present - {at.me})

    @cached_property
    def member(self) -> AttemptMember:
        """This site in the attempt. A rehearsal keeps its facts in memory."""
        site = MemberSite(self.at.me, self.masks.key(self.at.me), MemoryFacts())
        return AttemptMember(self.agreement, self.attempt, site, self.share)

    @property
    def attempt(self) -> AttemptId:
        assert self.summing is not None
        turn = self.agreement.names.index(self.summing)
        return AttemptId(self.at.run, self.at.round, f"{self.share.role}@{self.since}", 0, 0, turn)

    # -- a member ----------------------------------------------------------------------------------------

    async def follow(self) -> OpenedSum | None:
        if self.summing is None:
            return None
        await self._up(0, b"", self.numbers)
        answer = await self._down(0)
        if answer is None or not self._is_on(answer):
            return None
        found = await (self._follow_plain() if self.masks.plain else self._follow_masked())
        if found is None:
            return None
        parcel, survivors, steps = found
        return self._opened(parcel, survivors, steps)

    async def _follow_plain(self) -> tuple[Parcel, Sequence[str], NDArray[np.int64]] | None:
        await self._up(1, self._plain_vector())
        await self.at.reach("before-answer")
        answer = await self._down(1)
        if answer is None or not (text := _content(answer)):
            return None
        survivors, vector = _split_plain(text)
        ring = masking.unpacked(vector, self.agreement.terms.size, self.agreement.terms.bits)
        return answer, survivors, masking.from_ring(ring, self.agreement.terms.bits)

    def _plain_vector(self) -> bytes:
        self.share.charge()
        bits = self.agreement.terms.bits
        return masking.packed(masking.to_ring(self.share.draw(), bits), bits)

    async def _follow_masked(self) -> tuple[Parcel, Sequence[str], NDArray[np.int64]] | None:
        outgoing = self.member.start()
        try:
            for step in range(1, STEPS + 1):
                await self._up(step, _encoded(outgoing))
                if step == STEPS:
                    await self.at.reach("before-answer")
                answer = await self._down(step)
                message = None if answer is None else _message(answer)
                if answer is None or isinstance(message, GivenUp):
                    self._say("was given up", getattr(message, "reason", "the summing site did not answer"))
                    return None
                outgoing = [] if message is None else self.member.receive(answer.sender, message)
                if isinstance(message, SumResult):
                    opened = read_result(self.agreement, message)
                    return answer, opened.survivors, opened.steps
            return None
        finally:
            self.member.close()

    def _is_on(self, answer: Parcel) -> bool:
        """Whether there will be a sum of vectors from this site's state."""
        text = json.loads(_content(answer) or b"{}")
        if text.get("given_up"):
            self._say("was given up", str(text["given_up"]))
            return False
        return bool(text.get("since") == self.since)

    # -- the summing site ----------------------------------------------------------------------------------

    async def lead(self) -> OpenedSum | None:
        at = self.at
        arrived = {p.sender: p for p in await self._collect(0, self.others)}
        summands = [Summand(at.me, None, self.numbers)]
        summands += [Summand(name, None, parcel.scalars) for name, parcel in arrived.items()]
        state = common_state(summands)
        there = sorted(s.site for s in summands if s.since == state and s.site in self.agreement.names)
        counted = {s.site: s for s in summands if s.scalars.keys() >= set(self.scalars)}
        at.missing.update(s.site for s in summands if s.since != state and s.site != at.me)
        reason = self._too_few(there, counted)
        text = json.dumps({"since": state, "given_up": reason}).encode()
        for name in arrived:
            await self._answer(0, name, text)
        if reason:
            self._say("was given up", reason)
            return None
        followers = [name for name in there if name != at.me]
        joins = at.me in there
        found = await (
            self._lead_plain(followers, joins) if self.masks.plain else self._lead_masked(followers, joins)
        )
        if found is None:
            return None
        survivors, steps, custody, last, message = found
        chosen = [counted[name] for name in survivors if name in counted]
        held = strictest([custody, *(s.scalars[SINCE].custody for s in summands if SINCE in s.scalars)])
        sums = {name: total(s.scalars[name] for s in chosen) for name in self.scalars}
        version = version_after(state, at.round, survivors)
        opened = OpenedSum(self.share.opened(steps, held), sums, state, version)
        for name in followers:
            await self._answer(last, name, message, sum_scalars(opened), held)
        if state != self.since or not self._plausible(steps, survivors):
            return None
        return opened

    def _too_few(self, there: Sequence[str], counted: Mapping[str, Summand]) -> str:
        """Why there will be no sum; empty if there will be. Nothing was charged so far."""
        needed = self.agreement.terms.quorum
        if len(there) < needed:
            return f"{len(there)} of {self.agreement.n} members are there, and the noise needs {needed}"
        if not any(name in counted for name in there):
            return "no site has anything left of its budget"
        return ""

    async def _lead_plain(
        self, followers: Sequence[str], joins: bool
    ) -> tuple[tuple[str, ...], NDArray[np.int64], Custody, int, bytes] | None:
        bits, size = self.agreement.terms.bits, self.agreement.terms.size
        vectors = {self.at.me: self._plain_vector()} if joins else {}
        held = [self.opens_as]
        for parcel in await self._collect(1, followers):
            assert parcel.model is not None
            vectors[parcel.sender] = _content(parcel)
            held.append(parcel.model.custody)
        survivors = tuple(sorted(vectors))
        if len(survivors) < self.agreement.terms.quorum:
            reason = f"only {len(survivors)} of {self.agreement.n} members sent a vector"
            self._say("was given up", reason)
            for name in followers:
                await self._answer(1, name, b"")
            return None
        ring = np.zeros(size, dtype=np.uint64)
        for name in survivors:
            ring += masking.unpacked(vectors[name], size, bits)
        await self.at.reach("before-answer")
        message = _joined_plain(survivors, masking.packed(ring, bits))
        return survivors, masking.from_ring(ring, bits), strictest(held), 1, message

    async def _lead_masked(
        self, followers: Sequence[str], joins: bool
    ) -> tuple[tuple[str, ...], NDArray[np.int64], Custody, int, bytes] | None:
        at = self.at
        summing = SummingSite(self.agreement, self.attempt, at.me, self.masks.key(at.me))
        own = self.member.start() if joins else []
        held = [self.opens_as]
        try:
            for step in range(1, STEPS + 1):
                outgoing: list[tuple[str, Message]] = []
                for message in own:
                    outgoing += summing.receive(at.me, message)
                for parcel in await self._collect(step, followers):
                    assert parcel.model is not None
                    held.append(parcel.model.custody)
                    try:
                        arrived = _message(parcel)
                        outgoing += [] if arrived is None else summing.receive(parcel.sender, arrived)
                    except (BadParcel, PeerError) as error:
                        self._say(f'has a message of "{parcel.sender}" that was refused', str(error))
                if not outgoing and not summing.done:
                    outgoing = summing.advance()
                if step == STEPS:
                    await at.reach("before-answer")
                if summing.result is not None:
                    opened = read_result(self.agreement, summing.result)
                    message_bytes = encode(summing.result)
                    return opened.survivors, opened.steps, strictest(held), step, message_bytes
                for name in followers:
                    sent = [message for to, message in outgoing if to == name]
                    await self._answer(step, name, _encoded(sent[-1:]))
                if summing.done:
                    self._say("was given up", str(summing.given_up))
                    return None
                to_me = [message for to, message in outgoing if to == at.me and joins]
                own = [reply for message in to_me for reply in self.member.receive(at.me, message)]
            return None
        finally:
            if joins:
                self.member.close()

    # -- what is opened ------------------------------------------------------------------------------------

    def _opened(self, parcel: Parcel, survivors: Sequence[str], steps: NDArray[np.int64]) -> OpenedSum | None:
        numbers = answered_numbers(parcel, tuple(self.scalars))
        if numbers is None or not self._plausible(steps, survivors):
            return None
        assert parcel.model is not None
        sums, since, version, held = numbers
        custody = strictest([held, parcel.model.custody, self.opens_as])
        return OpenedSum(self.share.opened(steps, custody), sums, since, version)

    def _plausible(self, steps: NDArray[np.int64], survivors: Sequence[str]) -> bool:
        """Whether honest sites can add up to this; which site is to blame cannot be seen, so the whole round is discarded."""
        length = float(np.linalg.norm(steps.astype(np.float64))) * self.agreement.terms.grid
        most = longest_sum(self.agreement, survivors, self.share.weights)
        if length <= most:
            return True
        text = f"is discarded: it has the length {length:.3g}, and honest sites add up to {most:.3g} at most"
        self._say(text)
        return False

    def _say(self, what: str, reason: str = "") -> None:
        text = f"the masked sum of round {self.at.round + 1} {what}" + (f": {reason}" if reason else "")
        self.at.journal.add(Event("notice", self.at.me, self.at.round, data={"text": text, "masked": True}))

    # -- messages ------------------------------------------------------------------------------------------

    async def _up(self, step: int, content: bytes, numbers: Mapping[str, Scalar] | None = None) -> None:
        assert self.summing is not None
        await self.at.send_message(
            self.summing, MASKED + 2 * step, as_message(content, self.opens_as), numbers or {}
        )

    async def _answer(
        self,
        step: int,
        to: str,
        content: bytes,
        numbers: Mapping[str, Scalar] | None = None,
        custody: Custody = Custody.PUBLIC,
    ) -> None:
        await self.at.send_message(to, MASKED + 2 * step + 1, as_message(content, custody), numbers or {})

    async def _down(self, step: int) -> Parcel | None:
        assert self.summing is not None
        found = await self.at.take_messages(MASKED + 2 * step + 1, [self.summing])
        return found[0] if found else None

    async def _collect(self, step: int, senders: Sequence[str]) -> list[Parcel]:
        found = await self.at.take_messages(MASKED + 2 * step, senders)
        return [parcel for parcel in found if parcel.model is not None]


def longest_sum(
    agreement: Agreement, survivors: Sequence[str], weights: Mapping[str, float] | None = None
) -> float:
    """The largest length of an opened sum of honest sites: their clipped sums with their weights, rounding, and noise."""
    terms, weights = agreement.terms, weights or {}
    records = sum(weights.get(name, 1.0) * agreement.member(name).declared for name in survivors)
    clipped = terms.clip * math.sqrt(terms.vectors) * records
    noise = terms.noise_std * math.sqrt(len(survivors) / terms.honest) * (math.sqrt(terms.size) + FAR)
    return clipped + noise * 1.001 + terms.grid * math.sqrt(terms.size) * len(survivors)


def as_message(content: bytes, custody: Custody) -> Model:
    """A message of a masked sum as what a parcel holds."""
    data = (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.zeros(0, dtype=torch.uint8)
    )
    return Model(Params({MESSAGE: data}), MESSAGE, custody)


def _content(parcel: Parcel) -> bytes:
    if parcel.model is None:
        return b""
    return bytes(parcel.model.params[MESSAGE].numpy().tobytes())


def _message(parcel: Parcel) -> Message | None:
    content = _content(parcel)
    return decode(content) if content else None


def _encoded(messages: Sequence[Message]) -> bytes:
    if len(messages) > 1:
        _one_message_only()
    return encode(messages[0]) if messages else b""


def _one_message_only() -> NoReturn:
    raise PrivacyError("a step of a masked sum has one message")


def _joined_plain(survivors: Sequence[str], vector: bytes) -> bytes:
    return json.dumps(list(survivors)).encode() + b"\n" + vector


def _split_plain(content: bytes) -> tuple[tuple[str, ...], bytes]:
    head, _, vector = content.partition(b"\n")
    return tuple(json.loads(head)), vector
