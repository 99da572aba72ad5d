"""An attacker's seat: the real training, run again and again, with an ear at the gate of one site."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from confrere.core.custody import Custody, Scalar
from confrere.core.errors import StudyError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Finishes
from confrere.core.seeds import derive
from confrere.data.records import Federation, Records
from confrere.learning.engine import Job, Trained, work
from confrere.learning.evaluate import predict
from confrere.learning.objectives import supervised_loss
from confrere.privacy.accounting import Guarantee
from confrere.privacy.gate import Gate
from confrere.privacy.ledger import Ledger
from confrere.runtime.mailbox import Mailbox
from confrere.runtime.simulate import Simulation
from confrere.study import Study
from confrere.transport.memory import Post


@dataclass(frozen=True)
class Seen:
    """One run as an attacker sees it.

    `left` are the models that passed the site's gate, in order; `start` has for each of them the weights that
    its training began with, where these are known: fresh ones, or a function of what was exchanged before.
    `inside` are the PRIVATE models, which stayed: no attacker sees them.
    """

    left: tuple[Model, ...]
    start: tuple[Params | None, ...]
    inside: Mapping[str, Model]
    began: Mapping[str, Params]
    """What each model that stayed was in its very first step."""
    claimed: Guarantee | None


@dataclass(frozen=True)
class Tap(Gate):
    """A gate that keeps a copy of what it let through, and what its training had begun with."""

    trained: list[tuple[str, Params, Params]] = field(default_factory=list)
    passed: list[tuple[Model, Params | None]] = field(default_factory=list)

    def admit(
        self, model: Model | None, scalars: Mapping[str, Scalar] | None = None, *, round: int | None = None
    ) -> tuple[Model | None, Mapping[str, Scalar]]:
        out = super().admit(model, scalars, round=round)
        left = out[0]
        if left is not None and not (self.passed and self.passed[-1][0] is left):
            self.passed.append((left, self._begun(left)))
        return out

    def _begun(self, model: Model) -> Params | None:
        """The start of the training since the last release that ended nearest to this model."""
        fits = [t for t in self.trained if t[2].shapes == model.params.shapes]
        nearest = min(fits, key=lambda t: t[2].distance(model.params), default=None)
        self.trained.clear()
        return nearest[1] if nearest else None


class Reseeded:
    """The plain trainer with other noise, sampling and order in each run; weights start alike in all."""

    def __init__(self) -> None:
        self.run_number = 0
        self.watched = ""
        self.trained: list[tuple[str, Params, Params]] = []
        self.began: dict[str, Params] = {}

    async def run(self, job: Job) -> Trained:
        job = replace(job, seed=derive(job.seed, "audit", self.run_number))
        before = {r: job.weights[r] for r in job.objective} if job.site == self.watched else {}
        out = work(job)
        self.trained += [(role, start, out.params[role]) for role, start in before.items()]
        self.began = before | self.began
        return out


class Watched(Simulation):
    """A study of which one site is listened to. It is put together once and run many times."""

    def __init__(self, study: Study, federation: Federation, site: str) -> None:
        self.chance = Reseeded()
        super().__init__(study, federation, trainer=self.chance)
        if self.pools:
            raise StudyError(
                f'strategy "{study.strategy_name}" puts all records in one place: there is no gate to listen'
                " at"
            )
        self.prepare()
        self.site, self.chance.watched = site, site
        office = self.offices[site]
        self.tap = Tap(office.gate.accept_unproven, office.gate.limits, site, trained=self.chance.trained)
        office.gate = self.tap

    def play(
        self, number: int, records: Records | None = None, *, rounds: int | None = None, finish: bool = False
    ) -> Seen:
        """A run, or its first rounds, with these training records at the site that is listened to.

        With `finish` that site also trains its own model to the end, as it would before using it.

        What the site declares stays what it was: that is public, and no neighbour changes it.
        """
        site = self.sites[self.site]
        if records is not None:
            site.data = replace(site.data, train=records)
        self._afresh()
        self.chance.run_number = number
        asyncio.run(self._play(rounds or self.study.rounds, finish))
        states = self.models(self.site)
        inside = {r: m for r, m in states.items() if m.custody == Custody.PRIVATE}
        left, start = [m for m, _ in self.tap.passed], [p for _, p in self.tap.passed]
        return Seen(tuple(left), tuple(start), inside, dict(self.chance.began), site.guarantee())

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
                await self.round(number)
                self.settle(number)
            if finish and self.study.training.tune and isinstance(self.strategy, Finishes):
                state, site = self.states[self.site], self.sites[self.site].round(rounds)
                self.states[self.site] = await self.strategy.finish(state, site)

    def _afresh(self) -> None:
        """Forget the run before: states, ledgers, letters."""
        post, journal = Post(), Journal(None)
        for name, office in self.offices.items():
            office.transport, office.mailbox, office.journal = post.open(name), Mailbox(), journal
            office.sequence, office.caught_up = defaultdict(int), -1
        for site in self.sites.values():
            site.memory, site.spent, site.journal = {}, False, journal
            site.ledger = Ledger(dataset=site.name, accountant=site.ledger.accountant)
        self.states, self.late, self.lost, self.back = {}, {}, set(), {}
        self.tap.passed.clear()
        self.chance.trained.clear()
        self.chance.began = {}


def largest(federation: Federation) -> str:
    """The site with the most declared records."""
    return max(federation.sites, key=lambda name: (federation.sites[name].declared, name))


def most_exposed(federation: Federation) -> str:
    """The site with the fewest declared records: there, one record weighs most."""
    return min(federation.sites, key=lambda name: (federation.sites[name].declared, name))


def added(records: Records, inputs: Tensor, targets: Tensor) -> Records:
    """The records with some more at the end, each a patient of its own."""
    units = records.units
    if units is not None:
        first = int(units.max()) + 1 if len(units) else 0
        units = torch.cat([units, first + torch.arange(len(inputs))])
    return Records(torch.cat([records.inputs, inputs]), torch.cat([records.targets, targets]), units)
