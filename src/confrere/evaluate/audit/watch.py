"""Run the real training repeatedly with a gate that records what one site releases."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from confrere.core.custody import Custody, Scalar, may_leave
from confrere.core.errors import StudyError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.data.records import Federation, Records
from confrere.learning.engine.one import Job, Trained, work
from confrere.learning.evaluation import predict
from confrere.learning.objectives import supervised_loss
from confrere.privacy.accounting import Guarantee
from confrere.privacy.gate import Gate
from confrere.privacy.ledger import Ledger
from confrere.simulation.simulation import Simulation
from confrere.site.mailbox import Mailbox
from confrere.study import Study
from confrere.transport.memory import Post


@dataclass(frozen=True)
class ObservedTraining:
    """One role of one call of the site's `train`: where it started and where it ended.

    The start is a function of what was exchanged before, so an attacker knows it; the end is known only as far as
    it is released.
    """

    call: int
    role: str
    start: Params
    end: Params


@dataclass(frozen=True)
class Seen:
    """One run as an attacker sees it.

    `left` are the models that passed the site's gate, in order; `trained` are all trainings of the site, and `before`
    says for each model how many of these were done when it left.
    `inside` are the PRIVATE models, which stayed: no attacker sees them.
    """

    left: tuple[Model, ...]
    before: tuple[int, ...]
    trained: tuple[ObservedTraining, ...]
    inside: Mapping[str, Model]
    began: Mapping[str, Params]
    """What each model that stayed was in its very first step."""
    claimed: Guarantee | None

    def start(self, at: int) -> Params | None:
        """The start of the training that ended nearest to a model, of those that were done when it left."""
        model = self.left[at].params
        fits = [t for t in self.trained[: self.before[at]] if t.end.shapes == model.shapes]
        nearest = min(fits, key=lambda t: t.end.distance(model), default=None)
        return nearest.start if nearest else None


@dataclass(frozen=True)
class RecordingGate(Gate):
    """A gate that keeps a copy of what it let through, and how many trainings were done by then."""

    trained: list[ObservedTraining] = field(default_factory=list)
    passed: list[tuple[Model, int]] = field(default_factory=list)

    def admit(
        self, model: Model | None, scalars: Mapping[str, Scalar] | None = None, *, round: int | None = None
    ) -> tuple[Model | None, Mapping[str, Scalar]]:
        out = super().admit(model, scalars, round=round)
        left = out[0]
        if left is not None and not (self.passed and self.passed[-1][0] is left):
            self.passed.append((left, len(self.trained)))
        return out


class Reseeded:
    """The plain trainer with other noise, sampling and order in each run; weights start alike in all.

    Unless `peers_train`, only the watched site trains: its peers are the attacker's and keep the weights they have.
    """

    def __init__(self, peers_train: bool = True) -> None:
        self.peers_train = peers_train
        self.run_number = 0
        self.calls = 0
        self.watched = ""
        self.trained: list[ObservedTraining] = []
        self.began: dict[str, Params] = {}

    async def run(self, job: Job) -> Trained:
        if job.site != self.watched and not self.peers_train:
            return Trained({role: job.weights[role] for role in job.objective}, job.memory)
        job = replace(job, seed=derive(job.seed, "audit", self.run_number))
        before = {r: job.weights[r] for r in job.objective} if job.site == self.watched else {}
        out = work(job)
        self.calls += 1
        self.trained += [ObservedTraining(self.calls, r, start, out.params[r]) for r, start in before.items()]
        self.began = before | self.began
        return out


class Watched(Simulation):
    """A study of which one site is watched. It is assembled once and run many times."""

    def __init__(self, study: Study, federation: Federation, site: str, *, peers_train: bool = True) -> None:
        self.chance = Reseeded(peers_train)
        super().__init__(study, federation, trainer=self.chance)
        if self.pools:
            raise StudyError(
                f'strategy "{study.strategy_name}" puts all records in one place: there is no gate to listen'
                " at"
            )
        self.prepare()
        self.site, self.chance.watched = site, site
        peers = self.peers[site]
        self.tap = RecordingGate(
            peers.gate.accept_unproven, peers.gate.limits, site, trained=self.chance.trained
        )
        peers.gate = self.tap

    def play(self, number: int, records: Records | None = None, *, finish: bool = False) -> Seen:
        """A run with these training records at the site that is watched.

        With `finish` that site also trains its own model to the end, as it would before using it.

        What the site declares stays what it was: that is public, and no neighbour changes it.
        """
        site = self.sites[self.site]
        if records is not None:
            site.data = replace(site.data, train=records)
        self._afresh()
        self.chance.run_number = number
        asyncio.run(self._play(self.study.rounds, finish))
        states = self.models(self.site)
        inside = {r: m for r, m in states.items() if not may_leave(m.custody, consent=True)}
        return Seen(
            tuple(model for model, _ in self.tap.passed),
            tuple(before for _, before in self.tap.passed),
            tuple(self.chance.trained),
            inside,
            dict(self.chance.began),
            site.guarantee(),
        )

    def outputs(self, model: Model | Params, inputs: Tensor, like: str = "") -> Tensor:
        """What a model says about records."""
        params = model.params if isinstance(model, Model) else model
        name = model.architecture if isinstance(model, Model) else like
        network = self.sites[self.site].network("audit", name)
        network.load(params)
        return predict(network.module, inputs).double()

    def losses(self, model: Model | Params, records: Records, like: str = "") -> Tensor:
        """A model's loss on each record."""
        targets = records.targets.double() if records.targets.is_floating_point() else records.targets
        return supervised_loss(self.outputs(model, records.inputs, like), targets)

    async def _play(self, rounds: int, finish: bool) -> None:
        async with self.at_work():
            for number in range(rounds):
                passed = len(self.tap.passed)
                await self.round(number)
                self.settle(number)
                if len(self.tap.passed) == passed:
                    self._offer()
            if finish:
                await self.runs[self.site].finish()

    def _offer(self) -> None:
        """Take to the gate what a strategy that sends nothing may hand out: its PROTECTED models."""
        for model in self.models(self.site).values():
            if model.custody is Custody.PROTECTED:
                self.tap.admit(model)

    def _afresh(self) -> None:
        """Forget the run before: states, ledgers, letters."""
        post, journal = Post(), Journal(None)
        for name, peers in self.peers.items():
            peers.transport, peers.mailbox, peers.journal = post.open(name), Mailbox(), journal
            peers.sequence, peers.caught_up, peers.attended = defaultdict(int), -1, -1
        for site in self.sites.values():
            site.memory, site.spent, site.journal = {}, False, journal
            site.trainings.clear()
            site.ledger = Ledger(dataset=site.name, accountant=site.ledger.accountant)
        for run in self.runs.values():
            run.state = None
        self.late, self.lost, self.back = {}, set(), {}
        self.tap.passed.clear()
        self.chance.trained.clear()
        self.chance.began, self.chance.calls = {}, 0


def largest(federation: Federation) -> str:
    """The site with the largest public size."""
    return max(federation.sites, key=lambda name: (federation.sites[name].size, name))


def most_exposed(federation: Federation) -> str:
    """The site with the smallest public size: there, one record weighs most."""
    return min(federation.sites, key=lambda name: (federation.sites[name].size, name))
