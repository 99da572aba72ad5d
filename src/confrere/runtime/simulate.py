"""A whole collaboration in one process: every site with its own gate, ledger, mailbox and seeds."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError, ConfrereError, StudyError
from confrere.core.events import Event, Journal
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.core.protocols import Finishes, LooksAtMembers, Predictor, Predicts, Strategy
from confrere.core.registry import nearest
from confrere.data.partition import fingerprints
from confrere.data.records import Federation, SiteData, concatenate, declared_count
from confrere.learning.cohort import TRAINERS, Cohort, trainer_of
from confrere.learning.engine import Trainer
from confrere.learning.network import Workshop
from confrere.privacy.gate import Gate
from confrere.runtime.assemble import consents, leaving_when_spent, participant_of
from confrere.runtime.attackers import Conspiracy, masks, plan_of
from confrere.runtime.calendar import Calendar
from confrere.runtime.churn import Churn
from confrere.runtime.collector import held_back
from confrere.runtime.combining import check_combiners, exchange_rules
from confrere.runtime.faults import Fault, Faults
from confrere.runtime.footprint import check_memory
from confrere.runtime.office import Office
from confrere.runtime.participant import Participant
from confrere.runtime.records import Source, doubt_about, open_sites
from confrere.runtime.run import Folder, Run, resume_folder, started
from confrere.runtime.shelf import names_in
from confrere.runtime.stopping import Clock, all_rest, look_at_rest, stop_text
from confrere.study import Study
from confrere.transport.memory import Post

EVERYBODY = "everybody"
"""The one site of a pooled training, which holds all records."""

MANY = 64
"""A graph that does not fit its members shows at one of the first so many."""


def simulate(
    study: Study,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    out: str | Path | None = None,
    device: str = "cpu",
    listeners: tuple[Callable[[Event], None], ...] = (),
    faults: tuple[Fault, ...] = (),
    trainer: Trainer | str | None = None,
    command: str = "",
    workers: int | None = None,
    engine: str = "memory",
) -> Run:
    """Run a study in memory and return what came of it.

    `sites` are your own records: {"a": (inputs, targets), …}, DataFrames, files, or `SiteData`; without them,
    what the study names. With `out`, the journal, the metrics and a checkpoint per round are kept there.
    `trainer` is "cohort" (sites are trained together, the default), "one" (one at a time), or one of your own.
    `workers` spreads the sites over so many processes; with the engine "ray", over a cluster.
    """
    from confrere.runtime.engines import simulation_on

    federation = open_sites(study, sites)
    simulation = simulation_on(
        engine, workers, study, federation, device=device, faults=faults, trainer=trainer
    )
    folder = Folder(Path(out), study, command) if out is not None else None
    return simulation.run(folder, listeners)


def resume(
    path: str | Path,
    sites: Mapping[str, Source] | None = None,
    *,
    study: Study | None = None,
    device: str = "cpu",
    listeners: tuple[Callable[[Event], None], ...] = (),
    trainer: Trainer | str | None = None,
    workers: int | None = None,
    engine: str = "memory",
) -> Run:
    """Go on with an interrupted simulation; it ends as it would have without the interruption."""
    from confrere.runtime.engines import simulation_on

    folder, found = resume_folder(Path(path), study)
    simulation = simulation_on(
        engine, workers, found, open_sites(found, sites), device=device, trainer=trainer
    )
    return simulation.run(folder, listeners, again=True)


class Simulation:
    """All sites of a study, and the rounds that they go through together."""

    def __init__(
        self,
        study: Study,
        federation: Federation,
        *,
        device: str = "cpu",
        faults: tuple[Fault, ...] = (),
        trainer: Trainer | str | None = None,
        names: Sequence[str] | None = None,
        churn: Churn | None = None,
    ) -> None:
        """`names` are all sites of the collaboration, and `churn` when they are there, where `federation` holds only
        some of them."""
        self.study, self.federation, self.device = study, federation, device
        self.strategy: Strategy = study.rule()
        self.faults, self.trainer = faults, trainer_of(trainer)
        self.names = sorted(names or federation.sites)
        self._known_churn = churn
        self._marks: dict[str, str] = {}
        self.pools = bool(getattr(self.strategy, "pools", False))
        if len(self.names) < 2:
            raise StudyError(
                f'the study has one site ("{self.names[0]}"); a collaboration takes at least two'
            )
        study.churn.check(self.names, study.rounds)
        self.plan = plan_of(study, self.names)
        self.remarks: list[str] = []
        """What the strategy has to say about these sites."""
        if isinstance(self.strategy, LooksAtMembers):
            self.remarks += self.strategy.look_at(self.names, rehearsal=True)
        for key, named in (
            ("models.sites", study.models.sites),
            ("training.site_epochs", study.training.site_epochs),
        ):
            for name in named:
                if name not in self.names:
                    raise StudyError(
                        f'{key} names "{name}", which is no site of this study{nearest(name, self.names)}'
                    )
        check_common_proxy(study)
        check_device(device)

    def run(
        self,
        folder: Folder | None = None,
        listeners: tuple[Callable[[Event], None], ...] = (),
        again: bool = False,
    ) -> Run:
        """Start (or go on with) the simulation and see it through."""
        self.prepare(journal := Journal(None))
        if folder is not None:
            journal = folder.open(again)
            self.use(journal)
        for listener in listeners:
            journal.listen(listener)
        try:
            return self.see_through(journal, folder, again)
        except ConfrereError:
            if folder is not None and not again:
                folder.discard_if_nothing_was_done(journal)
            raise
        finally:
            journal.close()

    def prepare(self, journal: Journal | None = None) -> None:
        """Everything that can go wrong with study and records goes wrong here, before a file is written."""
        journal = journal or Journal(None)
        self._hear_the_trainer(journal)
        run = f"{self.study.name}-{self.study.hash()}-{self.study.seed}"
        check_memory(self.study, self.federation)
        # sites of one process take turns at the same networks, unless somebody's own trainer is in play
        workshop = Workshop() if type(self.trainer) in TRAINERS.values() else None
        workers = {EVERYBODY: _everybody(self.federation)} if self.pools else dict(self.federation.sites)
        if self.plan is not None:
            workers = {n: self.plan.records(d, self.federation.task) for n, d in workers.items()}
        self.sites = {
            name: participant_of(
                self.study, self.strategy, data, self.federation.task,
                run=run, journal=journal, trainer=self.trainer, device=self.device,
                doubt=doubt_about(self.federation), workshop=workshop, among=len(self._everybody()),
            )
            for name, data in workers.items()
        }  # fmt: skip
        self.judges = self.sites if not self.pools else {
            n: replace(self.sites[EVERYBODY], name=n, data=d) for n, d in self.federation.sites.items()
        }  # fmt: skip
        self.churn = self._known_churn or leaving_when_spent(self.study, self.sites)
        everybody = self._everybody()
        self.post, graph = Post(), self.study.graph()
        self.calendar = Calendar(self.churn, everybody, graph)
        self.ended: dict[str, int] = {}
        self.offices: dict[str, Office] = {}
        for name, site in self.sites.items():
            gate = Gate(accept_unproven=consents(self.study, site), site=name)
            self.offices[name] = Office(
                name, run, everybody, graph, self.churn, gate, self.post.open(name), journal,
                faults=Faults(self.faults, self._lose), counter=partial(_counter, site),
                shared=self.calendar, ended=self.ended, rest=site.rest,
                **exchange_rules(self.study, site),
            )  # fmt: skip
        for number in self.churn.changes(self.study.rounds):  # a graph that does not fit is noticed here
            there = self.calendar.at_work(number)
            for name in there[:MANY]:
                graph.column(number, there, name)
        there_when = [(n, self.calendar.at_work(n)) for n in self.churn.changes(self.study.rounds)]
        check_combiners(self.study, there_when, self.plan.sites if self.plan is not None else ())
        self.conspiracy: Conspiracy | None = None
        if self.plan is not None and self.plan.attack.colludes:
            self.conspiracy = Conspiracy(self.plan, lambda n: self.calendar.present(n) - self.lost)
        for name, mask in masks(self.plan, list(self.sites.values()), self.conspiracy).items():
            self.offices[name].disguise = mask
        self.clock = Clock()
        self.states: dict[str, Any] = {}
        self._changed: set[str] = set()
        self._held: dict[str, list[tuple[str, str, int]]] = {}
        """What waited in mailboxes when `changed` was last asked for."""
        self.late: dict[str, asyncio.Task[None]] = {}
        self.lost: set[str] = set()
        self.back: dict[str, asyncio.Event] = {}
        self.struck = asyncio.Event()

    def use(self, journal: Journal) -> None:
        """Let the sites tell this journal what they do."""
        self._hear_the_trainer(journal)
        for site in [*self.sites.values(), *self.judges.values()]:
            site.journal = journal
        for office in self.offices.values():
            office.journal = journal

    def _hear_the_trainer(self, journal: Journal) -> None:
        if isinstance(self.trainer, Cohort):
            self.trainer.tell = lambda text: journal.add(Event("notice", data={"text": text}))

    def see_through(self, journal: Journal, folder: Folder | None, again: bool) -> Run:
        """All rounds, from the first or from the last checkpoint."""
        first = self._restore(folder, journal) if again and folder is not None else 0
        watch = started(self, journal, again, first)
        with held_back():
            asyncio.run(self._all_rounds(first, journal, folder))
        return watch.finish(self, folder)

    async def _all_rounds(self, first: int, journal: Journal, folder: Folder | None) -> None:
        async with self.at_work():
            done = self.study.rounds
            for number in range(first, self.study.rounds):
                if self.stops_before(number, journal):
                    done = number
                    break
                self.announce(number, journal)
                await self.round(number)
                self.settle(number)
                self.evaluate(number)
                if folder is not None:
                    changed = self.changed(number)
                    if not self.lost:
                        content = self._content(number + 1, journal, folder.due(changed))
                        folder.checkpoint(number + 1, content, journal)
                        changed.clear()
            await self.finish(done)

    def stops_before(self, number: int, journal: Journal) -> bool:
        """Whether the study says that no further round is needed, and if so why."""
        if self.study.stop is None:  # nobody is asked, however many there are
            return False
        text = stop_text(self.clock, self.study.stop, number, self.at_rest(number - 1))
        if text:
            journal.add(Event("notice", None, number - 1, data={"text": text, "stopped": number}))
        return bool(text)

    def at_rest(self, number: int) -> list[str] | None:
        """Why the sites train no more, if all of them know after this round that nobody does; else None."""
        members = [
            s for n in self.calendar.members(number) if (s := self.sites.get(n)) and n not in self.lost
        ]
        return all_rest([site.rest for site in members], self.churn, number)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """While this is open, parcels find their way into the mailboxes."""
        others = [office for office in self.offices.values() if not office.open_door()]
        pumps = [asyncio.create_task(office.pump()) for office in others]
        try:
            yield
        finally:
            for task in [*pumps, *self.late.values()]:
                task.cancel()
            await asyncio.gather(*pumps, *self.late.values(), return_exceptions=True)

    def announce(self, number: int, journal: Journal) -> None:
        """Put down who is there in a round; where sites are drawn for it, who was drawn."""
        there, present = self.calendar.at_work(number), self.calendar.present(number)
        members = [n for n in there if n in self.sites]
        data = {
            "members": members,
            "present": [n for n in members if n in present],
            "epoch": self.calendar.epoch(number),
        }
        journal.add(Event("round-started", None, number, data=data))
        self._tell_changes(number, journal)

    async def round(self, number: int) -> None:
        """Let every site that is there take part."""
        if self.ended and number <= max(self.ended.values()):  # a round that is done again
            self.ended.clear()
        there = self.calendar.present(number)
        present = [n for n in self.calendar.at_work(number) if n in there and n in self.sites]
        tasks = {n: asyncio.create_task(self._take_part(n, number)) for n in present if n not in self.lost}
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
        for name in self.calendar.present(number) - self.lost:
            self.ended[name] = number
        for name in self.late:
            self.offices[name].mailbox.look_again()

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

    def _everybody(self) -> list[str]:
        return [EVERYBODY] if self.pools else self.names

    async def finish(self, done: int | None = None) -> None:
        """When all rounds are over (or `done`, where the study stops before), each site may train its own model to the end."""
        if done is not None and done % self.study.evaluation.every and done < self.study.rounds:
            self.evaluate(done - 1, due=True)
        if not (self.study.training.tune and isinstance(self.strategy, Finishes)):
            return
        last = self.study.rounds
        for name in [n for n in self.sites if n in self.states]:
            self.states[name] = await self.strategy.finish(self.states[name], self.sites[name].round(last))
        self.evaluate(last, fitted=True)

    async def _take_part(self, name: str, number: int) -> None:
        site = self.sites[name]
        if name not in self.states:
            self.states[name] = self.strategy.init(site.round(number))
        if site.rest is not None:
            site.rest.begin(spent=site.spent)
        self.states[name] = await self.strategy.round(
            self.states[name], site.round(number), self.offices[name].round(number)
        )

        if site.rest is not None:
            look_at_rest(site, self.strategy, self.states[name], number, self.calendar.hearing(number))

    async def _catch_up(self, name: str, number: int) -> None:
        """A site that was lost in the middle of a round finishes that round first."""
        await self.late.pop(name)
        await self._take_part(name, number)

    async def _lose(self, fault: Fault) -> None:
        """Stop a site here. The others no longer wait for it; its parcels so far are on their way."""
        self.lost.add(fault.site)
        self.struck.set()
        if self.conspiracy is not None:
            self.conspiracy.look_again()
        for name, office in self.offices.items():
            if name != fault.site:
                office.mailbox.gone(fault.site, fault.round)
        journal = self.sites[fault.site].journal
        text = f"lost at {fault.point}" + (" for good" if fault.forever else "")
        journal.add(Event("lost", fault.site, fault.round, data={"text": text}))
        revival = asyncio.Event()
        if not fault.forever:
            self.back[fault.site] = revival
        await revival.wait()

    def _revive(self, name: str) -> None:
        self.lost.discard(name)
        for office in self.offices.values():
            office.mailbox.back(name)
        self.back.pop(name).set()

    def _tell_changes(self, number: int, journal: Journal) -> None:
        churn = self.churn
        if churn.join or churn.leave:
            now, before = set(self.calendar.members(number)), set(self.calendar.members(number - 1))
            for name in self.sites if number else ():
                if name in now - before:
                    journal.add(Event("joined", name, number, data={"text": "joined"}))
                elif name in before - now:
                    journal.add(Event("left", name, number, data={"text": "left for good"}))
        if churn.absent or churn.probability:
            present, before = self.calendar.present(number), set(self.calendar.members(number - 1))
            for name in self.calendar.at_work(number):
                if name in self.sites and name not in present and (number == 0 or name in before):
                    journal.add(Event("absent", name, number, data={"text": "could not be reached"}))

    def models(self, name: str) -> dict[str, Model]:
        """The models that a site would use now."""
        state = self.states.get(EVERYBODY if self.pools else name)
        return {role: getattr(state, role) for role in self.strategy.deploys} if state is not None else {}

    def evaluate(self, number: int, fitted: bool = False, due: bool = False) -> None:
        """Measure the models of every site, where the study asks for it after this round."""
        for name, judge in self.judges.items() if due or self._evaluates(number) else ():
            state = self.states.get(EVERYBODY if self.pools else name)
            if state is not None:
                scores = judge.scores(predictors(self.strategy, state), fitted)
                judge.journal.add(Event("evaluated", name, number, Custody.PRIVATE, scores))

    def _evaluates(self, number: int) -> bool:
        """Whether the study asks for it after this round."""
        return (number + 1) % self.study.evaluation.every == 0 or number + 1 >= self.study.rounds

    def changed(self, number: int) -> set[str]:
        """The sites that are not what they were when this was last emptied; ask after every round.

        A site changes when it takes part, when it is evaluated, and when something comes into its mailbox.
        """
        if self.pools or self._evaluates(number):
            self._changed.update(self.sites)
        self._changed.update(n for n in self.calendar.present(number) if n in self.sites)
        held = {n: [p.id for p in found] for n, o in self.offices.items() if (found := o.mailbox.waiting())}
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

        def of(table: Mapping[str, Any]) -> Mapping[str, Any]:
            return table if names is None or self.pools else {n: table[n] for n in names if n in table}

        return {
            "states": of(self.states),
            "sites": {
                n: {
                    "memory": s.memory,
                    "ledger": s.ledger.entries(),
                    "spent": s.spent,
                    **({"rest": s.rest.state()} if s.rest is not None else {}),
                }
                for n, s in of(self.sites).items()
            },
            "offices": {
                n: {
                    "sequence": dict(o.sequence),
                    "caught_up": o.caught_up,
                    "waiting": o.mailbox.waiting(),
                    "counters": dict(o.counters),
                    **({"packing": dict(o.packing.memory)} if o.packing.memory else {}),
                }
                for n, o in of(self.offices).items()
            },
            "said": {n: judge.said.state() for n, judge in of(self.judges).items()},
        }

    def _records(self) -> dict[str, str]:
        """A mark of each site's records, so that a run does not go on with others; PRIVATE, like the checkpoint."""
        if not self._marks:
            self._marks = {n: _mark(d) for n, d in self.federation.sites.items()}
        return self._marks

    def _restore(self, folder: Folder, journal: Journal) -> int:
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
        self.put_back(found)
        self.clock = Clock(float(found.get("seconds", 0.0)))
        for name, site in self.sites.items():
            site.ledger.refuse_rollback(max(o.counters.get(name, 0) for o in self.offices.values()))
        return int(found["done"])

    def put_back(self, found: Mapping[str, Any]) -> None:
        """Bring the sites of this process back to where `parts` was taken."""
        self.states = dict(found["states"])
        for name, kept in found["sites"].items():
            site: Participant = self.sites[name]
            site.memory, site.spent = kept["memory"], kept["spent"]
            if site.rest is not None:
                site.rest.put_back(kept["rest"])
            site.ledger = site.ledger.restore(kept["ledger"], dataset=name, accountant=site.ledger.accountant)
        for name, kept in found["offices"].items():
            office = self.offices[name]
            office.sequence.update(kept["sequence"])
            office.caught_up = kept["caught_up"]
            office.counters.update(kept["counters"])
            office.packing.put_back(kept.get("packing", {}))
            for parcel in kept["waiting"]:
                assert isinstance(parcel, Parcel)
                office.mailbox.deliver(parcel)
        for name, kept in found.get("said", {}).items():
            data = self.judges[name].data
            tested = {"test": data.test, "common_test": data.common_test}
            self.judges[name].said.put_back(name, kept, tested)


def _counter(site: Participant) -> int:
    return site.ledger.counter


def predictors(strategy: Strategy, state: Any) -> Mapping[str, Predictor]:
    """For each role that is evaluated, the models that make its prediction."""
    if isinstance(strategy, Predicts):
        return strategy.predictors(state)
    return {role: ((1.0, getattr(state, role)),) for role in strategy.deploys}


def check_common_proxy(study: Study) -> None:
    """Private models may differ between sites; what is exchanged may not."""
    for name, own in study.models.sites.items():
        if "proxy" in own and own["proxy"] != study.models.proxy:
            raise StudyError(
                f"models.sites.{name}.proxy differs from models.proxy: the proxy is common to all sites;"
                " a site's own adaptation belongs into its private model"
            )
    if len({str(study.models.of(s, "private")) for s in study.models.sites}) and needs_equal(study):
        raise StudyError(
            f'strategy "{study.strategy_name}" averages the private architecture, which differs between sites;'
            ' use architecture = "proxy", or proxyfl'
        )


def check_device(device: str) -> None:
    """Whether PyTorch can compute there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StudyError(f'--device "{device}" cannot be used here: {reason[:160]}') from None


def needs_equal(study: Study) -> bool:
    """Whether the strategy sends models of the private architecture from site to site."""
    rule = study.rule()
    sends = getattr(rule, "topology", None) is not None
    return sends and getattr(rule, "architecture", "proxy") == "private"


def _mark(site: SiteData) -> str:
    digest = hashlib.sha256()
    for part in (site.train, site.validation, site.test):
        digest.update(f"{len(part)}\n".encode())
        if len(part):
            digest.update(fingerprints(part, 0).tobytes())
            digest.update(b"" if part.units is None else part.units.numpy().tobytes())
    return digest.hexdigest()


def _everybody(federation: Federation) -> SiteData:
    sites = list(federation.sites.values())
    train = concatenate([s.train for s in sites])
    return SiteData(
        EVERYBODY,
        train,
        concatenate([s.validation for s in sites]),
        concatenate([s.test for s in sites]),
        declared=declared_count(len(train)),
        common_test=sites[0].common_test,
    )
