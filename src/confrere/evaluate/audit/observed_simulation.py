"""Run the real training repeatedly, and record what passes the gate of one site."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from confrere.core.custody import Custody, may_leave
from confrere.core.errors import StudyError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.data.records import Federation, Records
from confrere.evaluate.audit.colluding_sites import ColludingSites
from confrere.learning.evaluation import predict
from confrere.learning.local_training.one_site import Job, Trained, train_site
from confrere.learning.objectives import supervised_loss
from confrere.privacy.charges import Guarantee
from confrere.privacy.ledger import Ledger
from confrere.simulation.simulation import Simulation
from confrere.site.peers import OutgoingHook
from confrere.study import Study
from confrere.study.masked_settings import masked_of


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
    sums: tuple[Model, ...] = ()
    """Of masked sums: what colluding sites know of each, once they have taken off their own vectors."""

    def start(self, at: int) -> Params | None:
        """The start of the training that ended nearest to a model, of those that were done when it left."""
        model = self.released[at].params
        fits = [t for t in self.trained[: self.trainings_before[at]] if t.end.shapes == model.shapes]
        nearest = min(fits, key=lambda t: t.end.distance(model), default=None)
        return nearest.start if nearest else None


@dataclass
class ReleaseTap:
    """Records each model that has passed the gate of the observed site, and how many trainings were done by then."""

    trained: Sequence[ObservedTraining]
    hook: OutgoingHook | None = None
    """What forges or records models at the site, where the study rehearses an attack."""
    passed: list[tuple[Model, int]] = field(default_factory=list)

    async def leaving(self, model: Model | None, round: int) -> Model | None:
        if self.hook is not None:
            model = await self.hook.leaving(model, round)
        if model is not None:
            self.record(model)
        return model

    def record(self, model: Model) -> None:
        """Add a model, unless it is the one that left last."""
        if not (self.passed and self.passed[-1][0] is model):
            self.passed.append((model, len(self.trained)))


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
        if job.site != self.observed and not self.peers_train and job.private.keeps_sums:
            job = replace(
                job, records=job.records.select([])
            )  # what the attacker knows to be in the sum is left out
        elif job.site != self.observed and not self.peers_train:
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
        self.tap = ReleaseTap(self.reseeded.trained, self.peers[site].outgoing)
        self.peers[site].outgoing = self.tap
        settings = masked_of(study)
        least = 0 if settings is None else settings.colluding + settings.dropouts
        self.against = ColludingSites(site, tuple(sorted(set(self.sites) - {site})[:least]))
        self.run_ids = {name: found.run for name, found in self.sites.items()}
        self._to_completion, self._passed_before = False, 0

    def run_once(self, number: int, records: Records | None = None, *, finish: bool = False) -> ObservedRun:
        """Run the study once with these training records at the observed site.

        With `finish` the site also trains its own model to completion, as it would before using it. Its declared size
        does not change: it is public, and the same for neighbouring data sets.
        """
        site = self.sites[self.site]
        if records is not None:
            site.data = replace(site.data, train=records)
        self._restart(number, journal := Journal(None))
        self._to_completion = finish
        asyncio.run(self.go_through_rounds(0, journal))
        states = self.models(self.site)
        private_models = {r: m for r, m in states.items() if not may_leave(m.custody, consent=True)}
        return ObservedRun(
            tuple(model for model, _ in self.tap.passed),
            tuple(before for _, before in self.tap.passed),
            tuple(self.reseeded.trained),
            private_models,
            dict(self.reseeded.first_weights),
            site.guarantee(),
            tuple(self.against.sums),
        )

    def losses(self, model: Model, records: Records) -> Tensor:
        """A model's loss on each record."""
        network = self.sites[self.site].network("audit", model.architecture)
        network.load(model.params)
        targets = records.targets.double() if records.targets.is_floating_point() else records.targets
        return supervised_loss(predict(network.module, records.inputs).double(), targets)

    def settle(self, number: int) -> None:
        """A round is over; a strategy that has sent nothing in it would release the PROTECTED models of the site."""
        super().settle(number)
        if len(self.tap.passed) == self._passed_before:
            for model in self.models(self.site).values():
                if model.custody is Custody.PROTECTED:
                    self.peers[self.site].gate.admit(model)
                    self.tap.record(model)
        self._passed_before = len(self.tap.passed)

    def evaluate(self, number: int, stops: bool = False) -> None:
        """Measure nothing: no attack reads metrics, they change nothing that leaves, and audits would take half as long again."""

    async def finish(self, done: int | None = None) -> None:
        """Train the model of the observed site to completion, if it is attacked; no other site's model is."""
        if self._to_completion:
            await self.runs[self.site].finish()

    def _restart(self, number: int, journal: Journal) -> None:
        """Begin another run of this number; charges of previous runs do not count towards it."""
        self.reset()
        self.use(journal)
        for name, site in self.sites.items():
            site.ledger = Ledger(dataset=name, accountant=site.ledger.accountant)
            site.share_hook = self.against
            site.run = f"{self.run_ids[name]}, audit {number}"  # masked noise is drawn by it
            self.peers[name].counters.clear()
        self.tap.passed.clear()
        self.against.restart()
        self._passed_before = 0
        self.reseeded.trained.clear()
        self.reseeded.first_weights, self.reseeded.calls, self.reseeded.run_number = {}, 0, number


def largest(federation: Federation) -> str:
    """The site with the largest public size."""
    return max(federation.sites, key=lambda name: (federation.sites[name].size, name))


def most_exposed(federation: Federation) -> str:
    """The site with the smallest public size: there, one record weighs most."""
    return min(federation.sites, key=lambda name: (federation.sites[name].size, name))
