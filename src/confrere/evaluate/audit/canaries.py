"""Orthogonal canaries: one run of the real training gives hundreds of nearly independent trials.

A guarantee holds for every data set and every network, so the attacker chooses both. The audited site holds
canaries, each along a feature of its own, and trains a linear proxy on them; a canary's gradient is therefore a
direction of its own in the space of parameters, clipped to the full norm. Each canary is in or out by its own fair
coin. What is the study's own: its strategy, its whole [privacy] section, its graph, its sites with their declared
sizes, and the code that samples, clips, adds noise, charges and admits.

Every tenth canary has echoes: pairs of ordinary records along the same feature, with both labels, that are always
in. A sound release treats them alike whether the canary is in or out; a proxy that learns from a model which was
trained without noise repeats through them what that model learned from the canary.

The attacker knows everything but the coins, the samples and the noise: all other records, the weights that each
training began with, and the rule of every step. It reads from each release the movement along each canary's
feature and combines all of them into one likelihood ratio per canary (evaluate/audit/audit_statistics.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import generator
from confrere.data.records import Federation, Records, of_one_site
from confrere.data.tasks import Task
from confrere.evaluate.audit.audit_statistics import Detected, Trials, detect
from confrere.evaluate.audit.effort import AuditEffort
from confrere.evaluate.audit.observed_simulation import ObservedRun, ObservedSimulation, ObservedTraining
from confrere.privacy.charges import Guarantee
from confrere.site.participant import Participant
from confrere.study import Models, Study, Training
from confrere.study.churn import Churn

ROUNDS = 2
"""At most this many rounds are run. Where the study states ε, the noise is calibrated for them by the same code as
always, so that they spend the study's whole ε."""

ECHOED = 10
"""One of this many canaries has echoes."""

PAIRS = 8
"""Pairs of echoes of such a canary."""

FAR = 1000.0
"""How many times further out than its echoes a canary lies: clipping must make it as harmless as any record."""

STEEP = 0.04
"""Rate of the plain descent of models that stay, in units of records over squared features: one step on a canary
changes for good what such a model says about the echoes, and pairs of echoes alone stay where they are."""

MOVE = 1e-6
"""How far a unit of noise moves a weight: so little that gradients stay what they were in the first step."""

EXPLAINED = 0.05
"""The part of a release, relative to what training moved, that its origin may leave unexplained."""

FEWEST_RUNS = 8

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class CanaryResult:
    """What was detected over all runs, what was claimed for them, and how many trials there were."""

    detected: Detected
    claimed: Guarantee | None
    canaries: int
    runs: int
    rounds: int
    releases: int
    """How many releases of one run the attacker used."""

    @property
    def trials(self) -> int:
        """One for each canary in each run; half of them choose the test, half are judged."""
        return self.canaries * self.runs


@dataclass(frozen=True)
class CanaryRecords:
    """The canaries, the records that are always there, and the sign of each canary's gradient."""

    canaries: Records
    others: Records
    sign: Tensor
    echoed: Tensor
    """Which canaries have echoes."""
    each: int
    """Records of one canary: with privacy per patient it is a patient with two records."""

    @property
    def size(self) -> int:
        return len(self.sign)

    def records(self, included: Tensor) -> Records:
        """The records of one run: the canaries that are in, and the others after them."""
        chosen = self.canaries.select(included.repeat_interleave(self.each).nonzero()[:, 0])
        return of_one_site([chosen, self.others])


def attack(
    study: Study,
    federation: Federation,
    site: str,
    effort: AuditEffort,
    *,
    confidence: float = 0.95,
    tick: Callable[[float], None] = lambda done: None,
) -> CanaryResult:
    """Train repeatedly, and guess from the releases which canaries were in."""
    plan = canary_study(study, federation, site, effort.canaries)
    observed = ObservedSimulation(
        plan, canary_federation(federation, effort.canaries), site, peers_train=False
    )
    canary_records = make_canary_records(plan, effort.canaries)
    began, number = time.perf_counter(), 0
    coins, movements = [], []
    reader: ReleaseReader | SumReader | None = None
    claimed = None
    while _continues(number, effort, time.perf_counter() - began):
        chance = generator(study.seed, "audit", "coins", number)
        included = torch.rand(effort.canaries, generator=chance) < 0.5
        run = observed.run_once(number, canary_records.records(included))
        reader = reader or (SumReader.of(run) if run.sums else ReleaseReader.of(run))
        if not reader.origins:
            raise StudyError(f'strategy "{study.strategy_name}" sends nothing: there is nothing to audit')
        coins.append(included.numpy())
        movements.append(reader.moved(run, canary_records))
        claimed, number = run.claimed, number + 1
        tick(number / effort.runs if effort.runs else (time.perf_counter() - began) / effort.seconds)
    assert reader is not None
    trials = _trials(observed.sites[site], reader, canary_records, np.stack(movements), np.stack(coins))
    delta = study.privacy.delta if study.privacy else 0.0
    found = detect(trials, delta=delta, confidence=confidence)
    return CanaryResult(found, claimed, effort.canaries, number, plan.rounds, len(reader.origins))


def _continues(done: int, effort: AuditEffort, passed: float) -> bool:
    if effort.runs is not None:
        return done < effort.runs
    return done < FEWEST_RUNS or passed < effort.seconds


def _trials(
    site: Participant,
    reader: ReleaseReader | SumReader,
    canaries: CanaryRecords,
    movements: Numbers,
    coins: NDArray[np.bool_],
) -> Trials:
    """What was observed, with the public facts of the mechanism that the test needs."""
    mechanism, noise = site.mechanism, None
    if mechanism is not None:
        effective = mechanism.clipping.effective_noise_multiplier
        noise = effective(mechanism.noise_multiplier, mechanism.expected_batch)
    kinds = {"echoed": canaries.echoed.numpy(), "plain": (~canaries.echoed).numpy()}
    return Trials(
        movements,
        coins,
        calls=[o.call for o in reader.origins],
        rate=1.0 if mechanism is None else float(mechanism.sampling.rate),
        steps=max(1, site.steps),
        noise=noise,
        kinds={name: which for name, which in kinds.items() if which.any()},  # few canaries have no echoes
    )


def canary_study(study: Study, federation: Federation, site: str, canaries: int) -> Study:
    """The study with the networks and optimisers that reveal most; neither is part of any guarantee.

    No site stops early: canaries move weights so little that every model would seem to have converged.
    """
    privacy, size = study.privacy, federation.sites[site].size
    rate = 1e-3
    if privacy is not None:
        batch = size if privacy.sampling == "full" else min(privacy.batch_size, size)
        rate = MOVE * batch / _norm(study)
    blank = {"name": "linear", "zeros": True}  # its initial outputs are known: zero
    records = canaries * (1 / 2 + 2 * PAIRS / ECHOED)
    return replace(
        study,
        rounds=min(study.rounds, ROUNDS),
        models=Models(blank, blank),
        training=Training(
            optimiser="sgd",
            learning_rate=STEEP * records / _near(study) ** 2,
            weight_decay=0.0,
            batch_size=1_000_000_000,
            protected={"optimiser": "sgd", "learning_rate": rate},
            tune=False,
        ),
        churn=Churn(),
        stop=None,
        variants={},
    )


def canary_federation(federation: Federation, canaries: int) -> Federation:
    """The same sites with the same declared sizes, and with as many features as there are canaries."""
    task = Task("binary", ("0", "1"), (canaries,))
    few = Records(torch.eye(4, canaries), torch.arange(4) % 2, torch.arange(4))
    sites = {
        name: replace(
            data, train=few, validation=few, test=few, common_test=None, notes=(), lacks={}
        )  # declared stays
        for name, data in federation.sites.items()
    }
    return replace(federation, task=task, sites=sites, schema=None, notes=())


def _norm(study: Study) -> float:
    return float(getattr(study.privacy.clipper(), "norm", 1.0)) if study.privacy else 1.0


def _near(study: Study) -> float:
    """How far out echoes lie: their gradients are about as long as the norm that they are clipped to, or longer."""
    return 2 * max(1.0, _norm(study))


def make_canary_records(study: Study, count: int) -> CanaryRecords:
    """Canaries with both labels in turn, and echoes of some of them."""
    by_patient = study.privacy is not None and study.privacy.unit == "patient"
    each = 2 if by_patient else 1
    near = _near(study)
    labels = torch.arange(count) % 2
    features = torch.eye(count)
    echoed = torch.arange(count) // 2 % ECHOED == ECHOED - 1  # of both labels
    echoes = near * features[echoed].repeat(2 * PAIRS, 1)
    answers = torch.arange(2 * PAIRS).repeat_interleave(int(echoed.sum())) % 2
    numbers = torch.arange(count).repeat_interleave(each)
    return CanaryRecords(
        Records(FAR * near * features[numbers], labels[numbers], numbers if by_patient else None),
        Records(echoes, answers, count + torch.arange(len(echoes)) if by_patient else None),
        torch.where(labels == 0, 1.0, -1.0),
        echoed,
        each,
    )


def _row(params: Params, count: int) -> Tensor:
    """The weights of the features in a linear model of one output."""
    return next(t for _, t in params.items() if t.numel() == count).reshape(-1)


@dataclass(frozen=True)
class ReleaseOrigin:
    """Where a release comes from: which training it shows, and how: release = kept·start + shown·(end − start)."""

    passed: int
    training: int
    call: int
    kept: float
    shown: float


@dataclass(frozen=True)
class ReleaseReader:
    """How the releases of a run show what its trainings did.

    Strategies send a trained model as it is, or stretched, or as a gradient. Which of them is a public fact, the same
    in all runs: it is read off the first.
    """

    origins: tuple[ReleaseOrigin, ...]

    @classmethod
    def of(cls, run: ObservedRun) -> ReleaseReader:
        found: dict[int, ReleaseOrigin] = {}
        for at, model in enumerate(run.released):
            origin = _origin(at, model, run.trained[: run.trainings_before[at]])
            if origin is not None:
                found.setdefault(origin.training, origin)  # a second look at the same noise shows nothing new
        return cls(tuple(found.values()))

    def moved(self, run: ObservedRun, canary_records: CanaryRecords) -> Numbers:
        """For each release, how far it moved down each canary's loss, but for a common factor."""
        rows = []
        for o in self.origins:
            if o.passed >= len(run.released) or o.training >= len(run.trained):
                raise StudyError("the number of releases differs from run to run: it depends on the records")
            start = _row(run.trained[o.training].start, canary_records.size).double()
            end = (
                _row(run.released[o.passed].params, canary_records.size).double() - o.kept * start
            ) / o.shown
            rows.append((-canary_records.sign.double() * end).numpy())
        return np.stack(rows) if rows else np.zeros((0, canary_records.size))


@dataclass(frozen=True)
class SumReader:
    """How the opened masked sums of a run show what one site put into them: as they are, less what colluding sites know."""

    origins: tuple[ReleaseOrigin, ...]

    @classmethod
    def of(cls, run: ObservedRun) -> SumReader:
        return cls(tuple(ReleaseOrigin(at, at, at, 0.0, 1.0) for at in range(len(run.sums))))

    def moved(self, run: ObservedRun, canary_records: CanaryRecords) -> Numbers:
        """For each sum, how far it lies against each canary's gradient."""
        if len(run.sums) != len(self.origins):
            raise StudyError("the number of opened sums differs from run to run")
        rows = [_row(found.params, canary_records.size).double() for found in run.sums]
        return np.stack([(canary_records.sign.double() * row).numpy() for row in rows])


def _origin(at: int, model: Model, trained: Sequence[ObservedTraining]) -> ReleaseOrigin | None:
    """The training that explains a release best, if any does."""
    best, chosen = EXPLAINED, None
    for number, training in enumerate(trained):
        if training.start.shapes != model.params.shapes:
            continue
        release, start = model.params.flatten().double(), training.start.flatten().double()
        moved = training.end.flatten().double() - start
        kept, shown = np.linalg.lstsq(np.stack([start, moved], 1), release, rcond=1e-12)[0].tolist()
        rest = float((release - kept * start - shown * moved).norm())
        error = rest / max(abs(shown) * float(moved.norm()), 1e-300)
        if error < best:
            best, chosen = error, ReleaseOrigin(at, number, training.call, kept, shown)
    return chosen
