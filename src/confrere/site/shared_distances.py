"""Distances by way of two servers, between sites: which messages pass, and what each site learns of them.

Every site divides its vector between the servers, and the dealer adds their masks (`exchange.secure.two_servers`). Then the
servers send each other, in phases of their own, masked differences and their summands of the distances. Both decide on
weights, by the same rule and from the same numbers, and send their summands of the weighted mean to the user.

A server keeps its own vector whole and counts the other server's part of it as zero: that tells the other nothing. A site that
has no vector, or a server that lacks something, sends an empty parcel, so that none waits for it; without the user's vector,
the masks or one of the servers nothing is opened in this round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import torch

from confrere.core.custody import Custody, Scalar, strictest
from confrere.core.distances import Distances, OpenedMean, Table, TwoServers
from confrere.core.errors import BadParcel, StudyError
from confrere.core.events import Event, Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.secure.masking import Ring, unpacked
from confrere.exchange.secure.messages import Message, decode, encode
from confrere.exchange.secure.two_servers import (
    BITS,
    KINDS,
    DistanceHalves,
    DistanceServer,
    MaskedDifferences,
    Masks,
    MeanHalf,
    SharedPart,
    context_of,
    deal,
    divide_vector,
    mean_of_halves,
    packed_number,
    part_of_seed,
    squared_distance,
    to_fixed_point,
)
from confrere.privacy.gate import Gate
from confrere.site.mailbox import SHARED
from confrere.site.schedule import ScheduledRound

PARTS, DIFFERENCES, HALVES, MEAN = range(SHARED, SHARED + 4)
"""The phases of a round."""

MESSAGE = "message between servers"
"""The architecture, and the only tensor, of what a parcel of these phases holds."""

M = TypeVar("M", bound=Message)


class MessageRound(Protocol):
    """What distances by way of two servers need of a site's round."""

    me: str
    round: int
    run: str
    epoch: int
    members: tuple[str, ...]
    gate: Gate
    journal: Journal

    @property
    def scheduled(self) -> ScheduledRound: ...
    async def send_shared(
        self, to: str, phase: int, message: Model | None, scalars: Mapping[str, Scalar]
    ) -> None: ...
    async def take_shared(self, phase: int, senders: Sequence[str]) -> list[Parcel]: ...


def is_shared(phase: int) -> bool:
    """Whether a parcel of this phase holds a message of distances by way of two servers."""
    return PARTS <= phase <= MEAN


def check_shared(parcel: Parcel) -> None:
    """Refuse a parcel of such a phase that holds anything but one message."""
    model = parcel.model
    if model is None:
        return
    if model.architecture != MESSAGE or [(n, t.dtype) for n, t in model.params.items()] != [
        (MESSAGE, torch.uint8)
    ]:
        raise BadParcel("it holds something else than a message between servers")


class SharedDistances:
    """One call of `peers.distances` and one of `peers.open_mean` at one site."""

    def __init__(self, at: MessageRound, roles: TwoServers, vector: Model | None) -> None:
        self.at, self.roles, self.vector = at, roles, vector
        self.size = 0 if vector is None else vector.params.count
        self.held = Custody.PUBLIC if vector is None else vector.custody
        sites = sorted(at.members)
        self.context = context_of(at.run, at.epoch, at.round, roles.names, sites, self.size)
        self.server: DistanceServer | None = None
        longest, most = 8 * self.size * len(sites), at.gate.limits.bytes
        if longest > most:
            raise StudyError(
                f"the servers would send {longest:,} bytes at once ({len(sites)} sites, {self.size:,} numbers each), and this"
                f' site lets {most:,} leave; choose a smaller proxy, or distances = "plain"'
            )

    # -- before weights are known ----------------------------------------------------------------------------

    async def distances(self, numbers: Mapping[str, Scalar], table: Table) -> Distances | None:
        """What a server learns; None at all other sites, and where something is missing."""
        vector: Ring | None = None
        if self.vector is not None:
            vector = to_fixed_point(self.vector.params.flatten().detach().double().cpu().numpy())
        await self._share_out(vector, numbers)
        if self.at.me not in self.roles.servers:
            return None
        arrived = await self._messages(PARTS, sorted(set(self.at.members) - {self.at.me}), SharedPart)
        message = b""
        try:
            self.server = self._served(vector, {name: part for name, (_, part) in arrived.items()})
            if self.server is not None:
                vectors = self.server.masked_differences()
                message = encode(MaskedDifferences(self.context, vectors, _written(table)))
        except BadParcel as error:
            self._notify(str(error))
        self.held = strictest([self.held, *(parcel.custody for parcel, _ in arrived.values())])
        await self._send(self._other, DIFFERENCES, message)
        found = await self._compared()
        if found is None:
            self.server = None
            return None
        squared, others_table = found
        sent = {name: parcel.scalars for name, (parcel, _) in arrived.items()} | {self.at.me: numbers}
        return Distances(squared, {n: sent[n] for n in (*squared, self.roles.user)}, others_table, self.held)

    async def _share_out(self, vector: Ring | None, numbers: Mapping[str, Scalar]) -> None:
        """Send each server its part of the vector, and the numbers that go with it; a server sends the other one numbers."""
        if vector is None:
            for server in self.roles.servers:
                if server != self.at.me:
                    await self._send(server, PARTS, b"")
            return
        parts = divide_vector(vector, self.context, self.at.me)
        masks: Sequence[Masks | None] = (None, None)
        if self.at.me == self.roles.dealer:
            masks = deal(self.context, sorted(set(self.at.members) - {self.roles.user}), self.size)
        for server, part, dealt in zip(self.roles.servers, parts, masks, strict=True):
            message = SharedPart(self.context, b"" if self.at.me in self.roles.servers else part)
            if dealt is not None:
                message = replace(message, mask_seed=dealt.seed, mask_numbers=dict(dealt.numbers))
            if server != self.at.me:
                await self._send(server, PARTS, encode(message), numbers)

    def _served(self, own: Ring | None, arrived: Mapping[str, SharedPart]) -> DistanceServer | None:
        """This server with its part of every vector; None if the user has not asked for anything."""
        roles, first = self.roles, self.at.me == self.roles.servers[0]
        if own is None:
            return None
        for needed, name in (("vector", roles.user), ("masks", roles.dealer)):
            if name not in arrived:
                raise BadParcel(f'the {needed} of "{name}" did not arrive')
        parts = {self.at.me: own}
        for name, message in arrived.items():
            if name == self._other:
                parts[name] = np.zeros(self.size, dtype=np.uint64)
            elif first:
                parts[name] = part_of_seed(message.part, self.context, name, self.size)
            else:
                parts[name] = unpacked(message.part, self.size, BITS)
        dealt = arrived[roles.dealer]
        masks = Masks(dealt.mask_seed, self.context, {} if first else dealt.mask_numbers)
        if not first and not masks.numbers.keys() >= parts.keys() - {roles.user}:
            raise BadParcel(f'masks of "{roles.dealer}" are missing')
        return DistanceServer(first, roles.user, self.size, parts, masks)

    async def _compared(self) -> tuple[dict[str, Scalar], Table] | None:
        """The squared distances, and the other server's table."""
        received = await self._messages(DIFFERENCES, [self._other], MaskedDifferences)
        halves: dict[str, int] = {}
        others_table: Table = {}
        if self.server is not None and received:
            parcel, message = received[self._other]
            self.held = strictest([self.held, parcel.custody])
            try:
                others_table = _read_table(message.table, self.at.scheduled.members)
                halves = self.server.halves(message.vectors)
            except BadParcel as error:
                self._notify(str(error))
        packed_halves = {name: packed_number(half) for name, half in halves.items()}
        content = encode(DistanceHalves(self.context, packed_halves)) if halves else b""
        await self._send(self._other, HALVES, content)
        answered = await self._messages(HALVES, [self._other], DistanceHalves)
        if not halves or not answered:
            return None
        parcel, summands = answered[self._other]
        if summands.halves.keys() != halves.keys():
            return None
        self.held = strictest([self.held, parcel.custody])
        squared = {}
        for name, half in halves.items():
            try:
                other = int(unpacked(summands.halves[name], 1, BITS)[0])
                squared[name] = Scalar(squared_distance(half, other), self.held)
            except BadParcel as error:
                self._notify(f'"{name}" is left out: {error}')
        return squared, others_table

    # -- once they are -----------------------------------------------------------------------------------------

    async def open_mean(self, weights: Mapping[str, Scalar], table: Table) -> OpenedMean | None:
        """Send a summand of the mean to the user, who is given the sum of both."""
        if self.at.me == self.roles.user:
            return await self._opened()
        if self.at.me in self.roles.servers:
            content = b""
            if self.server is not None:
                self.held = strictest([self.held, *(w.custody for w in weights.values())])
                plain = {name: float(w.value) for name, w in weights.items()}
                half = self.server.weighted(plain) if plain else b""
                content = encode(MeanHalf(self.context, half, _written(table)))
            await self._send(self.roles.user, MEAN, content)
        return None

    async def _opened(self) -> OpenedMean | None:
        arrived = await self._messages(MEAN, self.roles.servers, MeanHalf)
        if self.vector is None:
            return None
        if len(arrived) < len(self.roles.servers):
            self._notify("a server sent nothing, so that no mean was opened")
            return None
        (first, one), (second, other) = (arrived[name] for name in self.roles.servers)
        held = strictest([self.held, first.custody, second.custody])
        try:
            if one.table != other.table or len(one.vector) != len(other.vector):
                raise BadParcel("the two servers do not agree on the weights")
            table = _read_table(one.table, self.at.scheduled.members)
            if not one.vector:
                return OpenedMean(None, table, held)
            halves = (unpacked(half.vector, self.size, BITS) for half in (one, other))
            mean = torch.from_numpy(mean_of_halves(*halves))
        except BadParcel as error:
            self._notify(f"the mean is discarded: {error}")
            return None
        return OpenedMean(
            Model(self.vector.params.unflatten(mean), self.vector.architecture, held), table, held
        )

    # -- messages ----------------------------------------------------------------------------------------------

    @property
    def _other(self) -> str:
        """The other server, at a server."""
        first, second = self.roles.servers
        return second if self.at.me == first else first

    async def _send(
        self, to: str, phase: int, content: bytes, numbers: Mapping[str, Scalar] | None = None
    ) -> None:
        if not content:
            await self.at.send_shared(to, phase, None, {})
            return
        self.at.gate.admit_derived("message", self.held)
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        await self.at.send_shared(
            to, phase, Model(Params({MESSAGE: data}), MESSAGE, self.held), numbers or {}
        )

    async def _messages(
        self, phase: int, senders: Sequence[str], kind: type[M]
    ) -> dict[str, tuple[_Arrived, M]]:
        """What these sites sent, without what is empty, cannot be read or belongs elsewhere."""
        found = {}
        present = [name for name in senders if name in self.at.scheduled.present]
        for parcel in await self.at.take_shared(phase, present):
            assert parcel.model is not None
            try:
                message = decode(parcel.model.params[MESSAGE].numpy().tobytes(), KINDS)
            except BadParcel as error:
                self._notify(f'a message of "{parcel.sender}" was refused: {error}')
                continue
            if isinstance(message, kind) and message.context == self.context:
                found[parcel.sender] = (_Arrived(parcel), message)
        return found

    def _notify(self, text: str) -> None:
        data = {"text": f"distances of round {self.at.round + 1}: {text}", "servers": True}
        self.at.journal.add(Event("notice", self.at.me, self.at.round, data=data))


class _Arrived:
    """The custody and the numbers of a parcel with a message."""

    def __init__(self, parcel: Parcel) -> None:
        self.custody, self.scalars = strictest(parcel.custodies), parcel.scalars


def _written(table: Table) -> str:
    return json.dumps(table, sort_keys=True)


def _read_table(text: str, members: Sequence[str]) -> Table:
    """Rows of numbers by member; names of others are left out, and anything else is refused."""
    try:
        table = {name: tuple(map(float, row)) for name, row in json.loads(text).items() if name in members}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise BadParcel("a server's table cannot be read") from None
    if not all(math.isfinite(number) for row in table.values() for number in row):
        raise BadParcel("a server's table has something else than numbers in it")
    return dict(sorted(table.items()))
