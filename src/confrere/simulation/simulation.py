"""A whole collaboration in one process: every site with its own gate, ledger, mailbox and seeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import torch

from confrere.core.errors import CheckpointError, ConfrereError, StudyError
from confrere.core.events import Event, Journal
from confrere.data.records import Federation
from confrere.learning.local_training.one_site import Trainer
from confrere.simulation.checkpoints import names_in
from confrere.simulation.collaboration import AllSites, Collaboration
from confrere.simulation.finished_run import Run, RunTimer, started, write_site_folders
from confrere.simulation.gc_pause import rare_collections
from confrere.simulation.memory_estimate import check_memory
from confrere.simulation.run_folder import RunFolder
from confrere.site.attackers import ColludingAttackers, attack_hooks
from confrere.site.faults import Fault, Faults
from confrere.site.open_sites import records_hash
from confrere.site.site_run import BUDGET_SPENT
from confrere.site.start_events import round_started
from confrere.site.stopping import Clock, stop_reasons, stop_text
from confrere.study import Study


class Simulation(Collaboration):
    """All sites of a study, and the rounds that they go through together."""

    def __init__(
        self,
        study: Study,
        federation: Federation,
        *,
        device: str = "cpu",
        faults: tuple[Fault, ...] = (),
        trainer: Trainer | str | None = None,
        among: AllSites | None = None,
    ) -> None:
        """`among` names all sites of the collaboration, where `federation` holds only some of them."""
        super().__init__(study, federation, device=device, trainer=trainer, among=among)
        self.faults = faults
        self._marks: dict[str, str] = {}
        check_device(device)

    def run(
        self,
        folder: RunFolder | None = None,
        listeners: tuple[Callable[[Event], None], ...] = (),
        again: bool = False,
    ) -> Run:
        """Start (or resume) the simulation and run it to the end."""
        self.prepare(journal := Journal(None))
        if folder is not None:
            journal = folder.open(again)
            self.use(journal)
        for listener in listeners:
            journal.listen(listener)
        try:
            return self.run_rounds(journal, folder, again)
        except ConfrereError:
            if folder is not None and not again:
                folder.discard_if_nothing_was_done(journal)
            raise
        finally:
            journal.close()

    def prepare(self, journal: Journal | None = None) -> None:
        self.study.hash()  # a network that cannot be named is refused before it is measured
        check_memory(self.study, self.federation)
        super().prepare(journal)
        self.colluders: ColludingAttackers | None = None
        if self.plan is not None and self.plan.attack.colludes:
            self.colluders = ColludingAttackers(
                self.plan, lambda n: self.schedule.round(n).present - self.lost
            )
        for name, hook in attack_hooks(self.plan, list(self.sites.values()), self.colluders).items():
            self.peers[name].outgoing = hook
        self._start_over()

    def reset(self) -> None:
        """Return all sites of this process to the start of the run. Ledgers keep what they were charged."""
        for name, run in self.runs.items():
            run.reset()
            self.network.open(name)  # what was on its way is dropped
        if self.colluders is not None:
            self.colluders.reset()
        self.ended.clear()
        self._start_over()

    def _start_over(self) -> None:
        self.clock = Clock()
        self._changed: set[str] = set()
        self._held: dict[str, list[tuple[str, str, int]]] = {}
        """What waited in mailboxes when `changed` was last asked for."""
        self.late: dict[str, asyncio.Task[None]] = {}
        self.lost: set[str] = set()
        self.back: dict[str, asyncio.Event] = {}
        self.struck = asyncio.Event()

    def planned_faults(self) -> Faults:
        return Faults(self.faults, self._lose)

    def run_rounds(self, journal: Journal, folder: RunFolder | None, again: bool) -> Run:
        """All rounds, from the first or from the last checkpoint."""
        first = self._restore(folder, journal) if again and folder is not None else 0
        timer = started(self, journal, again, first)
        with rare_collections():
            asyncio.run(self.go_through_rounds(first, journal, folder))
        return self.finish_run(timer, folder)

    def finish_run(self, timer: RunTimer, folder: RunFolder | None) -> Run:
        """The result of the run; writes a folder for each site if the run keeps files."""
        if folder is not None and not folder.of_comparison:
            write_site_folders(self, folder.path, timer.journal)
        return timer.finish(self, folder)

    async def go_through_rounds(self, first: int, journal: Journal, folder: RunFolder | None = None) -> None:
        """All rounds from `first` on, and what sites do when they are over; checkpoints are kept in `folder`."""
        async with self.delivering():
            done = first
            for number in self.rounds(first, journal):
                await self.round(number)
                self.settle(number)
                self.evaluate(number)
                if folder is not None and not folder.of_comparison:
                    changed = self.changed(number)
                    if not self.lost:
                        content = self._content(number + 1, journal, folder.due(changed))
                        folder.checkpoint(number + 1, content, journal)
                        changed.clear()
                done = number + 1
            await self.finish(done)

    def rounds(self, first: int, journal: Journal) -> Iterator[int]:
        """Announce and yield each round from `first` on, until the last one or until the study stops."""
        for number in range(first, self.study.rounds):
            if self._stops_before(number, journal):
                return
            self._announce(number, journal)
            yield number

    def _stops_before(self, number: int, journal: Journal) -> bool:
        """Whether the study stops before this round; if so, add a notice with the reason."""
        if self.study.stop is None:
            return False
        text = stop_text(self.clock, self.study.stop, number, self.stop_reasons(number - 1))
        if text:
            journal.add(Event("notice", None, number - 1, data={"text": text, "stopped": number}))
        return bool(text)

    def stop_reasons(self, number: int) -> list[str] | None:
        """Why the sites have stopped training, if all of them know after this round that all have; else None."""
        members = [
            s for n in self.schedule.round(number).members if (s := self.sites.get(n)) and n not in self.lost
        ]
        return stop_reasons([site.stopping for site in members], self.churn, number)

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Deliver parcels to the mailboxes while the context is open."""
        others = [peers for peers in self.peers.values() if not peers.receive_directly()]
        pumps = [asyncio.create_task(peers.pump()) for peers in others]
        try:
            yield
        finally:
            for task in [*pumps, *self.late.values()]:
                task.cancel()
            await asyncio.gather(*pumps, *self.late.values(), return_exceptions=True)

    def _announce(self, number: int, journal: Journal) -> None:
        """Add the start of a round to the journal, with the sites that take part."""
        scheduled = self.schedule.round(number)
        journal.add(round_started(number, scheduled, scheduled.present))
        planned = self.study.churn.leave
        for name in scheduled.changes:
            if name in self.runs:
                self.runs[name].announce(number, "" if planned.get(name) == number else BUDGET_SPENT)

    async def round(self, number: int) -> None:
        """Let every present site take part."""
        if self.ended and number <= max(self.ended.values()):  # a round that is done again
            self.ended.clear()
        there = self.schedule.round(number).present
        present = [n for n in self.schedule.round(number).participants if n in there and n in self.sites]
        tasks = {n: asyncio.create_task(self.runs[n].round(number)) for n in present if n not in self.lost}
        for name in [n for n in present if n in self.lost and n in self.back]:
            self._revive(name)
            tasks[name] = asyncio.create_task(self._catch_up(name, number))
        try:
            await self._until_done_or_lost(tasks)
        except BaseException:  # one site cannot go on, so the round is over for all of them
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            raise
        for name in self.lost:
            if name in tasks and not tasks[name].done():
                self.late[name] = tasks[name]
        await asyncio.sleep(0)  # what was sent in this round is in the mailboxes after this

    def settle(self, number: int) -> None:
        """A round is over: what was not sent in it will never come."""
        for name in self.schedule.round(number).present - self.lost:
            self.ended[name] = number
        for name in self.late:
            self.peers[name].mailbox.wake()

    async def _until_done_or_lost(self, tasks: Mapping[str, asyncio.Task[None]]) -> None:
        """Wait for all sites but those that are lost on the way; the first error ends the run."""
        self.struck = struck = asyncio.Event()
        waiting, failed = set(tasks.values()), []

        def over(task: asyncio.Task[None]) -> None:
            waiting.discard(task)
            if task.cancelled() or task.exception() is not None:
                failed.append(task)
            if failed or len(waiting) <= len(self.lost):
                struck.set()

        for task in tasks.values():
            task.add_done_callback(over)
        while waiting - {tasks[n] for n in self.lost if n in tasks}:
            await struck.wait()
            struck.clear()
            for task in [t for t in tasks.values() if t in failed]:
                task.result()

    async def finish(self, done: int | None = None) -> None:
        """When all rounds are over (or `done`, where the study stops before), each site may train its own model to the end."""
        if done:
            self.evaluate(done - 1, stops=True)
        finished = [run for run in self.runs.values() if await run.finish()]
        for run in finished:
            run.evaluate(self.study.rounds, fitted=True)

    async def _catch_up(self, name: str, number: int) -> None:
        """A site that was lost in the middle of a round finishes that round first."""
        await self.late.pop(name)
        self.ended[name] = max(self.ended.get(name, -1), number - 1)
        for peers in self.peers.values():  # they may wait for what it has not sent in that round
            peers.mailbox.wake()
        await self.runs[name].round(number)

    async def _lose(self, fault: Fault) -> None:
        """Stop a site here. The others no longer wait for it; its parcels so far are on their way."""
        self.lost.add(fault.site)
        self.struck.set()
        if self.colluders is not None:
            self.colluders.presence_changed()
        for name, peers in self.peers.items():
            if name != fault.site:
                peers.mailbox.gone(fault.site, fault.round)
        journal = self.sites[fault.site].journal
        text = f"lost at {fault.point}" + (" for good" if fault.forever else "")
        journal.add(Event("lost", fault.site, fault.round, data={"text": text}))
        revival = asyncio.Event()
        if not fault.forever:
            self.back[fault.site] = revival
        await revival.wait()

    def _revive(self, name: str) -> None:
        self.lost.discard(name)
        for peers in self.peers.values():
            peers.mailbox.back(name)
        self.back.pop(name).set()

    def evaluate(self, number: int, stops: bool = False) -> None:
        """Measure the models of every site, where the study asks for it after this round.

        With `stops` the study ends with this round: the sites that were not evaluated after it are evaluated now.
        """
        done = self._evaluated(number) if stops else ()
        for name in self._evaluated(number, stops):
            if name not in done:
                self.runs[name].evaluate(number)

    def _evaluated(self, number: int, stops: bool = False) -> list[str]:
        """The sites to evaluate after this round; between evaluations, those that leave."""
        if not (stops or self.churn.leave or self.study.evaluation.due(number, self.study.rounds)):
            return []
        return [name for name, run in self.runs.items() if run.evaluation_due(number, stops)]

    def changed(self, number: int) -> set[str]:
        """The sites that are not what they were when this was last emptied; ask after every round.

        A site changes when it takes part, when it is evaluated, and when something comes into its mailbox.
        """
        if self.pools:
            self._changed.update(self.sites)
        self._changed.update(self._evaluated(number))
        self._changed.update(n for n in self.schedule.round(number).present if n in self.sites)
        held = {n: [p.id for p in found] for n, o in self.peers.items() if (found := o.mailbox.waiting())}
        self._changed.update(n for n in {**held, **self._held} if held.get(n) != self._held.get(n))
        self._held = held
        return self._changed

    def _content(self, done: int, journal: Journal, names: Collection[str] | None = None) -> dict[str, Any]:
        parts = self.parts(names)
        written = names_in(parts["sites"])
        return {
            "done": done,
            "study": self.study.hash(),
            "seed": self.study.seed,
            "events": len(journal.events),
            "seconds": self.clock.seconds,
            "records": {n: mark for n, mark in self._records().items() if self.pools or n in written},
            **parts,
        }

    def parts(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """What the sites of this process would need to go on from here; of some of them if they are named."""
        wanted = (
            self.runs if names is None or self.pools else {n: self.runs[n] for n in names if n in self.runs}
        )
        return {"sites": {n: {**run.snapshot(), **run.volatile()} for n, run in wanted.items()}}

    def _records(self) -> dict[str, str]:
        """A mark of each site's records, so that a run does not go on with others; PRIVATE, like the checkpoint."""
        if not self._marks:
            self._marks = {n: records_hash(d) for n, d in self.federation.sites.items()}
        return self._marks

    def _restore(self, folder: RunFolder, journal: Journal) -> int:
        found = folder.latest()
        if found is None:
            return 0
        if found["study"] != self.study.hash() or found["seed"] != self.study.seed:
            raise CheckpointError(f"{folder.path}: the checkpoint belongs to another study")
        changed = [n for n, mark in self._records().items() if found["records"].get(n) != mark]
        if changed:
            raise CheckpointError(
                f'{folder.path}: the records of site "{changed[0]}" are not those that the run was started with;'
                " start a new run"
            )
        if found["events"] > len(journal.events):
            raise CheckpointError(
                f"{folder.path}: the journal ends before the checkpoint after round {found['done']}: it was cut"
            )
        self.restore(found)
        self.clock = Clock(float(found.get("seconds", 0.0)))
        for name, site in self.sites.items():
            site.ledger.refuse_rollback(max(o.counters.get(name, 0) for o in self.peers.values()))
        return int(found["done"])

    def restore(self, found: Mapping[str, Any]) -> None:
        """Bring the sites of this process back to where `parts` was taken."""
        for name, kept in found["sites"].items():
            self.runs[name].restore(kept)
            self.runs[name].restore_volatile(kept)


def check_device(device: str) -> None:
    """Whether PyTorch can compute there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StudyError(f'--device "{device}" cannot be used here: {reason[:160]}') from None
