"""The training loop of many sites at once: for each site the result of `one_site.train_site`, computed together.

Every site keeps its own batches, weights, optimiser state, clipping state and noise. Batches of different sizes are
padded, and padding has no effect. Sites are ordered so that those with steps left come first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import add

import torch
from torch import Tensor

from confrere.core.errors import TrainingError
from confrere.core.params import Params
from confrere.core.protocols import Objective, Proximal
from confrere.core.seeds import derive
from confrere.learning.local_training.one_site import Job, Trained, dropped_notice, not_finite
from confrere.learning.local_training.stacked_losses import joined, needed
from confrere.learning.local_training.stacked_network import Stack
from confrere.learning.optimisers import OptimiserState, OwnRates
from confrere.privacy import stacked_steps
from confrere.privacy.gradients import Layout

Batch = tuple[Objective, Tensor, Sequence[int]]
"""Models that learn from the same records, their rows [sites, most records], and the number of records of each site."""

Move = tuple[str, Tensor | list[stacked_steps.Trace]]
"""A model and its gradient at every site, or the traces from which the gradient is computed."""


def train_together(jobs: Sequence[Job]) -> list[Trained | TrainingError]:
    """Train several jobs of one kind (see `cohort.kind_of`); each gets the result that it would get alone."""
    with torch.no_grad():
        training = _JointTraining(sorted(jobs, key=_length, reverse=True))
        training.train()
        found = {id(job): result for job, result in zip(training.jobs, training.finish(), strict=True)}
    return [found[id(job)] for job in jobs]


def _length(job: Job) -> tuple[int, int]:
    return (job.private.count if job.private else 0, len(job.records))


class _JointTraining:
    """A running training of many sites; row k of every tensor belongs to site k."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, first = jobs, jobs[0]
        self.sizes = [len(job.records) for job in jobs]
        self.starts = list(accumulate([0, *self.sizes[:-1]]))
        self.inputs = torch.cat([job.records.inputs for job in jobs])
        self.targets = torch.cat([job.records.targets for job in jobs])
        self.objective: Objective = first.objective
        self.protected = set(first.private.mechanisms)
        self.losses = {r: joined([job.objective[r] for job in jobs]) for r in self.objective}
        self.needs = {r: needed(loss) for r, loss in self.objective.items()}
        self.stacks = {
            r: self._stack(r) for r in dict.fromkeys([*self.objective, *chain(*self.needs.values())])
        }
        self.private = self._private() if self.protected else None
        self.optimiser_states = {r: self._optimiser_states(r) for r in self.objective}
        self.clipping = {r: self._clipping(r) for r in self.protected}
        self.anchors = {
            r: torch.stack([job.anchors[loss.anchor].flatten() for job in jobs])
            for r, loss in self.objective.items()
            if isinstance(loss, Proximal)
        }
        self.gradient: dict[str, Tensor] = {}
        """A buffer for the gradient of each model, allocated on first use."""
        self.buffers = {r: stacked_steps.ReleaseBuffer(self.stacks[r].weights) for r in self.protected}
        self.own_rates = {r: self._own_rates(r) for r in self.objective}
        self.plain_sgd = {
            r: optimiser.learning_rate
            for r, optimiser in first.optimisers.items()
            if optimiser.plain and r not in self.anchors
            if self.own_rates[r] is None
        }
        """Learning rates of models whose steps are plain descent: their gradient is never written out, which saves a fifth
        of a round of networks with 200 hidden units."""
        self.loss_sums = {r: torch.zeros(len(jobs)) for r in self.objective}
        self.record_counts = {r: [0] * len(jobs) for r in self.objective}
        self.dropped = [0] * len(jobs)

    # -- setup: what each site has ---------------------------------------------------------------------

    def _stack(self, role: str) -> Stack:
        start = [job.weights[role] for job in self.jobs]
        layers = self.jobs[0].networks[role].layers
        assert layers is not None
        if all(p is start[0] for p in start):  # all sites start from the same weights, as in averaging
            row = start[0].flatten().unsqueeze(0).expand(len(start), -1)
            return Stack(layers, row.clone() if role in self.objective else row)
        return Stack(layers, torch.stack([p.flatten() for p in start]))

    def _private(self) -> stacked_steps.StackedSteps:
        sources = [job.noise_source() for job in self.jobs]
        return stacked_steps.StackedSteps([job.private for job in self.jobs], self.sizes, sources)

    def _optimiser_states(self, role: str) -> OptimiserState:
        size = self.stacks[role].weights.shape[1]
        optimiser = self.jobs[0].optimisers[role]
        kept = [job.memory.get(role, {}).get("optimiser") for job in self.jobs]
        fresh = optimiser.start(size)
        rows = [fresh if k is None else k for k in kept]
        return {name: torch.stack([row[name] for row in rows]) for name in fresh}

    def _own_rates(self, role: str) -> Tensor | None:
        """The learning rate of each site; None if all are equal."""
        optimisers = [job.optimisers[role] for job in self.jobs]
        if all(optimiser == optimisers[0] for optimiser in optimisers):
            return None
        return torch.tensor([optimiser.learning_rate for optimiser in optimisers]).unsqueeze(1)

    def _clipping(self, role: str) -> list[Mapping[str, Tensor]]:
        layout = Layout.of(self.jobs[0].networks[role].module)
        out: list[Mapping[str, Tensor]] = []
        for job in self.jobs:
            kept = job.memory.get(role, {}).get("clipping")
            out.append(dict(job.private.mechanisms[role].clipping.start(layout)) if kept is None else kept)
        return out

    # -- the round ---------------------------------------------------------------------------------

    def train(self) -> None:
        batches = self.jobs[0].private.batches(self.objective)
        if self.private is not None:
            self._private_steps(self.private, batches)
        free = {r: loss for r, loss in self.objective.items() if not any(r in b for b in batches)}
        if free:
            self._epochs(free)

    def _private_steps(self, private: stacked_steps.StackedSteps, batches: Sequence[tuple[str, ...]]) -> None:
        objectives = [{r: self.objective[r] for r in batch} for batch in batches]
        leaders = [next(r for r in batch if r in self.protected) for batch in batches]
        starts = torch.tensor(self.starts).unsqueeze(1)
        for sites, drawn in private.draw():
            samples = [drawn[role] for role in leaders]
            # an empty batch is padding alone
            placed = [(rows + starts[:sites], counts) for rows, counts in samples]
            self._step([(o, *sample) for o, sample in zip(objectives, placed, strict=True)])

    def _epochs(self, objective: Objective) -> None:
        """Shuffled batches; sites with fewer records finish earlier."""
        size, epochs = max(job.batch_size for job in self.jobs), self.jobs[0].epochs
        if any(a < b for a, b in pairwise(self.sizes)):
            self._reorder(sorted(range(len(self.jobs)), key=lambda k: -self.sizes[k]))
        batches = [math.ceil(n / size) for n in self.sizes]
        rows = torch.zeros(len(self.jobs), epochs * batches[0] * size, dtype=torch.int64)
        source = torch.Generator()
        for job, row, n, count in zip(self.jobs, rows.unbind(0), self.sizes, batches, strict=True):
            source.manual_seed(derive(job.seed, "order"))
            for epoch in range(epochs):
                at = epoch * count * size
                torch.randperm(n, generator=source, out=row[at : at + n])
        rows += torch.tensor(self.starts).unsqueeze(1)
        for role in self.plain_sgd.keys() & objective.keys():
            self.stacks[role].separate_layers()
        for step in range(epochs * batches[0]):
            sites = sum(epochs * b > step for b in batches)
            counts = [min(size, self.sizes[k] - step % batches[k] * size) for k in range(sites)]
            self._step([(objective, rows[: len(counts), step * size : step * size + max(counts)], counts)])
        for role in self.plain_sgd.keys() & objective.keys():
            self.stacks[role].join_layers()

    def _reorder(self, order: Sequence[int]) -> None:
        """Reorder the sites and everything that belongs to them."""
        at = torch.tensor(order)
        self.jobs = [self.jobs[k] for k in order]
        self.sizes, self.starts = [self.sizes[k] for k in order], [self.starts[k] for k in order]
        self.losses = {r: joined([job.objective[r] for job in self.jobs]) for r in self.objective}
        self.stacks = {r: Stack(s.layers, s.weights[at]) for r, s in self.stacks.items()}
        self.optimiser_states = {
            r: {n: t[at] for n, t in m.items()} for r, m in self.optimiser_states.items()
        }
        self.clipping = {r: [states[k] for k in order] for r, states in self.clipping.items()}
        self.anchors = {r: t[at] for r, t in self.anchors.items()}
        self.own_rates = {r: None if t is None else t[at] for r, t in self.own_rates.items()}
        self.loss_sums = {r: t[at] for r, t in self.loss_sums.items()}
        self.record_counts = {r: [n[k] for k in order] for r, n in self.record_counts.items()}
        self.dropped = [self.dropped[k] for k in order]

    def _step(self, batches: Sequence[Batch]) -> None:
        """One step of every model at the first sites, each on its batch; all gradients are computed before any update."""
        found = [self._moves(*batch) for batch in batches]
        for (objective, rows, counts), moves in zip(batches, found, strict=True):
            sites, width = rows.shape
            for role, move in moves:
                if isinstance(move, Tensor):
                    self._move(role, objective, move, counts)
                elif role in self.plain_sgd and min(counts) > 0:
                    rate = self.plain_sgd[role]
                    self.stacks[role].sgd_step(move, rate / width if min(counts) == width else rate)
                else:
                    gradient = self._gradient(role, sites)
                    stacked_steps.weighted_sum(move, repeat(None), gradient)
                    self._move(role, objective, gradient, counts)

    def _moves(self, objective: Objective, rows: Tensor, counts: Sequence[int]) -> list[Move]:
        """The gradient of every model of a batch, or its traces."""
        sites, width = rows.shape
        at = rows.reshape(-1)
        x = self.inputs.index_select(0, at).view(sites, width, *self.inputs.shape[1:])
        y = self.targets.index_select(0, at).view(sites, width, *self.targets.shape[1:])
        real = here = None
        if min(counts) < width:
            here = torch.arange(width) < torch.tensor(counts).unsqueeze(1)
            real = here.float()
        kept: dict[str, list[Tensor]] = {r: [] for r in objective}
        outputs = {r: self.stacks[r].forward(x, kept[r]) for r in objective}
        moves: list[Move] = []
        for role in objective:
            others: dict[str, Tensor] = {}
            for other in self.needs[role]:
                if other not in outputs:
                    outputs[other] = self.stacks[other].forward(x)
                others[other] = outputs[other]
            values, slopes = self.losses[role](outputs[role], others, y, counts)
            self._add_losses(role, values, here, counts)
            if role in self.protected:
                if real is not None:
                    slopes = slopes * real.unsqueeze(2)
                traces = self.stacks[role].backward(slopes, kept[role])
                moves.append((role, self._release(role, traces, real, counts)))
                continue
            if real is not None:
                slopes = slopes.mul_((real / torch.tensor(counts).clamp(min=1).unsqueeze(1)).unsqueeze(2))
            elif role not in self.plain_sgd:  # plain SGD divides by the batch size in its step
                slopes = slopes.mul_(1 / width)
            moves.append((role, self.stacks[role].backward(slopes, kept[role])))
        return moves

    def _release(
        self, role: str, traces: Sequence[stacked_steps.Trace], real: Tensor | None, counts: Sequence[int]
    ) -> Tensor:
        sites = len(counts)
        states = self.clipping[role][:sites]
        assert self.private is not None
        mechanism = self.private.mechanisms[role]
        gradients = stacked_steps.StackedGradients(traces, counts, real, self._gradient(role, sites))
        sums = mechanism.clipping.sum(gradients, stacked_steps.stacked(states))
        released, self.clipping[role][:sites] = mechanism.release(sums, states, self.buffers[role])
        if any(sums.dropped):
            self.dropped[:sites] = map(add, self.dropped, sums.dropped)
        return released

    def _gradient(self, role: str, sites: int) -> Tensor:
        if role not in self.gradient:
            self.gradient[role] = torch.empty_like(self.stacks[role].weights)
        return self.gradient[role][:sites]

    def _move(self, role: str, objective: Objective, gradient: Tensor, counts: Sequence[int]) -> None:
        sites = len(counts)
        weights, loss = self.stacks[role].weights[:sites], objective[role]
        if role in self.anchors:
            assert isinstance(loss, Proximal)
            gradient = gradient + loss.pull * (weights - self.anchors[role][:sites])
        optimiser_states = {name: t[:sites] for name, t in self.optimiser_states[role].items()}
        optimiser = self.jobs[0].optimisers[role]
        rates = self.own_rates[role]
        if rates is not None:
            rows: Tensor | slice = slice(None)
            if role not in self.protected and min(counts) == 0:
                rows = torch.tensor(counts).nonzero()[:, 0]
            assert isinstance(optimiser, OwnRates)
            optimiser.update_at(rates[:sites], weights, gradient, optimiser_states, rows)
            return
        if role in self.protected or min(counts) > 0:
            optimiser.update(weights, gradient, optimiser_states)
            return
        who = torch.tensor(counts).nonzero()[:, 0]  # without records, an unprotected model does not change
        if len(who):
            part, own = weights[who], {name: t[who] for name, t in optimiser_states.items()}
            optimiser.update(part, gradient[who], own)
            weights[who] = part
            for name, t in own.items():
                optimiser_states[name][who] = t

    def _add_losses(self, role: str, values: Tensor, here: Tensor | None, counts: Sequence[int]) -> None:
        record_counts, sites = self.record_counts[role], len(counts)
        self.loss_sums[role][:sites] += values.sum(1) if here is None else values.where(here, 0.0).sum(1)
        record_counts[:sites] = map(add, record_counts, counts)

    # -- results of each site ----------------------------------------------------------------------

    def finish(self) -> list[Trained | TrainingError]:
        """The result of each job, in the order of `jobs`."""
        rows = {r: self.stacks[r].weights.unbind(0) for r in self.objective}
        largest = {r: _largest(self.stacks[r].weights) for r in self.objective}
        loss_sums = {r: self.loss_sums[r].tolist() for r in self.objective}
        out: list[Trained | TrainingError] = []
        for k, job in enumerate(self.jobs):
            broken = [
                r for r in self.objective if r not in self.protected and not math.isfinite(loss_sums[r][k])
            ]
            if broken:
                out.append(not_finite(job.site, broken[0]))
                continue
            done = Trained(dropped=self.dropped[k])
            for role in self.objective:
                if self.record_counts[role][k]:
                    done.losses[role] = loss_sums[role][k] / self.record_counts[role][k]
                done.params[role] = Params.of_flat(
                    rows[role][k].clone(), job.weights[role].shapes, largest[role][k]
                )
                done.memory[role] = self._memory(role, k)
            if done.dropped:
                done.notices.append(dropped_notice(done.dropped))
            out.append(done)
        return out

    def _memory(self, role: str, k: int) -> dict[str, dict[str, Tensor]]:
        """Optimiser and clipping state of a site, kept for the next round."""
        found = dict(self.jobs[k].memory.get(role, {}))
        found["optimiser"] = {name: t[k].clone() for name, t in self.optimiser_states[role].items()}
        if role in self.protected:
            found["clipping"] = {name: t.clone() for name, t in self.clipping[role][k].items()}
        return found


def _largest(weights: Tensor) -> list[float]:
    """The largest absolute value of each site's weights; NaN where one is not a number."""
    found: list[float] = torch.maximum(weights.amin(1).neg_(), weights.amax(1)).tolist()
    return found  # aminmax along a dimension takes fifteen times as long
