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
from confrere.learning.evaluation import predict
from confrere.learning.local_training.one_site import Job, Trained, train_site
from confrere.learning.objectives import supervised_loss
from confrere.privacy.charges import Guarantee
from confrere.privacy.gate import Gate
from confrere.privacy.ledger import Ledger
from confrere.simulation.simulation import Simulation
from confrere.site.mailbox import Mailbox
from confrere.study import Study
from confrere.transport.memory import MemoryNetwork


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
class ObservedRun:
    """One run as an attacker sees it, and the PRIVATE models that no attacker sees."""

    released: tuple[Model, ...]
    """The models that passed the site's gate, in order."""
    trainings_before: tuple[int, ...]
    """For each released model, how many trainings were done when it left."""
    trained: tuple[ObservedTraining, ...]
    """All trainings of the site."""
    private_models: Mapping[str, Model]
    """The PRIVATE models, which stay at the site."""
    first_weights: Mapping[str, Params]
    """The weights of each role before its first step."""
    claimed: Guarantee | None

    def start(self, at: int) -> Params | None:
        """The start of the training that ended nearest to a model, of those that were done when it left."""
        model = self.released[at].params
        fits = [t for t in self.trained[: self.trainings_before[at]] if t.end.shapes == model.shapes]
        nearest = min(fits, key=lambda t: t.end.distance(model), default=None)
        return nearest.start if nearest else None


@dataclass(frozen=True)
class RecordingGate(Gate):
    """A gate that records each model it lets through, and how many trainings were done by then."""

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


class ReseededTrainer:
    """The plain trainer with different noise, sampling and order in each run, and the same initial weights.

    Without `peers_train` only the observed site trains: its peers belong to the attacker and keep their weights.
    """

    def __init__(self, peers_train: bool = True) -> None:
        self.peers_train = peers_train
        self.run_number = 0
        self.calls = 0
        self.observed = ""
        self.trained: list[ObservedTraining] = []
        self.first_weights: dict[str, Params] = {}

    async def run(self, job: Job) -> Trained:
        if job.site != self.observed and not self.peers_train:
            return Trained({role: job.weights[role] for role in job.objective}, job.memory)
        job = replace(job, seed=derive(job.seed, "audit", self.run_number))
        before = {r: job.weights[r] for r in job.objective} if job.site == self.observed else {}
        out = train_site(job)
        self.calls += 1
        self.trained += [ObservedTraining(self.calls, r, start, out.params[r]) for r, start in before.items()]
        self.first_weights = before | self.first_weights
        return out


class ObservedSimulation(Simulation):
    """A simulation that records what one site releases. It is assembled once and run many times."""

    def __init__(self, study: Study, federation: Federation, site: str, *, peers_train: bool = True) -> None:
        self.reseeded = ReseededTrainer(peers_train)
        super().__init__(study, federation, trainer=self.reseeded)
        if self.pools:
            raise StudyError(
                f'strategy "{study.strategy_name}" pools all records in one place: there is no gate to attack'
            )
        self.prepare()
        self.site, self.reseeded.observed = site, site
        peers = self.peers[site]
        self.recording_gate = RecordingGate(
            peers.gate.accept_unproven, peers.gate.limits, site, trained=self.reseeded.trained
        )
        peers.gate = self.recording_gate

    def run_once(self, number: int, records: Records | None = None, *, finish: bool = False) -> ObservedRun:
        """Run the study once with these training records at the observed site.

        With `finish` the site also trains its own model to completion, as it would before using it. Its declared size
        does not change: it is public, and the same for neighbouring data sets.
        """
        site = self.sites[self.site]
        if records is not None:
            site.data = replace(site.data, train=records)
        self._reset()
        self.reseeded.run_number = number
        asyncio.run(self._run_rounds(self.study.rounds, finish))
        states = self.models(self.site)
        private_models = {r: m for r, m in states.items() if not may_leave(m.custody, consent=True)}
        return ObservedRun(
            tuple(model for model, _ in self.recording_gate.passed),
            tuple(before for _, before in self.recording_gate.passed),
            tuple(self.reseeded.trained),
            private_models,
            dict(self.reseeded.first_weights),
            site.guarantee(),
        )

    def losses(self, model: Model, records: Records) -> Tensor:
        """A model's loss on each record."""
        network = self.sites[self.site].network("audit", model.architecture)
        network.load(model.params)
        targets = records.targets.double() if records.targets.is_floating_point() else records.targets
        return supervised_loss(predict(network.module, records.inputs).double(), targets)

    async def _run_rounds(self, rounds: int, finish: bool) -> None:
        async with self.delivering():
            for number in range(rounds):
                passed = len(self.recording_gate.passed)
                await self.round(number)
                self.settle(number)
                if len(self.recording_gate.passed) == passed:
                    self._release_protected()
            if finish:
                await self.runs[self.site].finish()

    def _release_protected(self) -> None:
        """Pass the PROTECTED models through the gate, for a strategy that sends nothing."""
        for model in self.models(self.site).values():
            if model.custody is Custody.PROTECTED:
                self.recording_gate.admit(model)

    def _reset(self) -> None:
        """Discard the states, ledgers and parcels of the previous run."""
        network, journal = MemoryNetwork(), Journal(None)
        for name, peers in self.peers.items():
            peers.transport, peers.mailbox, peers.journal = network.open(name), Mailbox(), journal
            peers.sequence, peers.caught_up, peers.attended = defaultdict(int), -1, -1
        for site in self.sites.values():
            site.memory, site.spent, site.journal = {}, False, journal
            site.trainings.clear()
            site.ledger = Ledger(dataset=site.name, accountant=site.ledger.accountant)
        for run in self.runs.values():
            run.state = None
        self.late, self.lost, self.back = {}, set(), {}
        self.recording_gate.passed.clear()
        self.reseeded.trained.clear()
        self.reseeded.first_weights, self.reseeded.calls = {}, 0


def largest(federation: Federation) -> str:
    """The site with the largest public size."""
    return max(federation.sites, key=lambda name: (federation.sites[name].size, name))


def most_exposed(federation: Federation) -> str:
    """The site with the smallest public size: there, one record weighs most."""
    return min(federation.sites, key=lambda name: (federation.sites[name].size, name))
