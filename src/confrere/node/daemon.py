"""A site at work in the field: its rounds, its peers, its owner's word. It may be killed at any instant.

How its rounds relate to those of others: every site counts for itself. It does round n with whatever its peers sent
in round n or before, waits for those that are expected at most for the study's `patience`, and goes on without them;
who was missing is in the journal. A site that is more rounds behind than there are members was away: it goes on in the
round where most of its peers are. The rounds in between are neither trained nor paid for, and parcels of those
rounds count as late ones: push-sum credits them, averages pass over them. A site that hears of nobody begins no
round. When all rounds are over it stays, to deliver what it owes and to take in what others still send.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError, ConfrereError, PrivacyError
from confrere.core.events import Event
from confrere.core.protocols import Finishes, Strategy
from confrere.node import result, roster
from confrere.node.beginning import Beginning
from confrere.node.couriers import Courier
from confrere.node.database import DiskFull
from confrere.node.diary import CapReached, Desk, Diary, Mailroom, RememberedSite, aside, durably
from confrere.node.introductions import Introductions
from confrere.node.journal import Log, NodeJournal
from confrere.node.membership import churn_of, exchanges, farewells, front
from confrere.node.setting import Setting
from confrere.node.store import Store
from confrere.node.telling import tell_start
from confrere.node.workplace import (
    Links,
    ledger_of,
    only_one,
    reception_of,
    refuse_older_than_ledger,
    refuse_other_records,
    site_of,
)
from confrere.privacy.gate import Gate
from confrere.runtime import checkpoint
from confrere.runtime.assemble import consents
from confrere.runtime.churn import Churn
from confrere.runtime.combining import exchange_rules
from confrere.runtime.office import Office
from confrere.runtime.simulate import predictors
from confrere.runtime.stopping import Clock, all_rest, look_at_rest, stop_text
from confrere.transport.grpc import Connections

GLANCE, SELDOM = 0.1, 1.0
"""Seconds between looks at whether a round may begin, and at what changes slowly."""


class Node:
    """One site over a whole run, however often its process is ended and started."""

    state: Any
    """The strategy's, after `done` rounds."""
    done: int
    leaving: dict[str, int]
    mailroom: Mailroom
    office: Office

    def __init__(
        self,
        setting: Setting,
        *,
        connect: Callable[..., Links] = Connections,
        listeners: tuple[Callable[[Event], None], ...] = (),
    ) -> None:
        self.setting, self.study, self.me = setting, setting.study, setting.me
        self.everybody, self.others = sorted(setting.members), sorted(setting.peers)
        self._lock = only_one(setting)
        try:
            self._set_up(connect, listeners)
        except BaseException:
            self._lock.close()
            raise

    def _set_up(self, connect: Callable[..., Links], listeners: tuple[Callable[[Event], None], ...]) -> None:
        setting = self.setting
        self.strategy: Strategy = self.study.rule()
        self.log = Log(setting.home / "log.jsonl")
        self.journal = NodeJournal(setting.home / "journal.jsonl", listeners=(self.log, *listeners))
        self.store = Store(setting.home / "node.sqlite", run=setting.run, site=self.me)
        self.store.sweep()
        self.ledger = ledger_of(setting)
        self.site = site_of(setting, self.strategy, self.journal, self.ledger)
        self.accepts = consents(self.study, self.site)
        refuse_older_than_ledger(setting, self.store, self.ledger)
        refuse_other_records(setting, self.store)
        self.began, self.doing, self.reason = time.time(), "starting", ""
        self.paused = self.store.facts().get("paused") == "yes"
        self.interrupted = asyncio.Event()
        self.quality: dict[str, Any] = {}
        self.desk = Desk(self.store, setting.identity.key, self._allow, self.room)
        self.desk.posted = self._wake
        self.introductions = Introductions(setting, self.store, self.ledger)
        self.reception = reception_of(
            setting, self.site, self.store, self.journal.add,
            epoch=lambda: self.churn.epoch(self.done), accept_unproven=self.accepts,
        )  # fmt: skip
        self.couriers = {p: Courier(self.me, p, self.store, self.journal.add) for p in self.others}
        self._restore()
        self.links = connect(
            setting.identity, setting.peers, greet=self.introductions.greet, deliver=self.reception.deliver,
            notice=self.journal.add, met=self.introductions.met, listen=setting.listen,
            largest=self.reception.limits.total, patience=self.study.patience, folder=self.store.shelf.folder,
        )  # fmt: skip
        self._beginning = Beginning(setting, lambda: self.links.connected)

    # -- the whole life ---------------------------------------------------------------------------

    async def run(self, until_done: bool = False) -> None:
        """Take part until the owner says otherwise; `until_done` ends when nothing is left to do or owed."""
        tell_start(self)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.links.start()
            tasks = [asyncio.create_task(c.run(self.links)) for c in self.couriers.values()]
            tasks.append(asyncio.create_task(self._watch_peers()))
            tasks.append(asyncio.create_task(self._life(until_done)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.links.stop()
            self.close()

    def close(self) -> None:
        with suppress(ConfrereError, OSError):
            self.journal.close()
        self.log.close()
        self.store.close()
        self.ledger.close()
        self._lock.close()

    async def _life(self, until_done: bool) -> None:
        cap, said = self.setting.caps.rounds, self.store.leaving().get(self.me)
        if said is not None:
            await self.leave(said)  # a farewell that a crash may have cut short
        elif cap is not None and cap < self.study.rounds:
            await self.leave(cap, f"its own cap is {cap} rounds")
        while self._takes_part():
            if await self._interrupted(asyncio.create_task(self._step())):
                break
        await self._finish()
        await self._settle(until_done)

    async def _interrupted(self, step: asyncio.Task[None]) -> bool:
        """See a step through; whether its owner's word came first."""
        word = asyncio.create_task(self.interrupted.wait())
        try:
            await asyncio.wait({step, word}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                step.result()
            return not step.done()
        except CapReached as reached:
            await self.leave(self.done, str(reached))
            return False
        finally:
            for task in (step, word):
                task.cancel()
            await asyncio.gather(step, word, return_exceptions=True)

    def _takes_part(self) -> bool:
        if self.done >= self.study.rounds or self.store.facts().get("left") == "yes":
            return False
        if self.done and all_rest([self.site.rest], self.churn, self.done - 1):
            return False
        return self.me in self.churn.members(self.done, self.everybody)

    async def _step(self) -> None:
        """One round, or a jump to where the others are."""
        await self._may_begin()
        try:
            if not await self._skip():
                await self._round()
        except (DiskFull, PrivacyError) as error:
            if not isinstance(error, DiskFull) and "disk is full" not in str(error):
                raise
            await self.room()  # nothing was charged and nothing was sent: the round begins anew
            self._restore()

    async def _round(self) -> None:
        number, churn = self.done, self.churn
        members, epoch = churn.members(number, self.everybody), churn.epoch(number)
        self._now("in a round")
        here = [self.me, *(p for p in members if p in self.links.connected)]
        data = {"members": list(members), "present": sorted(here), "epoch": epoch}
        self.journal.add(Event("round-started", self.me, number, data=data))
        state = self.state
        if not self.setting.rehearsal or churn.present(number, self.me):
            self.mailroom.diary = diary = Diary(number)
            self.desk.clear()
            inside = RememberedSite(self.site, self.store, diary, self.room)
            if self.site.rest is not None:
                self.site.rest.begin(time_is_up=self._time_is_up(), spent=self.site.spent)
            state = await self.strategy.round(state, inside, self.office.round(number))
            await self.desk.post()
            if self.site.rest is not None:
                hearing = self.office.calendar.hearing(number)
                look_at_rest(self.site, self.strategy, state, number, hearing)
        else:
            self.journal.add(Event("absent", self.me, number, data={"text": "could not be reached"}))
        resting = all_rest([self.site.rest], churn, number)
        if (number + 1) % self.study.evaluation.every == 0 or number + 1 == self.study.rounds or resting:
            await self._evaluate(state, number)
        if resting and number + 1 < self.study.rounds:
            text = stop_text(Clock(), self.study.stop, number + 1, resting)
            self.journal.add(Event("notice", self.me, number, data={"text": text, "stopped": number + 1}))
        await self._close(number + 1, state)
        privacy = self.study.privacy
        if self.site.spent and privacy is not None and privacy.when_spent == "leave":
            await self.leave(self.done, "its budget is spent")

    def _time_is_up(self) -> bool:
        """By this site's clock, counted from the first round that it ever began."""
        stop = self.study.stop
        if stop is None or stop.hours is None:
            return False
        began = self.store.facts().get("began")
        if began is None:
            self.store.note(began=str(time.time()))
            return False
        return time.time() - float(began) >= stop.hours * 3600

    async def _evaluate(self, state: Any, number: int, fitted: bool = False) -> None:
        async def look() -> dict[str, Any]:
            return dict(self.site.scores(predictors(self.strategy, state), fitted))

        self.quality = await aside(look())
        self.journal.add(Event("evaluated", self.me, number, Custody.PRIVATE, self.quality))

    async def _skip(self) -> bool:
        """Go on where the others are, if this site was away for long."""
        members = self.churn.members(self.done, self.everybody)
        heard = await asyncio.to_thread(self.store.heard)
        there = front(heard, [p for p in members if p != self.me])
        if there <= self.done + len(members):
            return False
        text = f"was away: goes on in round {there + 1}, rounds {self.done + 1} to {there} are missed"
        data = {"text": text, "rounds": [self.done, there - 1]}
        self.journal.add(Event("absent", self.me, there, data=data))
        self.office.caught_up = there - 1
        await self._close(there, self.state)
        return True

    async def _finish(self) -> None:
        """When all rounds are over, the site's own model is trained to the end and saved with its card."""
        if self.store.facts().get("finished") == "yes":
            return
        self._now("training its own model to the end")
        if self.study.training.tune and isinstance(self.strategy, Finishes):
            inside = RememberedSite(self.site, self.store, Diary(self.study.rounds), self.room)
            self.state = await self.strategy.finish(self.state, inside)
            await self._evaluate(self.state, self.study.rounds, fitted=True)
        elif not self.quality:
            await self._evaluate(self.state, self.done)
        body = checkpoint.dumps(self._content(self.done, self.state, self.leaving))
        await durably(self.room, self.store.close_round, self.done, body)
        await durably(self.room, self._save)
        text = f"finished: the model is in {self.setting.home / 'model'}"
        self.journal.add(Event("notice", self.me, data={"text": text, "finished": True}))

    def _save(self) -> None:
        try:
            result.save(self)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise DiskFull(f"{self.setting.home}: the disk is full") from None
        self.store.note(finished="yes")

    async def _settle(self, until_done: bool) -> None:
        """Stay for the peers: what they were promised is delivered, and what they send is taken in."""
        told = False
        while True:
            owed = await asyncio.to_thread(self.store.owed)
            gone = self.me in await asyncio.to_thread(self.store.leaving)
            self._now("left" if gone else "finished", f"parcels wait for {', '.join(owed)}" if owed else "")
            if not owed and not told:
                told = True
                text = "nothing is owed to any peer"
                self.journal.add(Event("notice", self.me, data={"text": text, "settled": True}))
            if until_done and not owed:
                return
            await asyncio.sleep(GLANCE if until_done or not told else SELDOM)

    # -- when a round may begin -------------------------------------------------------------------

    async def _may_begin(self) -> None:
        peers = [p for p in self.churn.members(self.done, self.everybody) if p != self.me]
        if not exchanges(self.setting, self.done):
            peers = []
        began, told = time.monotonic(), ""
        while reason := self._beginning.obstacle(peers, self.mailroom, self.paused, time.monotonic() - began):
            if reason != told:
                told = reason
                self._now("waiting", reason)
                self.journal.add(Event("notice", self.me, self.done, data={"text": f"waits: {reason}"}))
            await asyncio.sleep(GLANCE)

    async def _watch_peers(self) -> None:
        """A peer that comes back is waited for again; a ledger or a folder that was rolled back ends the node."""
        before: frozenset[str] = frozenset()
        while True:
            if self.introductions.rolled_back is not None:
                raise self.introductions.rolled_back
            now = self.links.connected
            for peer in now - before:
                self.mailroom.back(peer)
                self.couriers[peer].wake()
            before = now
            await asyncio.sleep(2 * GLANCE)

    async def room(self) -> None:
        """The disk is full: say so, and wait until something can be written."""
        doing, self.doing = self.doing, "paused: the disk is full"
        self.reason = f"free some space at {self.setting.home}; nothing is lost, the node goes on by itself"
        self.journal.add(Event("notice", self.me, self.done, data={"text": f"{self.doing}; {self.reason}"}))
        while not (await asyncio.to_thread(self.store.has_room) and self.journal.flush()):
            await asyncio.sleep(SELDOM)
        self.doing, self.reason = doing, ""
        self.journal.add(Event("notice", self.me, self.done, data={"text": "there is room again: goes on"}))

    # -- what is kept -----------------------------------------------------------------------------

    async def _close(self, done: int, state: Any) -> None:
        leaving = await asyncio.to_thread(self.store.leaving)
        body = await asyncio.to_thread(checkpoint.dumps, self._content(done, state, leaving))
        await durably(self.room, self.store.close_round, done, body)
        self.state, self.done = state, done
        for site in leaving.keys() - self.leaving.keys() - {self.me}:
            text = f"leaves for good before round {leaving[site] + 1}"
            self.journal.add(Event("left", site, done, data={"text": text}))
        self._count_leaving(leaving)
        if epoch := self.churn.epoch(done):
            await durably(self.room, self.store.cancel, epoch)

    def _content(self, done: int, state: Any, leaving: Mapping[str, int]) -> dict[str, Any]:
        """A state is also where a new membership begins to count, so that a replayed round has the old one."""
        return {
            "done": done, "state": state, "memory": self.site.memory, "spent": self.site.spent,
            "sequence": dict(self.office.sequence), "caught_up": self.office.caught_up,
            "counters": dict(self.office.counters), "leaving": dict(leaving), "quality": self.quality,
            **({"rest": self.site.rest.state()} if self.site.rest is not None else {}),
            **({"packing": dict(self.office.packing.memory)} if self.office.packing.memory else {}),
        }  # fmt: skip

    def _restore(self) -> None:
        """The newest state that is whole; a damaged one is passed over, and its round replayed."""
        found: dict[str, Any] | None = None
        for done, body in self.store.latest():
            with suppress(CheckpointError):
                found = {**checkpoint.loads(body, str(self.store.path)), "done": done}
                break
        if found is None and self.store.newest() is not None:
            raise CheckpointError(
                f"{self.store.path}: neither of its two states is whole; restore the folder from a backup"
                " (but never the ledger)"
            )
        self.leaving = dict(found["leaving"]) if found else {}
        self.mailroom = self.reception.mailroom = Mailroom(self.store, self.desk, self.room)
        self.office = self._office()
        if found is None:
            self.done = self.churn.join.get(self.me, 0)
            self.state = self.strategy.init(self.site.round(self.done))
            self.office.caught_up = self.done - 1
            self.store.close_round(self.done, checkpoint.dumps(self._content(self.done, self.state, {})))
            return
        self.state, self.done, self.quality = found["state"], int(found["done"]), found["quality"]
        self.site.memory, self.site.spent = found["memory"], found["spent"]
        if self.site.rest is not None:
            self.site.rest.put_back(found["rest"])
        self.office.sequence.update(found["sequence"])
        self.office.caught_up = found["caught_up"]
        self.office.counters.update(found["counters"])
        self.office.packing.put_back(found.get("packing", {}))
        if self.done != self.store.newest():
            text = f"the newest state is damaged; went back to round {self.done + 1} and replays it"
            self.journal.add(Event("notice", self.me, self.done, data={"text": text}))

    def _office(self) -> Office:
        gate = Gate(accept_unproven=self.accepts, site=self.me, on_event=self.journal.add)
        return Office(
            self.me, self.setting.run, self.everybody, self.study.graph(), self.churn, gate, self.desk,
            self.journal, patience=self.study.patience, mailbox=self.mailroom,
            counter=lambda: self.ledger.counter, rest=self.site.rest, **exchange_rules(self.study, self.site),
        )  # fmt: skip

    def _count_leaving(self, leaving: Mapping[str, int]) -> None:
        """From here on these sites are no members after the rounds that they named."""
        if dict(leaving) != self.leaving:
            self.leaving, before = dict(leaving), self.office
            self.office = self._office()
            self.office.sequence.update(before.sequence)
            self.office.counters.update(before.counters)
            self.office.packing.put_back(before.packing.memory)
            self.office.caught_up = before.caught_up

    # -- the owner's word -------------------------------------------------------------------------

    @property
    def churn(self) -> Churn:
        return churn_of(self.setting, self.leaving)

    def pause(self, paused: bool) -> None:
        """Begin no round (or begin them again); what is owed is delivered and what comes is taken all the same."""
        self.store.note(paused="yes" if paused else "no")
        self.paused = paused

    async def leave(self, first: int | None = None, why: str = "its owner said so") -> None:
        """Say to everybody, signed and for good, that this site takes no part from round `first` on."""
        known = await asyncio.to_thread(self.store.leaving)
        if first is None:
            heard = await asyncio.to_thread(self.store.heard)
            first = known.get(self.me, max([self.done, *heard.values()]) + 1)
            await durably(self.room, lambda: self.store.note(left="yes"))
            self.interrupted.set()
        first = min(max(first, 1), self.study.rounds)  # an epoch begins after the first round at the earliest
        await durably(self.room, self.store.leaves, self.me, first)
        if "farewell" not in self.store.facts():
            await durably(self.room, self.store.debit, farewells(self.setting, first, known))
            await durably(self.room, lambda: self.store.note(farewell=first))
        if self.setting.farewell is not None:  # for the roster of those who stay
            signed = roster.leave(roster.load_roster(self.setting.farewell), self.setting.identity)
            roster.keep_signature(signed, self.setting.farewell)
        if self.me not in known:
            text = f"leaves for good before round {first + 1}: {why}"
            self.journal.add(Event("left", self.me, self.done, data={"text": text}))
        self._count_leaving({**self.leaving, self.me: first})
        self._wake()

    def _wake(self) -> None:
        for courier in self.couriers.values():
            courier.wake()

    def _now(self, doing: str, reason: str = "") -> None:
        self.doing, self.reason = doing, reason

    def _allow(self, size: int) -> None:
        cap, left = self.setting.caps.bytes, self.store.bytes_out()
        if cap is not None and left + size > cap:
            raise CapReached(f"its own cap is {cap:,} bytes, and {left:,} have left")
