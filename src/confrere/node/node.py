"""A node: one site that takes part in a study over the network. It may be killed at any instant.

How its rounds relate to those of its peers: each site counts its own rounds. In round n it uses what its peers sent in round
n or before. It waits for expected parcels for at most the study's `patience` and then goes on; the journal records which
peers were missing. A site that is more rounds behind than there are members was away: it goes on in the
round where most of its peers are. The rounds in between are neither trained nor paid for, and parcels of those
rounds count as late ones: push-sum credits them, averages pass over them. A site that reaches no peer starts no
round. When all rounds are over it stays, to deliver what it owes and to take in what others still send.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from confrere.core.errors import ConfrereError
from confrere.core.events import Event
from confrere.core.protocols import Strategy
from confrere.node.conduct import Conduct
from confrere.node.config import NodeConfig
from confrere.node.delivery import Epochs, Links, ParcelReceiver, PeerSender
from confrere.node.handshake_state import HandshakeCallbacks
from confrere.node.lateness import Lateness
from confrere.node.membership import churn_of, exchanges, first_round_away, front, leave_messages, sign_leave
from confrere.node.node_journal import Log, NodeJournal
from confrere.node.node_sums import latest_rounds, masks_of_node, sum_messages, sums_are_over
from confrere.node.replay import (
    CallCounter,
    CapReached,
    DurableMailbox,
    DurableSiteRound,
    OutboxTransport,
    durably,
    in_thread,
)
from confrere.node.rollback_check import RollbackCheck
from confrere.node.setup import (
    ledger_of,
    lock_folder,
    lock_ledger,
    most_waiting,
    newest_whole_state,
    parcel_rules,
    refuse_older_than_ledger,
    refuse_other_records,
    site_of,
    sync_result,
)
from confrere.node.shortage import Shortage, recognising_shortages, until_over
from confrere.node.start import StartConditions, record_start, time_is_up
from confrere.node.store import Store
from confrere.site import snapshot
from confrere.site.assemble import first_round_unpaid, leaves_when_spent
from confrere.site.deployment import Deployment, deployment_of
from confrere.site.peers import SitePeers
from confrere.site.schedule import Schedule
from confrere.site.site_folder import STORE, Ending, save_model
from confrere.site.site_run import BUDGET_SPENT, SiteRun, site_run_of
from confrere.site.start_events import round_started
from confrere.study.churn import Churn
from confrere.transport.grpc.connections import Connections, Handlers
from confrere.transport.link_limits import LinkLimits

POLL_SECONDS, SLOW_POLL_SECONDS = 0.1, 1.0
"""Seconds between checks of whether a round may start, and of what changes slowly."""


class Node:
    """One site over a whole run, across restarts of its process."""

    done: int
    """The number of rounds that are over."""
    leaving: dict[str, int]
    mailbox: DurableMailbox
    site_run: SiteRun
    """The site itself, after `done` rounds; everything around it makes it survive a crash."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        connect: Callable[..., Links] = Connections,
        listeners: tuple[Callable[[Event], None], ...] = (),
    ) -> None:
        self.config, self.study, self.me = config, config.study, config.me
        self.members, self.peer_names = sorted(config.members), sorted(config.peers)
        self._lock = lock_folder(config)
        try:
            self._set_up(connect, listeners)
        except BaseException:
            self._lock.close()
            raise

    def _set_up(self, connect: Callable[..., Links], listeners: tuple[Callable[[Event], None], ...]) -> None:
        config = self.config
        self.strategy: Strategy = self.study.build_strategy()
        self.log = Log(config.home / "log.jsonl")
        self.journal = NodeJournal(config.home / "journal.jsonl", listeners=(self.log, *listeners))
        self.store = Store(config.home / STORE, run=config.run, site=self.me)
        self.store.sweep()
        self.rollback_check = RollbackCheck(self.store, config.identity.folder or config.home)
        self.ledger, data = ledger_of(config, self.rollback_check)
        config = self.config = replace(config, data=data)
        self.site = site_of(config, self.strategy, self.journal, self.ledger)
        self._charges = lock_ledger(config, self.site)
        self.site.reuses = self._charges is not None
        refuse_older_than_ledger(config, self.store, self.ledger)
        refuse_other_records(config, self.store)
        self.began, self.doing, self.reason = time.time(), "starting", ""
        self.paused = self.store.facts().get("paused") == "yes"
        self.interrupted = asyncio.Event()
        self.quality: dict[str, Any] = {}
        self.handshake = HandshakeCallbacks(config, self.store, self.ledger, self.rollback_check)
        self.outbox = OutboxTransport(
            self.store, config.identity.key, self.allow, self.wait_for_space, self.handshake.mark
        )
        self.outbox.posted = self._wake
        self.conduct = Conduct(self.me, self.peer_names, self.journal.add)
        self.lateness = Lateness(self.conduct.waited)
        rules = parcel_rules(config, self.site, self.strategy)
        epochs = Epochs(
            lambda: self.churn.epoch(self.done),
            lambda round: churn_of(config, self.store.leaving()).epoch(round),
        )
        kept = most_waiting(config.caps, rules.limits.total)
        self.parcel_receiver = ParcelReceiver(rules, self.store, self.conduct, epochs, kept, self.handshake)
        self.peer_senders = {
            p: PeerSender(self.me, p, self.store, self.conduct.add, self.handshake) for p in self.peer_names
        }
        self.sums = sum_messages(self)
        self._restore()
        handlers = Handlers(
            self.handshake.greet,
            self.parcel_receiver.deliver,
            self.conduct.add,
            self.handshake.met,
            self.handshake.agreed,
        )
        limits = LinkLimits(rules.limits.total, self.study.patience, self.store.blobs.folder)
        self.links = connect(config.identity, config.peers, handlers, limits, listen=config.listen)
        if self.sums is not None:
            self.sums.links = self.links
        self._start_conditions = StartConditions(config, lambda: self.links.connected)

    # -- running ----------------------------------------------------------------------------------

    async def run(self, until_done: bool = False) -> None:
        """Take part until stopped; with `until_done`, until nothing is left to do or to deliver."""
        record_start(self.config, self.site, self.store, self.done)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.links.start()
            tasks = [asyncio.create_task(c.run(self.links)) for c in self.peer_senders.values()]
            tasks.append(asyncio.create_task(self._watch_peers()))
            tasks.append(asyncio.create_task(self._run_rounds(until_done)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            try:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if self.sums is not None:
                    await self.sums.stop()
                await self.links.stop()
                await self.parcel_receiver.finish()
            finally:  # also when it is interrupted a second time while it stops
                self.close()

    def close(self) -> None:
        with suppress(ConfrereError, OSError):
            self.journal.close()
        self.log.close()
        self.store.close()
        self.ledger.close()
        self.rollback_check.close()
        if self._charges is not None:
            self._charges.close()
        self._lock.close()

    async def _run_rounds(self, until_done: bool) -> None:
        cap, announced = self.config.caps.rounds, self.store.leaving().get(self.me)
        if announced is not None:
            await self.leave(announced)  # a crash may have interrupted it
        elif cap is not None and cap < self.study.rounds:
            await self.leave(cap, f"its own cap is {cap} rounds")
        while self._takes_part():
            if await self._interrupted_by_owner(asyncio.create_task(self._step())):
                break
        while not await self._unless_short(self._finish):
            pass
        await self._settle(until_done)

    async def _interrupted_by_owner(self, step: asyncio.Task[None]) -> bool:
        """Run a step to its end, or until the owner interrupts it; returns whether that happened."""
        interruption = asyncio.create_task(self.interrupted.wait())
        try:
            await asyncio.wait({step, interruption}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                step.result()
            return not step.done()
        except CapReached as reached:
            await self.leave(self.done, str(reached))
            return False
        finally:
            for task in (step, interruption):
                task.cancel()
            await asyncio.gather(step, interruption, return_exceptions=True)

    def _takes_part(self) -> bool:
        if self.done >= self.study.rounds or self.store.facts().get("left") == "yes":
            return False
        if self.done and self.site_run.stop_reasons(self.done - 1):
            return False
        members = self.churn.members(self.done, self.members)
        return self.me in members and not sums_are_over(self, members)

    async def _step(self) -> None:
        """One round, or a jump to where the others are."""
        await self._may_begin()
        await self._unless_short(self._skip_or_round)

    async def _skip_or_round(self) -> None:
        if not await self._skip():
            await self._round()

    async def _unless_short(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether work was done. After a shortage, wait for its end and return to the state before the work."""
        try:
            with recognising_shortages(self.store.path):
                await work()
            return True
        except Shortage as error:
            shortage = error
        while True:
            await self.wait_for_space(shortage)
            try:
                with recognising_shortages(self.store.path):
                    self._restore()  # nothing was sent: the work can be done again
                return False
            except Shortage as error:
                shortage = error

    async def _round(self) -> None:
        number = self.done
        await self._leave_with_the_budget(number)
        if self.me not in self.churn.members(number, self.members):
            return
        self._set_activity("in a round")
        run, here = self.site_run, {self.me, *self.links.connected}
        self.journal.add(round_started(number, run.peers.schedule.round(number), here, self.me))
        run.announce(number)
        if self.churn.present(number, self.me):
            self.mailbox.call_counter = call_counter = CallCounter(number)
            self.outbox.clear()
            inside = DurableSiteRound(self.site, self.store, call_counter, self.wait_for_space)
            await run.round(number, inside, time_is_up=time_is_up(self.study, self.store))
            await self.outbox.post()
        if run.evaluation_due(number, stops=bool(run.stop_reasons(number))):
            await self._evaluate(number)
        await self._close(number + 1)
        if self.site.spent and leaves_when_spent(self.study) and self.me not in self.leaving:
            await self.leave(self.done, BUDGET_SPENT)  # another study has charged the ledger in the meantime

    async def _leave_with_the_budget(self, number: int) -> None:
        """Announce that the site leaves when its budget is spent, in the round in which it does in a simulation.

        It does so as many rounds before as there are members: no peer that takes part is further ahead. A round that is
        replayed after a crash finds its own charge in the ledger, and is not checked again.
        """
        checked = self.me in self.leaving or self.store.facts().get("budget_checked") == str(number)
        if leaves_when_spent(self.study) and not checked:
            ahead = range(number, min(self.study.rounds, number + len(self.members) + 1))
            first = await in_thread(first_round_unpaid, self.site, self.churn, ahead)
            if first is not None:
                await self.leave(first, BUDGET_SPENT)
            await durably(self.wait_for_space, lambda: self.store.note(budget_checked=number))

    async def _evaluate(self, number: int, fitted: bool = False) -> None:
        self.quality = await in_thread(self.site_run.evaluate, number, fitted)

    async def _skip(self) -> bool:
        """Go on where the others are, if this site was away for long."""
        members = self.churn.members(self.done, self.members)
        heard = await asyncio.to_thread(latest_rounds, self)
        there = front(heard, [p for p in members if p != self.me])
        if there <= self.done + len(members):
            return False
        text = f"was away: goes on in round {there + 1}, rounds {self.done + 1} to {there} are missed"
        data = {"text": text, "rounds": [self.done, there - 1]}
        self.journal.add(Event("absent", self.me, there, data=data))
        self.peers.caught_up = there - 1
        await self._close(there)
        return True

    async def _finish(self) -> None:
        """When all rounds are over, the site's own model is trained to the end and saved with its card."""
        self.parcel_receiver.mailbox = None  # what still arrives is counted, and not kept
        if self.store.facts().get("finished") != "yes":
            await self._train_to_the_end()
        text = f"finished: the model is in {self.config.home / 'model'}"
        self._notice(text, finished=True)

    async def _train_to_the_end(self) -> None:
        left_because = self.store.facts().get("leaves_because", "")
        self.site_run.announce(self.churn.leave.get(self.me, self.done), left_because)
        self._set_activity("training its own model to the end")
        inside = DurableSiteRound(self.site, self.store, CallCounter(self.study.rounds), self.wait_for_space)
        if await self.site_run.finish(inside):
            await self._evaluate(self.study.rounds, fitted=True)
        elif not self.quality:
            await self._evaluate(self.done)
        body = snapshot.dumps(self._content(self.done, self.leaving))
        await durably(self.wait_for_space, self.store.close_round, self.done, body)
        deployment = await in_thread(deployment_of, self.site_run, self.me)
        await durably(self.wait_for_space, self._save, deployment)

    def _save(self, deployment: Deployment) -> None:
        config, members, scores = self.config, self.members, self.quality
        ending = Ending(
            config.agreed, members, self.done, deployment, config.schema, scores, config.rehearsal
        )
        with recognising_shortages(self.store.path):
            save_model(config.home, self.site_run, self.me, ending, sync_result)
        self.store.note(finished="yes")

    async def _settle(self, until_done: bool) -> None:
        """Stay connected after the last round: deliver what is owed, and acknowledge what peers still send."""
        told = False
        while True:
            owed = self._still_expected(await asyncio.to_thread(self.store.owed))
            gone = self.me in await asyncio.to_thread(self.store.leaving)
            self._set_activity(
                "left" if gone else "finished", f"parcels wait for {', '.join(owed)}" if owed else ""
            )
            if not owed and not told:
                told = True
                self._notice("nothing is owed to any peer", settled=True)
            if until_done and not owed:
                return
            await asyncio.sleep(POLL_SECONDS if until_done or not told else SLOW_POLL_SECONDS)

    def _still_expected(self, owed: Mapping[str, int]) -> list[str]:
        """The receivers that parcels are kept for, without sites that have left and are not reachable any more."""
        there = {*self.churn.members(self.done, self.members), *self.links.connected}
        return [peer for peer in owed if peer in there]

    # -- when a round may begin -------------------------------------------------------------------

    async def _may_begin(self) -> None:
        peers = [p for p in self.churn.members(self.done, self.members) if p != self.me]
        if not exchanges(self.config, self.done):
            peers = []
        began, told = time.monotonic(), ""
        self._refuse_rollback()
        while reason := self._start_conditions.obstacle(
            peers, self.mailbox, self.paused, time.monotonic() - began
        ):
            if reason != told:
                told = reason
                self._set_activity("waiting", reason)
                self._notice(f"waits: {reason}", self.done, waiting=True)
            await asyncio.sleep(POLL_SECONDS)
            self._refuse_rollback()

    def _refuse_rollback(self) -> None:
        if self.handshake.rolled_back is not None:
            raise self.handshake.rolled_back

    async def _watch_peers(self) -> None:
        """A peer that comes back is waited for again; a ledger or a folder that was rolled back ends the node."""
        before: frozenset[str] = frozenset()
        while True:
            self._refuse_rollback()
            now = self.links.connected
            for peer in now - before:
                self.mailbox.back(peer)
                self.peer_senders[peer].wake()
            before = now
            await asyncio.sleep(2 * POLL_SECONDS)

    async def wait_for_space(self, shortage: Shortage) -> None:
        """Record a shortage, and wait until it is over."""
        doing = self.doing
        self._set_activity(f"paused: {shortage.short}", shortage.advice(self.config.home))
        self._notice(f"{self.doing}; {self.reason}", self.done)
        await until_over(lambda: self.store.has_room() and self.journal.flush())
        self._set_activity(doing)
        self._notice(shortage.over, self.done)

    # -- what is kept -----------------------------------------------------------------------------

    @property
    def peers(self) -> SitePeers:
        return self.site_run.peers

    async def _close(self, done: int) -> None:
        leaving = await asyncio.to_thread(self.store.leaving)
        body = await asyncio.to_thread(snapshot.dumps, self._content(done, leaving))
        await durably(self.wait_for_space, self.store.close_round, done, body)
        self.done = done
        for site in leaving.keys() - self.leaving.keys() - {self.me}:
            self._notice(f'"{site}" leaves for good before round {leaving[site] + 1}', done, leaving=site)
        self._count_leaving(leaving)

    def _content(self, done: int, leaving: Mapping[str, int]) -> dict[str, Any]:
        """A state is also where a new membership begins to count, so that a replayed round has the old one."""
        facts = {"done": done, "leaving": dict(leaving), "quality": self.quality}
        return {**facts, **self.site_run.snapshot()}

    def _restore(self) -> None:
        """Go on from the newest state that is whole; after a damaged one, its round is replayed."""
        found = newest_whole_state(self.store)
        self.leaving = dict(found["leaving"]) if found else {}
        self.mailbox = self.parcel_receiver.mailbox = DurableMailbox(
            self.store, self.outbox, self.wait_for_space, self.lateness
        )
        self.site_run = self._new_site_run()
        if found is None:
            self.done = self.churn.join.get(self.me, 0)
            self.site_run.begin(self.done)
            self.peers.caught_up = self.done - 1
            self.store.close_round(self.done, snapshot.dumps(self._content(self.done, {})))
            return
        self.done, self.quality = int(found["done"]), found["quality"]
        self.site_run.restore(found)
        if self.done != self.store.newest():
            text = f"the newest state is damaged; went back to round {self.done + 1} and replays it"
            self._notice(text, self.done)

    def _new_site_run(self) -> SiteRun:
        """The site among its present peers, with a mailbox and a way out that survive a crash."""
        schedule = Schedule(self.churn, self.members, self.study.graph())
        bounds, cut = self.parcel_receiver.rules.bounds, self.store.cut_mass
        return site_run_of(
            self.site, self.strategy, schedule, self.outbox, patience=self.study.patience, mailbox=self.mailbox,
            bounds=bounds, cut=cut, **masks_of_node(self),
        )  # fmt: skip

    def _count_leaving(self, leaving: Mapping[str, int]) -> None:
        """Remove these sites from the members after the rounds that they named."""
        if dict(leaving) != self.leaving:
            kept = self.site_run.snapshot()
            self.leaving = dict(leaving)
            self.site_run = self._new_site_run()
            self.site_run.restore(kept)

    # -- the owner's commands ---------------------------------------------------------------------

    @property
    def churn(self) -> Churn:
        return churn_of(self.config, self.leaving)

    def pause(self, paused: bool) -> None:
        """Pause or resume rounds; delivery continues."""
        self.store.note(paused="yes" if paused else "no")
        self.paused = paused

    async def leave(self, first: int | None = None, why: str = "at its owner's request") -> None:
        """Announce to all members, signed and for good, that this site takes no part from round `first` on."""
        known, now = await asyncio.to_thread(self.store.leaving), first is None
        if first is None:
            heard = await asyncio.to_thread(latest_rounds, self)
            first = known.get(self.me, first_round_away(self.config, self.done, heard))
        first = min(max(first, 1), self.study.rounds)  # an epoch begins after the first round at the earliest
        if self.me not in known:
            await durably(self.wait_for_space, lambda: self.store.note(leaves_because=why))
        await durably(self.wait_for_space, self.store.leaves, self.me, first)
        if "farewell" not in self.store.facts():
            await durably(self.wait_for_space, self.store.debit, leave_messages(self.config, first, known))
            await durably(self.wait_for_space, lambda: self.store.note(farewell=first))
        sign_leave(self.config)
        if self.me not in known:
            self._notice(f"leaves for good before round {first + 1}: {why}", self.done, leaving=self.me)
        self._count_leaving({**self.leaving, self.me: first})
        if now:
            await durably(self.wait_for_space, lambda: self.store.note(left="yes"))
            self.interrupted.set()
        self._wake()

    def _wake(self) -> None:
        for peer_sender in self.peer_senders.values():
            peer_sender.wake()

    def _notice(self, text: str, number: int | None = None, **facts: Any) -> None:
        self.journal.add(Event("notice", self.me, number, data={"text": text, **facts}))

    def _set_activity(self, doing: str, reason: str = "") -> None:
        self.doing, self.reason = doing, reason

    def allow(self, size: int) -> None:
        """Refuse to send beyond the site's own cap."""
        cap, left = self.config.caps.bytes, self.store.bytes_out()
        if cap is not None and left + size > cap:
            raise CapReached(f"its own cap is {cap:,} bytes, and {left:,} have left")
