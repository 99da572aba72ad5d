"""Local steps: one site's round of training, private and plain models side by side.

With Poisson sampling all models of a round learn from the same batches, as ProxyFL has it. With full
batches the protected models make their few private steps first; the others then go through the records in
shuffled batches of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from confrere.core.errors import TrainingError
from confrere.core.params import Params
from confrere.core.protocols import Loss, Objective, Proximal
from confrere.core.quick import quick
from confrere.core.seeds import derive, generator
from confrere.data.records import Records
from confrere.learning.network import Network
from confrere.learning.optimisers import Optimiser
from confrere.privacy.clipping import clipped_sum
from confrere.privacy.gradients import Recorder
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Randomness, seeded
from confrere.privacy.sampling import Patients

Memory = dict[str, dict[str, dict[str, Tensor]]]

MICROBATCH = 4096
"""Most records that go through a network at once in a private step; it bounds memory, not the result."""


@quick
@dataclass(frozen=True, slots=True)
class Job:
    """One site's round of training."""

    site: str
    records: Records
    objective: Objective
    networks: Mapping[str, Network]
    anchors: Mapping[str, Params]
    mechanisms: Mapping[str, Mechanism]
    optimisers: Mapping[str, Optimiser]
    memory: Memory
    batch_size: int
    epochs: int
    steps: int
    seed: int
    device: str = "cpu"
    run: str = ""
    """Which run this is: two studies with one seed on the same records must not share their noise."""
    randomness: Randomness | None = None
    """Where noise and sampling come from; None is the reproducible source of a simulation."""
    weights: Mapping[str, Params] = field(default_factory=dict)
    """What the networks start from; a role that is not named starts from what its network holds."""


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
        return work(job)


def work(job: Job) -> Trained:
    """Do one job."""
    for role, params in job.weights.items():
        job.networks[role].load(params)
    bench = _Bench(job)
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global source
        _seed_dropout(job)
        protected = {r: loss for r, loss in job.objective.items() if r in job.mechanisms}
        free = {r: loss for r, loss in job.objective.items() if r not in job.mechanisms}
        if protected:
            mechanism = next(iter(job.mechanisms.values()))
            shared = mechanism.sampling.rate < 1
            for rows in bench.private_batches(mechanism):
                bench.step(job.objective if shared else protected, rows)
            if shared:
                free = {}
        if free:
            for rows in bench.shuffled_batches():
                bench.step(free, rows)
    return bench.finish()


def _seed_dropout(job: Job) -> None:
    if job.device == "cpu":
        torch.default_generator.manual_seed(_chance_of_dropout(job))  # torch.manual_seed is 400 times as slow
    else:
        torch.manual_seed(_chance_of_dropout(job))


def _chance_of_dropout(job: Job) -> int:
    """Where dropout starts: from the study's seed in a simulation, from the secure source where there is one.

    Which weights a record meets depends on its place in the batch, so one record more moves everybody's.
    That is covered by the guarantee only as long as nobody can work the draws out.
    """
    if job.randomness is None or not job.randomness.secure:
        return derive(job.seed, "dropout")
    return int(float(job.randomness.uniform(1)) * 2**53)


class _Bench:
    """What is on the table while a job is being done."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.inputs = job.records.inputs.to(job.device)
        self.targets = job.records.targets.to(job.device)
        by_patient = any(m.unit == "patient" for m in job.mechanisms.values())
        self.patients: Patients | None = None
        if by_patient and job.records.units is not None:
            self.patients = Patients(job.records.units.tolist())
        self.randomness = job.randomness or seeded(derive(job.seed, "noise", *([job.run] if job.run else [])))
        self.out = Trained(memory={r: {k: dict(v) for k, v in m.items()} for r, m in job.memory.items()})
        self.sums: dict[str, tuple[Tensor, int]] = {}
        self.recorders: dict[str, Recorder] = {}
        self.anchors: dict[str, Tensor] = {}
        for role, loss in job.objective.items():
            network = job.networks[role]
            memory = self.out.memory.setdefault(role, {})
            if "optimiser" not in memory:
                memory["optimiser"] = job.optimisers[role].start(network.flat.numel())
            else:
                memory["optimiser"] = {k: v.clone() for k, v in memory["optimiser"].items()}
            if role in job.mechanisms:
                recorder = self.recorders[role] = recorder_of(network)
                if "clipping" not in memory:
                    memory["clipping"] = dict(job.mechanisms[role].clipping.start(recorder.layout))
                self.out.notices += [n for n in recorder.notices if n not in self.out.notices]
            if isinstance(loss, Proximal):
                pulled = job.anchors[loss.anchor]
                trainable = sorted(n for n, p in network.module.named_parameters() if p.requires_grad)
                self.anchors[role] = torch.cat([pulled[n].reshape(-1) for n in trainable]).to(job.device)
        for network in job.networks.values():
            network.module.train()

    def private_batches(self, mechanism: Mechanism) -> Iterator[Tensor]:
        drawn_from = self.patients if self.patients is not None else len(self.targets)
        for _ in range(self.job.steps):
            yield mechanism.sampling.draw(drawn_from, self.randomness)

    def shuffled_batches(self) -> Iterator[Tensor]:
        order = generator(self.job.seed, "order")
        size = self.job.batch_size
        for _ in range(self.job.epochs):
            rows = torch.randperm(len(self.targets), generator=order)
            yield from (rows[i : i + size] for i in range(0, len(rows), size))

    def step(self, objective: Objective, rows: Tensor) -> None:
        """One step of every model in `objective`, all of them computed before any is moved."""
        job = self.job
        x, y = self.inputs[rows], self.targets[rows]
        plain = [r for r in objective if r not in job.mechanisms]
        outputs: dict[str, Tensor] = {}
        if len(rows):
            outputs = {r: job.networks[r].module(x) for r in plain}
            for other in sorted({o for loss in objective.values() for o in loss.reads} - set(outputs)):
                with torch.no_grad():
                    outputs[other] = job.networks[other].module(x)
        moves: dict[str, Tensor] = {}
        for role, loss in objective.items():
            others = {o: outputs[o].detach() for o in loss.reads} if len(rows) else {}
            if role in job.mechanisms:
                moves[role] = self._private_gradient(role, loss, x, y, others, rows)
            elif len(rows):
                values = loss(outputs[role], others, y)
                self._note(role, values)
                moves[role] = job.networks[role].backward(values.mean())
        for role, gradient in moves.items():
            flat, loss = job.networks[role].flat, objective[role]
            if role in self.anchors and isinstance(loss, Proximal):
                gradient = gradient + loss.pull * (flat - self.anchors[role])
            job.optimisers[role].update(flat, gradient, self.out.memory[role]["optimiser"])

    def _private_gradient(
        self, role: str, loss: Loss, x: Tensor, y: Tensor, others: Mapping[str, Tensor], rows: Tensor
    ) -> Tensor:
        mechanism = self.job.mechanisms[role]
        memory = self.out.memory[role]

        def losses_of(outputs: Tensor, part: slice | Tensor) -> Tensor:
            values = loss(outputs, {o: t[part] for o, t in others.items()}, y[part])
            self._note(role, values, strict=False)
            return values

        units = self.patients.of(rows) if self.patients is not None else None
        clipped = clipped_sum(
            self.recorders[role], (x,), losses_of, mechanism.clipping, memory["clipping"], units, MICROBATCH
        )
        release = mechanism.release(clipped, memory["clipping"], self.randomness)
        memory["clipping"] = dict(release.state)
        self.out.dropped += release.dropped
        return release.gradient

    def _note(self, role: str, values: Tensor, strict: bool = True) -> None:
        """Keep the mean loss for the journal; a plain model whose loss is no number cannot go on."""
        found = values.detach()
        if strict and not bool(torch.isfinite(found).all()):
            raise not_finite(self.job.site, role)
        total, count = self.sums.get(role, (torch.zeros(()), 0))
        self.sums[role] = (total + found.sum().cpu(), count + len(found))

    def finish(self) -> Trained:
        for role in self.job.objective:
            self.out.params[role] = self.job.networks[role].params()
        self.out.losses = {r: float(total) / max(1, count) for r, (total, count) in self.sums.items()}
        if self.out.dropped:
            self.out.notices.append(dropped_notice(self.out.dropped))
        return self.out


def not_finite(site: str, role: str) -> TrainingError:
    """A loss that is no number any more: the site cannot go on."""
    return TrainingError(
        f'site "{site}": the loss of "{role}" is not a finite number;'
        " lower training.learning_rate, or look for extreme values in the records"
    )


def dropped_notice(count: int) -> str:
    return f"{count} gradients of single records were not finite and were left out"


def recorder_of(network: Network) -> Recorder:
    """The recorder of a network, made once."""
    found = getattr(network, "_recorder", None)
    if found is None:
        found = Recorder(network.module, MICROBATCH)
        network._recorder = found  # type: ignore[attr-defined]
    return found
