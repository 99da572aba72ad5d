"""Fitting a site's own model as well as the site can: regularisation and length by cross-validation.

A comparison is worth nothing if training alone is tuned badly. So the same search serves every strategy: each
loss on offer is trained with each strength of regularisation on folds of the site's records and judged on the
records left out; the winner is trained again on all of them. The result is PRIVATE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from confrere.core.params import Params
from confrere.core.protocols import Loss
from confrere.core.seeds import derive, generator
from confrere.data.records import Records
from confrere.learning.engine import Job, work
from confrere.learning.evaluate import predict
from confrere.learning.network import Network

ENOUGH = 600
"""With more records than this, one split tells the candidates apart; with fewer, all folds are used."""


PLENTY = 2_000
"""So many records settle one number."""

SMALL = 5_000
"""Networks with at most so many weights are fitted to convergence by L-BFGS on all records at once."""


@dataclass(frozen=True)
class Search:
    """What is tried: strengths of regularisation × lengths of training, on so many folds.

    `priors` count in records: a strength of 10 pulls the weights to zero as ten records of no effect would,
    so that one list serves small sites and large ones. Constants (biases) are left alone.
    """

    priors: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    lengths: tuple[int, ...] = (10, 100)
    """Iterations of L-BFGS for small networks; epochs for large ones, in tenths."""
    folds: int = 5
    repeats: int = 3
    """How often small sites divide their records into folds anew: one division of 50 records says little."""


@dataclass(frozen=True)
class Choice:
    """What won, and its mean loss on the records left out."""

    loss: int
    prior: float
    length: int
    held_out_loss: float


def fit(job: Job, role: str, losses: Sequence[Loss], start: Params, search: Search) -> tuple[Params, Choice]:
    """Choose by cross-validation, then train on all records of `job`."""
    small = job.networks[role].flat.numel() <= SMALL
    lengths = search.lengths if small else tuple(max(1, n // 10) for n in search.lengths)
    train = _converge if small else _descend
    priors = search.priors if small else search.priors[::2]
    folds = _folds(job.records, search, job.seed)
    winners = []
    for number, loss in enumerate(losses):
        tried: list[tuple[Choice, float]] = []
        for prior in priors:
            judged: list[list[Tensor]] = [[] for _ in lengths]
            for rows, held_out in folds:
                left_out = job.records.select(held_out)
                job.networks[role].load(start)
                for n, _ in enumerate(train(job, role, loss, prior, lengths, job.records.select(rows))):
                    judged[n].append(_judge(job, role, loss, left_out))
            for length, found in zip(lengths, judged, strict=True):
                values = torch.cat(found)
                doubt = float(values.std() / len(job.records) ** 0.5) if len(values) > 1 else 0.0
                tried.append((Choice(number, prior, length, float(values.mean())), doubt))
        winners.append(_simplest(tried))
    best = min(winners, key=lambda c: c.held_out_loss)
    job.networks[role].load(start)
    for _ in train(job, role, losses[best.loss], best.prior, (best.length,), job.records):
        pass
    return job.networks[role].params(), best


def _simplest(tried: Sequence[tuple[Choice, float]]) -> Choice:
    """The strongest regularisation whose loss is within one standard error of the least (Breiman et al. 1984).

    With few records the least loss is often luck, and a weakly regularised winner a costly one.
    """
    least, doubt = min(tried, key=lambda t: t[0].held_out_loss)
    near = [c for c, _ in tried if c.held_out_loss <= least.held_out_loss + doubt]
    return max(near, key=lambda c: (c.prior, -c.length))


def _converge(
    job: Job, role: str, loss: Loss, prior: float, lengths: Sequence[int], records: Records
) -> Iterator[None]:
    """L-BFGS on all records at once; yields after each of the lengths."""
    network = job.networks[role]
    inputs, targets = records.inputs.to(job.device), records.targets.to(job.device)
    with torch.no_grad():
        others = {r: predict(job.networks[r].module, inputs) for r in loss.reads}
    pulled = _pulled(network) * (prior / max(1, len(records)))
    network.module.train()

    def value(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = torch.from_numpy(at).to(network.flat)
        network.flat.copy_(weights)
        mean = loss(network.module(inputs), others, targets).mean()
        gradient = network.backward(mean) + pulled * weights
        total = mean.detach() + 0.5 * (pulled * weights.square()).sum()
        return float(total), gradient.double().cpu().numpy()

    done = 0
    for length in lengths:
        begin = network.flat.double().cpu().numpy().copy()
        found = minimize(value, begin, jac=True, method="L-BFGS-B", options={"maxiter": length - done})
        network.flat.copy_(torch.from_numpy(found.x).to(network.flat))
        done = length
        yield


def _descend(
    job: Job, role: str, loss: Loss, prior: float, lengths: Sequence[int], records: Records
) -> Iterator[None]:
    """The study's own optimiser on shuffled batches; yields after each of the lengths."""
    optimiser = replace(job.optimisers[role], weight_decay=prior / max(1, len(records)))  # type: ignore[type-var]
    memory: dict[str, dict[str, dict[str, Tensor]]] = {}
    done = 0
    for length in lengths:
        part = replace(
            job, records=records, objective={role: loss}, mechanisms={}, optimisers={role: optimiser},
            memory=memory, epochs=length - done, seed=derive(job.seed, "fit", done),
        )  # fmt: skip
        memory, done = work(part).memory, length
        yield


def _pulled(network: Network) -> Tensor:
    """1 for weights, 0 for constants: a site's base rate is not shrunk."""
    shapes = {n: p for n, p in sorted(network.module.named_parameters()) if p.requires_grad}
    return torch.cat([torch.full((p.numel(),), float(p.ndim > 1)) for p in shapes.values()]).to(network.flat)


def _folds(records: Records, search: Search, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Rows to train on and rows to judge by; the records of a patient stay together."""
    units = records.units if records.units is not None else torch.arange(len(records))
    numbers = torch.unique(units, return_inverse=True)[1]
    count = int(numbers.max()) + 1 if len(numbers) else 0
    folds = max(2, min(search.folds, count))
    many = len(records) > ENOUGH
    pairs = []
    for repeat in range(1 if many else search.repeats):
        fold = (torch.randperm(count, generator=generator(seed, "folds", repeat)) % folds)[numbers]
        for k in range(1 if many else folds):
            pairs.append(((fold != k).nonzero()[:, 0], (fold == k).nonzero()[:, 0]))
    return [(a, b) for a, b in pairs if len(a) and len(b)]


@torch.no_grad()
def _judge(job: Job, role: str, loss: Loss, records: Records) -> Tensor:
    """The loss of each record that was left out."""
    inputs, targets = records.inputs.to(job.device), records.targets.to(job.device)
    outputs = {r: predict(job.networks[r].module, inputs) for r in {role, *loss.reads}}
    others: Mapping[str, Tensor] = {r: outputs[r] for r in loss.reads}
    return loss(outputs[role], others, targets).double().cpu()


def best_scale(outputs: Tensor, targets: Tensor) -> float:
    """The factor, from 0 to 1.5, by which a model's outputs fit these records best, beside a free constant.

    For logits this is one number of Platt's scaling (1999) for each class constant: how much of what the
    model says holds here. A useless model gets 0.
    """
    outputs, targets = outputs[:PLENTY], targets[:PLENTY]
    z, n = outputs.detach().double(), len(targets)
    if n == 0:
        return 0.0
    if targets.is_floating_point():
        y = targets.double().reshape(n, -1)
        zc, yc = z - z.mean(0), y - y.mean(0)
        return min(max(float((zc * yc).sum() / zc.square().sum().clamp_min(1e-12)), 0.0), 1.5)
    if z.shape[1] == 1:
        z = torch.cat([torch.zeros_like(z), z], 1)
    logits, classes = z.numpy(), z.shape[1]
    truth = np.eye(classes)[targets.numpy()]

    def value(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scores = at[0] * logits + at[1:]
        scores -= scores.max(1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        error = (np.exp(logs) - truth) / n
        # a faint pull to 1 and 0 keeps the fit finite where the classes fall apart
        away = np.concatenate([[at[0] - 1], at[1:]])
        gradient = np.concatenate([[(error * logits).sum()], error.sum(0)]) + 2 * away / n
        return float(-(truth * logs).sum() / n + (away @ away) / n), gradient

    found = minimize(value, np.array([1.0, *[0.0] * classes]), jac=True, method="L-BFGS-B")
    return min(max(float(found.x[0]), 0.0), 1.5)
