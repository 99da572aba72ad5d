"""The training loop of one site: private and ordinary models side by side.

Protected models draw their batches from `privacy.charged_steps`, each model its own. With Poisson sampling the others learn
from the batches of the first protected one, as ProxyFL has it. With full batches the protected models make their few
private steps first; the others then go through the records in shuffled batches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from confrere.core.errors import ConfrereError, TrainingError
from confrere.core.params import Params
from confrere.core.protocols import Loss, Objective, Optimiser, Proximal
from confrere.core.seeds import derive, generator
from confrere.data.records import Records
from confrere.learning.networks.network import Network, StepGuard
from confrere.privacy.charged_steps import Draw, PrivateSteps
from confrere.privacy.clipping import clipped_sum
from confrere.privacy.gradients import Recorder
from confrere.privacy.noise import Randomness, Seeded
from confrere.privacy.sampling import Patients

Memory = dict[str, dict[str, dict[str, Tensor]]]


def failure_reason(error: Exception) -> str:
    """Why a network or loss failed on a site's own records, in a line.

    Custom code may raise anything. Errors of this package pass through: a spent budget, a breach of custody or a study
    that cannot be carried out are no failure of a model. A loss that is not finite is one.
    """
    if isinstance(error, TrainingError):
        return str(error)
    if isinstance(error, ConfrereError):
        raise error
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class Job:
    """One site's round of training."""

    site: str
    records: Records
    objective: Objective
    networks: Mapping[str, Network]
    anchors: Mapping[str, Params]
    private: PrivateSteps
    """How the protected roles are trained: what was charged for this job, and nothing beyond it."""
    optimisers: Mapping[str, Optimiser]
    memory: Memory
    batch_size: int
    epochs: int
    seed: int
    device: str = "cpu"
    run: str = ""
    """Which run this is: two studies with one seed on the same records must not share their noise."""
    randomness: Randomness | None = None
    """Where noise and sampling come from; None is the reproducible source of a simulation."""
    weights: Mapping[str, Params] = field(default_factory=dict)
    """What the networks start from; a role that is not named starts from what its network holds."""
    expendable: frozenset[str] = frozenset()
    """Roles without noise whose failure stays inside the site: they keep what they started with, the others go on."""

    def noise_source(self) -> Randomness:
        """Where noise and sampling of this job come from."""
        return self.randomness or Seeded(derive(self.seed, "noise", *([self.run] if self.run else [])))


@dataclass
class Trained:
    """What a job leaves: new weights, what stays at the site, and PRIVATE facts about it."""

    params: dict[str, Params] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    notices: list[str] = field(default_factory=list)


class Trainer(Protocol):
    """Carries out jobs: one at a time, or those of many sites together."""

    async def run(self, job: Job) -> Trained: ...


class OneAtATime:
    """The plain trainer: a job is done when it is handed in."""

    async def run(self, job: Job) -> Trained:
        return train_site(job)


def train_site(job: Job) -> Trained:
    """Do one job."""
    for role, params in job.weights.items():
        job.networks[role].load(params)
    training = _Training(job)
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global source
        _seed_dropout(job)
        batches = job.private.batches(job.objective)
        objectives = [{r: job.objective[r] for r in batch} for batch in batches]
        leaders = [next(r for r in batch if r in job.private) for batch in batches]
        for draw in job.private.draw(training.units(), training.randomness):
            rows = [draw.rows[role] for role in leaders]
            training.step(list(zip(objectives, rows, strict=True)), draw)
        free = {r: loss for r, loss in job.objective.items() if not any(r in b for b in batches)}
        if free:
            try:
                for batch in training.shuffled_batches():
                    training.step([(free, batch)])
            except Exception as error:
                reason = failure_reason(error)
                if not job.expendable.issuperset(free):
                    raise
                for role in free:
                    training.fail(role, f'the training of "{role}" failed: {reason}')
    return training.finish()


def _seed_dropout(job: Job) -> None:
    if job.device == "cpu":
        torch.default_generator.manual_seed(_dropout_seed(job))  # torch.manual_seed is 400 times as slow
    else:
        torch.manual_seed(_dropout_seed(job))


def _dropout_seed(job: Job) -> int:
    """Where dropout starts: from the study's seed in a simulation, from the secure source where there is one.

    Which weights a record meets depends on its place in the batch, so an additional record moves those of all others.
    That is covered by the guarantee only as long as the draws are unknown.
    """
    if job.randomness is None or not job.randomness.secure:
        return derive(job.seed, "dropout")
    return int(float(job.randomness.uniform(1)) * 2**53)


@dataclass(frozen=True)
class _Batch:
    """The records of one step."""

    rows: Tensor
    inputs: Tensor
    targets: Tensor


class _Training:
    """One job while it is being done."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.inputs = job.records.inputs.to(job.device)
        self.targets = job.records.targets.to(job.device)
        by_patient = any(m.unit == "patient" for m in job.private.mechanisms.values())
        self.patients: Patients | None = None
        if by_patient and job.records.units is not None:
            self.patients = Patients(job.records.units.tolist())
        self.randomness = job.noise_source()
        self.out = Trained(memory={r: {k: dict(v) for k, v in m.items()} for r, m in job.memory.items()})
        self.sums: dict[str, tuple[Tensor, int]] = {}
        self.failed: set[str] = set()
        self.recorders: dict[str, Recorder] = {}
        self.guards: dict[str, StepGuard] = {}
        self.anchors: dict[str, Tensor] = {}
        for network in job.networks.values():
            network.module.train()  # before a recorder looks at it: some layers mix records only in training
        for role, loss in job.objective.items():
            network = job.networks[role]
            memory = self.out.memory.setdefault(role, {})
            if "optimiser" not in memory:
                memory["optimiser"] = job.optimisers[role].start(network.flat.numel())
            else:
                memory["optimiser"] = {k: v.clone() for k, v in memory["optimiser"].items()}
            if role in job.private:
                recorder = self.recorders[role] = network.recorder
                self.guards[role] = StepGuard(network, role)
                if "clipping" not in memory:
                    memory["clipping"] = dict(job.private.mechanisms[role].clipping.start(recorder.layout))
                self.out.notices += [n for n in recorder.notices if n not in self.out.notices]
            if isinstance(loss, Proximal):
                pulled = job.anchors[loss.anchor]
                trained = [pulled[name].reshape(-1) for name in network.trainable(network.flat)]
                self.anchors[role] = torch.cat(trained).to(job.device)
        self.normalising = frozenset(role for role, network in job.networks.items() if network.normalises)
        """Networks that cannot be trained on a record alone."""

    def units(self) -> int | Patients:
        """What samples are drawn from."""
        return self.patients if self.patients is not None else len(self.targets)

    def shuffled_batches(self) -> Iterator[Tensor]:
        order = generator(self.job.seed, "order")
        size = self.job.batch_size
        normalises = not self.normalising.isdisjoint(self.job.objective)
        for _ in range(self.job.epochs):
            rows = torch.randperm(len(self.targets), generator=order)
            batches = [rows[i : i + size] for i in range(0, len(rows), size)]
            if normalises and batches and len(batches[-1]) == 1:  # a record alone cannot be normalised
                batches[-2:] = [torch.cat(batches[-2:])] if len(batches) > 1 else []
            yield from batches

    def step(self, batches: Sequence[tuple[Objective, Tensor]], draw: Draw | None = None) -> None:
        """One step of every model, each on the rows of its batch, all of them computed before any is moved."""
        job = self.job
        moves: dict[str, Tensor] = {}
        for objective, rows in batches:
            going_on = {r: loss for r, loss in objective.items() if r not in self.failed}
            self._compute(going_on if self.failed else objective, rows, draw, moves)
        for role in self.guards:
            self.guards[role].check_weights()
        for role, gradient in moves.items():
            flat, loss = job.networks[role].flat, job.objective[role]
            if role in self.anchors and isinstance(loss, Proximal):
                gradient = gradient + loss.pull * (flat - self.anchors[role])
            job.optimisers[role].update(flat, gradient, self.out.memory[role]["optimiser"])
            if role in self.guards:
                self.guards[role].stepped()

    def _compute(
        self, objective: Objective, rows: Tensor, draw: Draw | None, moves: dict[str, Tensor]
    ) -> None:
        """The gradient of every model of a batch; without noise, a model has none where there are no records.

        A network that normalises batches has none for a record alone either, and is read with its running statistics.
        """
        job = self.job
        batch = _Batch(rows, self.inputs[rows], self.targets[rows])
        outputs: dict[str, Tensor] = {}
        alone = self.normalising if len(rows) == 1 else frozenset()
        if len(rows):
            for role in objective:
                if role not in job.private and role not in alone:
                    with self._guarded(role):
                        outputs[role] = job.networks[role].module(batch.inputs)
            for other in sorted({o for loss in objective.values() for o in loss.reads} - set(outputs)):
                readers = [r for r, loss in objective.items() if other in loss.reads and r not in self.failed]
                if readers:
                    with self._guarded(*readers), torch.no_grad():
                        outputs[other] = _outputs(
                            job.networks[other], batch.inputs, by_running_statistics=other in alone
                        )
        for role, loss in objective.items():
            if role in self.failed:
                continue
            others = {o: outputs[o].detach() for o in loss.reads} if len(rows) else {}
            if role in job.private:
                assert draw is not None
                moves[role] = self._private_gradient(role, loss, batch, others, draw)
            elif len(rows) and role not in alone:
                with self._guarded(role):
                    values = loss(outputs[role], others, batch.targets)
                    if self._note(role, values):
                        moves[role] = job.networks[role].backward(values.mean())

    @contextmanager
    def _guarded(self, *roles: str) -> Iterator[None]:
        """Keep an error that a site's records cause in expendable roles from stopping the others."""
        try:
            yield
        except Exception as error:
            reason = failure_reason(error)
            if not self.job.expendable.issuperset(roles):
                if isinstance(error, TrainingError):
                    raise
                names = '" and "'.join(roles)
                raise TrainingError(
                    f'site "{self.job.site}": the training of "{names}" failed: {reason}'
                ) from error
            for role in roles:
                self.fail(role, f'the training of "{role}" failed: {reason}')

    def _private_gradient(
        self, role: str, loss: Loss, batch: _Batch, others: Mapping[str, Tensor], draw: Draw
    ) -> Tensor:
        mechanism = self.job.private.mechanisms[role]
        memory = self.out.memory[role]

        def losses_of(outputs: Tensor, part: slice | Tensor) -> Tensor:
            values = loss(outputs, {o: t[part] for o, t in others.items()}, batch.targets[part])
            self._note(role, values, strict=False)
            return values

        patients = self.patients if mechanism.unit == "patient" else None
        units = None if patients is None else patients.of(batch.rows)
        clipped = clipped_sum(
            self.recorders[role], (batch.inputs,), losses_of, mechanism.clipping, memory["clipping"], units
        )
        release = draw.release(role, clipped, memory["clipping"])
        memory["clipping"] = dict(release.state)
        self.out.dropped += release.dropped
        return release.gradient

    def fail(self, role: str, reason: str) -> None:
        """Put a model that cannot go on back to where it started; what happened is PRIVATE."""
        self.failed.add(role)
        self.job.networks[role].load(self.job.weights[role])
        self.out.memory.pop(role, None)
        self.out.notices.append(f"{reason}. It keeps the weights that it had before this round")

    def _note(self, role: str, values: Tensor, strict: bool = True) -> bool:
        """Keep the mean loss for the journal; a plain model whose loss is not a finite number cannot go on."""
        found = values.detach()
        if strict and not bool(torch.isfinite(found).all()):
            error = not_finite(self.job.site, role)
            if role not in self.job.expendable:
                raise error
            self.fail(role, str(error))
            return False
        total, count = self.sums.get(role, (torch.zeros(()), 0))
        self.sums[role] = (total + found.sum().cpu(), count + len(found))
        return True

    def finish(self) -> Trained:
        for role in self.job.objective:
            guard = self.guards.get(role)
            self.out.params[role] = self.job.networks[role].params() if guard is None else guard.released()
        self.out.losses = {r: float(total) / max(1, count) for r, (total, count) in self.sums.items()}
        if self.out.dropped:
            self.out.notices.append(dropped_notice(self.out.dropped))
        return self.out


def _outputs(network: Network, x: Tensor, *, by_running_statistics: bool) -> Tensor:
    network.module.train(not by_running_statistics)
    try:
        outputs: Tensor = network.module(x)
    finally:
        network.module.train()
    return outputs


def not_finite(site: str, role: str) -> TrainingError:
    """The error for a loss that became NaN or infinite: the site cannot go on."""
    return TrainingError(
        f'site "{site}": the loss of "{role}" is not a finite number;'
        " lower training.learning_rate, or look for extreme values in the records"
    )


def dropped_notice(count: int) -> str:
    return f"{count} gradients of single records were not finite and were left out"
