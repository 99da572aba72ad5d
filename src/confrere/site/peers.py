"""Exchange parcels with peers: the one place where a strategy meets gate, topology, mailbox and transport."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol

from confrere.core.custody import ZERO, Scalar, Share, public, strictest, total
from confrere.core.distances import Distances, OpenedMean, Table, TwoServers
from confrere.core.errors import BadParcel, CustodyError, warn_renamed
from confrere.core.events import Event, Journal
from confrere.core.model import Model
from confrere.core.parcel import Inbox, Parcel
from confrere.core.protocols import Combiner, OpenedSum, Topology, Transport
from confrere.exchange.compression import ParcelContext
from confrere.exchange.packing import Packing
from confrere.exchange.screening import WIDEST, Bounds, screen
from confrere.exchange.sums import SINCE, Summand, answered_sum, arrived, common_state, open_sum, sum_scalars
from confrere.privacy.gate import Gate
from confrere.site.faults import Faults, Point
from confrere.site.mailbox import ExpectedParcel, Mailbox, TakeRequest
from confrere.site.masked_messages import Place, check_message, is_masked
from confrere.site.masked_sums import MaskedSums, summing_site
from confrere.site.masked_turns import masked_sum
from confrere.site.schedule import Schedule, ScheduledRound
from confrere.site.shared_distances import SharedDistances, check_shared, is_shared
from confrere.site.stopping import STOPPED_ROUNDS, Stopping
from confrere.study.churn import Churn
from confrere.transport.memory import MemoryTransport

EXCHANGE, ANSWER, COMMON = 0, 1, 2
MOST_COMMON = 3
"""How many models, at most, are sent to a site that returns: phases 2, 3 and 4."""


def is_common(phase: int) -> bool:
    """Whether a parcel of this phase brings the common model to a site that was not there."""
    return COMMON <= phase < COMMON + MOST_COMMON


class OutgoingHook(Protocol):
    """Sees, and may replace, what has passed the gate of a site in a rehearsal. No node has one."""

    async def leaving(self, model: Model | None, round: int) -> Model | None: ...


@dataclass
class SitePeers:
    """What a site keeps over a whole run to exchange parcels with its peers."""

    me: str
    run: str
    sites: Sequence[str]
    topology: Topology
    churn: Churn
    gate: Gate
    transport: Transport
    journal: Journal
    patience: float | None = None
    faults: Faults = field(default_factory=Faults)
    mailbox: Mailbox = field(default_factory=Mailbox)
    sequence: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    counter: Callable[[], int] | None = None
    """How many entries the site's ledger has; it is sent with every model."""
    stopping: Stopping | None = None
    """Whether this site, and those that it knows of, have stopped training, where the study says when to."""
    counters: dict[str, int] = field(default_factory=dict)
    """The highest ledger counter seen of each peer: a peer that comes back with a lower one was rolled back."""
    caught_up: int = -1
    """The last round whose exchange this site has taken from its mailbox."""
    attended: int = -1
    """The last round that this site took part in: after a later one it does not have the common model."""
    rounds: int | None = None
    """How many rounds the study has; None if unknown."""
    shared: Schedule | None = None
    """The schedule that the sites of one process share; a site by itself keeps its own."""
    ended: dict[str, int] = field(default_factory=dict)
    """The last round that each peer has finished, where that is known: sites of one process share it."""
    masks: MaskedSums | None = None
    """How sites add up behind masks, where the study asks for that."""
    combiner: Combiner | None = None
    """How the study wants models to be combined; None leaves it to the strategy."""
    packing: Packing = field(default_factory=lambda: Packing(None, lambda _: None))
    bounds: Bounds = WIDEST
    """The largest weights and mass that parcels of this study can have."""
    outgoing: OutgoingHook | None = None
    cut: Callable[[int, int, float], None] | None = None
    """Called with epoch, round and amount where arriving mass counts for less than was claimed."""

    def __post_init__(self) -> None:
        self.schedule = self.shared or Schedule(self.churn, self.sites, self.topology)

    def reset(self) -> None:
        """Return to the start of a run. The ledger counters of peers stay known, as their ledgers stay charged."""
        self.mailbox, self.caught_up, self.attended = Mailbox(), -1, -1
        self.sequence.clear()
        self.packing.restore({})

    def round(self, number: int) -> PeersRound:
        return PeersRound(self, number)

    async def pump(self) -> None:
        """Move parcels from the transport into the mailbox until cancelled."""
        while True:
            self.receive(await self.transport.receive())

    def receive_directly(self) -> bool:
        """Let parcels from sites of the same process come straight into the mailbox; False where they must be pumped."""
        if type(self.transport) is not MemoryTransport:
            return False
        self.transport.deliver_to(self.receive)
        return True

    def receive(self, parcel: Parcel) -> None:
        """Put a parcel into the mailbox; one that cannot be used is emptied, so that the site does not wait for it."""
        try:
            if is_shared(parcel.phase) or is_masked(parcel.phase):
                (check_shared if is_shared(parcel.phase) else check_message)(parcel)
                screen(parcel, self.bounds, 0.0)
                self.mailbox.deliver(parcel)
                return
            whole = is_common(parcel.phase)
            self.packing.check(parcel, whole)
            screen(parcel, self.bounds, self.packing.largest(parcel, whole))
        except BadParcel as error:
            self.refuse(parcel, error)
        else:
            self.mailbox.deliver(parcel)

    def refuse(self, parcel: Parcel, error: BadParcel) -> None:
        """Empty a parcel, and add a notice that names its sender."""
        if self.mailbox.deliver(replace(parcel, model=None, scalars={})):
            text = f'a parcel of "{parcel.sender}" was refused and changed nothing: {error}'
            data = {"text": text, "sender": parcel.sender}
            self.journal.add(Event("notice", self.me, parcel.round, data=data))

    def remember(self, inbox: Inbox) -> None:
        """Keep the highest ledger counter that each peer has sent."""
        counters = self.counters
        for parcel in inbox.parcels:
            counter = parcel.scalars.get("ledger")
            if counter is not None and counter.value > counters.get(parcel.sender, -1):
                counters[parcel.sender] = int(counter.value)


class PeersRound:
    """`Peers` for one round."""

    def __init__(self, peers: SitePeers, number: int) -> None:
        self._peers = peers
        self.me, self.round = peers.me, number
        self._scheduled = scheduled = peers.schedule.round(number)
        self.epoch, self.members, self.centre = scheduled.epoch, scheduled.participants, scheduled.centre
        self._column = dict(peers.topology.column(number, self.members, self.me))
        self.kept = self._column.pop(self.me, 0.0)
        self.combiner, self.largest = peers.combiner, peers.bounds.weight
        self._asked: list[str] = []
        self._missing: set[str] = set()
        self._own: Model | None = None
        self._sent: Model | None = None
        self._answered: Model | None = None
        self._led = False
        self.diverged = False
        self._shared: SharedDistances | None = None
        self.gate, self.journal, self.run = peers.gate, peers.journal, peers.run

    async def exchange(self, model: Model | None, **scalars: Scalar) -> Inbox:
        peers = self._peers
        model, admitted = peers.gate.admit(model, scalars)
        admitted = self._counted(model, admitted)
        self._own = model
        eventful = bool(peers.faults.planned)
        if eventful:
            await peers.faults.reach(self.me, self.round, "before-exchange")
        if peers.outgoing is not None:
            model = await peers.outgoing.leaving(model, self.round)
        model = self._sent = self._packed(model, EXCHANGE, admitted)
        receivers = sorted([r for r, share in self._column.items() if share > 0])
        middle = (len(receivers) + 1) // 2 if eventful else len(receivers)
        await self._send_shares(receivers[:middle], model, admitted)
        if eventful:
            await peers.faults.reach(self.me, self.round, "mid-exchange")
            await self._send_shares(receivers[middle:], model, admitted)
        expected: list[ExpectedParcel] = []
        # Sites that were not drawn are sent nothing, so there is nothing to wait for from other rounds.
        first = self.round if peers.churn.participation else peers.caught_up + 1
        for number in range(first, self.round + 1):
            scheduled = self._scheduled if number == self.round else peers.schedule.round(number)
            if scheduled.epoch == self.epoch:
                expected += [(number, EXCHANGE, s) for s in scheduled.senders.get(self.me, ())]
        inbox = await self._take(self.round, EXCHANGE, expected)
        peers.caught_up = peers.attended = self.round
        self._asked = [p.sender for p in inbox.current]
        self._note_missing(inbox)
        return self._within_mass(self._opened(inbox), admitted.get("mass", ZERO))

    def _within_mass(self, inbox: Inbox, own: Scalar) -> Inbox:
        """Scale down the mass that arrived if the site would hold more than all sites have: one of them lied.

        Which one is not known, so that every parcel counts for less in the same proportion.
        """
        with_mass = [p.scalars["mass"] for p in inbox if p.model is not None and "mass" in p.scalars]
        if not with_mass:
            return inbox
        most, kept, arrived = self._peers.bounds.mass, own * self.kept, total(with_mass)
        excess = kept.value + arrived.value - most
        if not excess > 0:
            return inbox
        share = Scalar(max(0.0, most - kept.value), strictest([kept.custody, arrived.custody])) / arrived
        counts = f"each parcel counts for {share.value:.0%} of its mass"
        text = f"the mass that arrived would make more than all sites have, {most:g}; {counts}"
        self._peers.journal.add(Event("notice", self.me, self.round, data={"text": text}))
        if self._peers.cut is not None:
            self._peers.cut(self.epoch, self.round, arrived.value * (1 - share.value))
        scaled = (
            replace(p, scalars={**p.scalars, "mass": p.scalars["mass"] * share}) if "mass" in p.scalars else p
            for p in inbox
        )
        return replace(inbox, parcels=tuple(scaled))

    async def answer(self, models: Mapping[str, Model], **scalars: Scalar) -> Inbox:
        peers = self._peers
        if peers.faults.planned:
            await peers.faults.reach(self.me, self.round, "before-answer")
        if self._asked:
            await self._answer(models, scalars)
        present = self._scheduled.present
        expected = [
            (self.round, ANSWER, r) for r, share in self._column.items() if share > 0 and r in present
        ]
        inbox = await self._take(self.round, ANSWER, expected)
        self._note_missing(inbox)
        return self._opened(inbox)

    async def _answer(self, models: Mapping[str, Model], scalars: Mapping[str, Scalar]) -> None:
        """Answer the sites that sent something; a site without a model in `models` gets an empty answer."""
        known: dict[int, tuple[Model | None, Mapping[str, Scalar]]] = {}
        chosen = {sender: models.get(sender) for sender in self._asked}
        many = len({id(model) for model in chosen.values() if model is not None}) > 1
        for which, senders in groupby(self._asked, lambda sender: id(chosen[sender])):
            asked = list(senders)
            if which not in known:  # one model for many is looked at once
                model = chosen[asked[0]]
                admitted, numbers = self._peers.gate.admit(model, {} if model is None else scalars)
                numbers = self._counted(admitted, numbers)
                admitted = self._packed(
                    await self._as_sent(admitted), ANSWER, numbers, asked[0] if many else ""
                )
                known[which] = (admitted, numbers)
                self._answered = admitted
            await self._send(asked, ANSWER, *known[which])

    async def sum(self, vector: Model | Share | None, *, since: int, **scalars: Scalar) -> OpenedSum | None:
        masks = self._peers.masks
        if masks is not None:
            if not isinstance(vector, Share):
                raise CustodyError(
                    "a study with masked sums adds up shares; only site.gradient_sum makes them"
                )
            outcome = await masked_sum(self, masks, vector, since, scalars)
            self._led, self.diverged = outcome.led, outcome.diverged
            self._peers.caught_up = self._peers.attended = self.round
            if outcome.behind:
                self.fall_behind()
            return outcome.opened
        if isinstance(vector, Share):
            raise CustodyError("a share of a masked sum cannot be sent: this study has no masked sums")
        names, state = tuple(scalars), {SINCE: public(since)}
        mine = {**scalars, **state} if vector is not None else state
        inbox = await self.exchange(vector, **mine)
        if self.centre in (None, self.me):
            own = Summand(self.me, self._as_received(self._sent, EXCHANGE), mine)
            opened = await self._open_sum([own, *arrived(inbox.current)], names)
        else:
            answers = (await self.answer({})).current
            opened = next((answered_sum(p, names) for p in answers if p.sender == self.centre), None)
        if opened is not None and opened.since != since:
            self._peers.attended = self.round - 1  # what the others have in common is still to come
            return None
        return opened

    async def _open_sum(self, summands: Sequence[Summand], names: Sequence[str]) -> OpenedSum | None:
        """The sum, at a site that adds up itself; a centre sends it to all others."""
        opened = open_sum(summands, names, self.round)
        state = common_state(summands)
        self._missing.update(s.site for s in summands if s.since != state and s.site != self.me)
        if self.centre is None:
            return opened
        if opened is None:
            await self.answer({})
            return None
        await self.answer({s.site: opened.vector for s in summands}, **sum_scalars(opened))
        as_sent = self._as_received(self._answered, ANSWER) or opened.vector
        return replace(opened, vector=as_sent)

    async def distances(
        self, vector: Model | None, roles: TwoServers, table: Table, **scalars: Scalar
    ) -> Distances | None:
        await self.reach("before-answer")
        admitted, numbers = self.gate.admit(vector, scalars)
        self._shared = SharedDistances(self, roles, await self._as_sent(admitted))
        return await self._shared.distances(numbers, table)

    async def open_mean(self, weights: Mapping[str, Scalar], table: Table) -> OpenedMean | None:
        assert self._shared is not None, "peers.distances comes first"
        return await self._shared.open_mean(weights, table)

    async def send_shared(
        self, to: str, phase: int, message: Model | None, scalars: Mapping[str, Scalar]
    ) -> None:
        """Send a message between servers. What it is made of has passed the gate, and so do its numbers."""
        numbers = self._counted(message, self.gate.admit(None, scalars)[1])
        await self._send([to], phase, message, numbers)

    async def take_shared(self, phase: int, senders: Sequence[str]) -> list[Parcel]:
        """What these sites sent in a phase between servers, in the order of their names."""
        inbox = await self._take(self.round, phase, [(self.round, phase, name) for name in senders])
        self._note_missing(inbox)
        return [p for p in inbox.current if p.sender in senders and p.model is not None]

    async def send_common(self, *models: Model, **scalars: Scalar) -> None:
        peers = self._peers
        if self.me != self._sender_of_common(self._scheduled, self.round, self._missing):
            return
        if peers.rounds is not None and self.round + 1 >= peers.rounds:
            return
        staying = peers.schedule.round(self.round + 1).members
        away = sorted((self._scheduled.returning | self._missing).intersection(staying) - {self.me})
        for number, model in enumerate(models if away else ()):
            admitted, sent = peers.gate.admit(model, scalars)
            sent = self._counted(admitted, sent)
            admitted = self._packed(await self._as_sent(admitted), COMMON + number, sent)
            await self._send(away, COMMON + number, admitted, sent)

    async def latest_common(self, models: int = 1) -> tuple[Parcel, ...]:
        peers, before = self._peers, self.round - 1
        if before < 0 or peers.attended >= before:
            return ()
        scheduled = peers.schedule.round(before)
        sender = self._sender_of_common(scheduled, before, {self.me})
        phases = range(COMMON, COMMON + models)
        expected = [(before, phase, sender) for phase in phases if sender not in (None, self.me)]
        inbox = await self._take(before, phases[-1], expected)
        peers.caught_up = max(peers.caught_up, before)  # averages pass over what came of earlier rounds
        self._note_missing(inbox)
        found = {p.phase: p for p in self._opened(inbox).parcels if p.round == before and p.model is not None}
        complete = all(phase in found for phase in phases)
        return tuple(found[phase] for phase in phases) if complete else ()

    def _sender_of_common(
        self, scheduled: ScheduledRound, round: int, missing: Collection[str]
    ) -> str | None:
        """Which site sends the common model to those that missed a round."""
        masks = self._peers.masks
        if masks is not None:  # only the summing site knows who was left out
            return self.me if self._led and round == self.round else summing_site(scheduled, round)
        return scheduled.sender_of_common(missing)

    # -- for masked sums --------------------------------------------------------------------------------

    @property
    def scheduled(self) -> ScheduledRound:
        return self._scheduled

    @property
    def missing(self) -> set[str]:
        """The sites that do not have what the others have in common after this round."""
        return self._missing

    async def reach(self, point: Point) -> None:
        if self._peers.faults.planned:
            await self._peers.faults.reach(self.me, self.round, point)

    async def send_message(
        self, to: str, place: Place, message: Model, scalars: Mapping[str, Scalar]
    ) -> None:
        """Send a message of a masked sum. Its numbers pass the gate; the message was made behind it, from a share."""
        _, numbers = self.gate.admit(None, scalars)
        await self._send([to], place.phase, message, self._counted(message, numbers))

    async def take_messages(self, place: Place, senders: Sequence[str]) -> list[Parcel]:
        """What these sites sent in a phase of a masked sum, in the order of their names."""
        masks, phase = self._peers.masks, place.phase
        if masks is None or masks.channel is None:
            inbox = await self._take(self.round, phase, [(self.round, phase, name) for name in senders])
        else:
            found = await masks.channel.take(self.round, self.epoch, place, senders)
            missing = sorted(set(senders) - {p.sender for p in found})
            inbox = Inbox(tuple(found), tuple(missing), self.round, phase)
        self._note_missing(inbox)
        self._peers.caught_up = self._peers.attended = self.round
        return [p for p in inbox.current if p.sender in senders and p.model is not None]

    def fall_behind(self) -> None:
        """This site does not have what the others may have in common after this round."""
        self._peers.attended = self.round - 1

    async def tell_newcomers(self, model: Model) -> None:
        """The name of `send_common` before 0.2."""
        warn_renamed("peers.tell_newcomers", "peers.send_common")
        await self.send_common(model)

    async def news(self) -> Model | None:
        """The model of `latest_common`, under its name before 0.2."""
        warn_renamed("peers.news", "peers.latest_common")
        return next((parcel.model for parcel in await self.latest_common()), None)

    async def _as_sent(self, model: Model | None) -> Model | None:
        outgoing = self._peers.outgoing
        return model if outgoing is None else await outgoing.leaving(model, self.round)

    def _packed(
        self, model: Model | None, phase: int, scalars: Mapping[str, Scalar], to: str = ""
    ) -> Model | None:
        """The compressed model; what compression leaves out is kept for later parcels."""
        packing = self._peers.packing
        if model is None or packing.compression is None:
            return model
        leaving = None
        if "mass" in scalars:
            leaving = scalars["mass"] * sum(share for share in self._column.values() if share > 0)
        moment = ParcelContext(self._peers.run, self.round, phase, self.me)
        return packing.pack(model, moment, epoch=self.epoch, leaving=leaving, to=to, whole=is_common(phase))

    def _as_received(self, sent: Model | None, phase: int) -> Model | None:
        """A model that this site has sent, as its receivers read it after compression."""
        parcel = Parcel(self._peers.run, self.epoch, self.round, phase, self.me, self.me, 0, sent)
        return self._peers.packing.unpack(parcel, self._own).model

    def _opened(self, inbox: Inbox) -> Inbox:
        """What arrived, as models that a strategy can use."""
        packing = self._peers.packing
        if packing.compression is None:
            return inbox
        opened = tuple(packing.unpack(p, self._own, is_common(p.phase)) for p in inbox.parcels)
        return replace(inbox, parcels=opened)

    def _counted(self, model: Model | None, scalars: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Add the ledger's counter to the numbers of a model, so that peers notice a rollback."""
        counter = self._peers.counter
        if model is None or counter is None:
            return scalars
        return {**scalars, "ledger": public(counter())}

    async def _send_shares(
        self, receivers: Sequence[str], model: Model | None, scalars: Mapping[str, Scalar]
    ) -> None:
        """Send along the edges; mass is divided by what each edge carries."""
        if "mass" not in scalars:
            await self._send(receivers, EXCHANGE, model, scalars)
            return
        for receiver in receivers:
            shared = {**scalars, "mass": scalars["mass"] * self._column[receiver]}
            await self._send([receiver], EXCHANGE, model, shared)

    async def _send(
        self, receivers: Sequence[str], phase: int, model: Model | None, scalars: Mapping[str, Scalar]
    ) -> None:
        """Send the same to several sites; it has passed the gate."""
        peers = self._peers
        epoch = self.epoch
        if is_common(phase):  # it is for the next round
            epoch = peers.schedule.round(self.round + 1).epoch
        custody = strictest(
            [*([] if model is None else [model.custody]), *(s.custody for s in scalars.values())]
        )
        facts = {"phase": phase, "custody": custody.name, "model": model is not None}
        if "mass" in scalars:
            facts["mass"] = scalars["mass"].value
        if peers.stopping is not None:
            scalars = {**scalars, **peers.gate.admit(None, {STOPPED_ROUNDS: peers.stopping.count()})[1]}
        channel = peers.masks.channel if peers.masks is not None and is_masked(phase) else None
        for to in receivers:
            if channel is None:
                peers.sequence[to] = number = peers.sequence.get(to, 0) + 1
            else:
                number = phase  # it is not kept, and a replayed round does not send it again
            parcel = Parcel(peers.run, epoch, self.round, phase, self.me, to, number, model, scalars)
            size = await (channel or peers.transport).send(to, parcel)
            peers.journal.add(Event("sent", self.me, self.round, data={"to": to, "bytes": size, **facts}))

    async def _take(self, round: int, phase: int, expected: Sequence[ExpectedParcel]) -> Inbox:
        peers = self._peers
        return await peers.mailbox.take(
            TakeRequest(round, phase, self.epoch, expected, peers.patience, peers.ended)
        )

    def _note_missing(self, inbox: Inbox) -> None:
        self._peers.remember(inbox)
        if self._peers.stopping is not None and not is_common(inbox.phase):
            there = self._scheduled.present >= set(self._scheduled.participants)
            self._peers.stopping.receive(inbox, there)
        if inbox.missing:
            if inbox.round == self.round:
                self._missing.update(inbox.missing)
            data = {"senders": list(inbox.missing), "phase": inbox.phase}
            self._peers.journal.add(Event("missing", self.me, self.round, data=data))
