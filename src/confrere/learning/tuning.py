"""Fitting a site's own model as well as the site can: regularisation and length by cross-validation.

A comparison is worth nothing if training alone is tuned badly. So the same search serves every strategy: each
loss on offer is trained with each strength of regularisation on folds of the site's records and judged on the
records left out. Logistic regression then becomes the mean of all that are near the best, seen against how sure that is; of
other networks the winner is trained again on all records. The result is PRIVATE.

Where a loss reads a model that has learned from these very records (a proxy), it is judged by what that model would
say without its echo of each record (`echo.py`), or on records that it never saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from confrere.core.params import Params
from confrere.core.protocols import Loss
from confrere.core.seeds import derive, generator
from confrere.data.records import Records
from confrere.learning import softmax
from confrere.learning.balance import Balanced, log_shares
from confrere.learning.echo import Echo, without_echo
from confrere.learning.engine import Job, work
from confrere.learning.evaluate import predict
from confrere.learning.logistic import Head, Vector, head_of, newton
from confrere.learning.network import Network
from confrere.learning.objectives import Stacked, Supervised, is_multilabel
from confrere.learning.ridge import ridge
from confrere.learning.softmax import Candidate, Matrix, judge, layer_of

ENOUGH = 600
"""With more records than this, one split tells the candidates apart; with fewer, all folds are used, repeatedly."""

FEW = 30
"""With fewer records that a proxy never saw, it is judged on all of them."""

SMALL = 20_000
"""Chains of dense layers with at most so many weights are fitted to convergence by L-BFGS on all records at once."""

FEWER = 2
"""So many folds judge a network that is no chain of dense layers: each training of it costs too much for more."""

NOTHING = 1e5
"""A strength of regularisation that leaves nothing but the constant."""

Others = Mapping[str, Tensor]


@dataclass(frozen=True)
class Search:
    """What is tried: strengths of regularisation × lengths of training, on so many folds.

    `priors` count in records: a strength of 10 pulls the weights to zero as ten records of no effect would,
    so that one list serves small sites and large ones. Constants (biases) are left alone.
    """

    priors: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    lengths: tuple[int, ...] = (10, 100)
    """Iterations of L-BFGS for small networks; epochs for large ones, in tenths. Logistic regression needs none."""
    folds: int = 5
    repeats: int = 3
    """How often small sites divide their records into folds anew: one division of 50 records says little."""


@dataclass(frozen=True)
class Choice:
    """What won, its mean loss on the records left out, and how much each loss on offer has in the result."""

    loss: int
    prior: float
    length: int
    held_out_loss: float
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Heard:
    """What a loss reads, about all records: as it is, and as a fair judge hears it."""

    raw: Others
    fair: Others
    clean: bool
    """Whether the fair outputs hold nothing of the record that they are about."""


def fit(
    job: Job,
    role: str,
    losses: Sequence[Loss],
    start: Params,
    search: Search,
    seen: Tensor | None = None,
    echo: Echo | None = None,
) -> tuple[Params, Choice]:
    """Choose by cross-validation, then train on all records of `job`.

    `losses[0]` is training alone, with which the others are compared. `seen` marks the records that the
    models which losses read have learned from, and `echo` says how.
    """
    seen = torch.zeros(len(job.records), dtype=torch.bool) if seen is None else seen
    heard = [_hear(job, loss, seen, echo) for loss in losses]
    rows = torch.ones(len(job.records), dtype=torch.bool)
    if not all(h.clean for h in heard) and int((~seen).sum()) >= FEW:
        rows = ~seen
    head = head_of(job.networks[role].module)
    plain = not any(isinstance(loss, Balanced) for loss in losses)
    if (
        head is not None
        and plain
        and not is_multilabel(job.records.targets)
        and all(map(_under_known, losses))
    ):
        return _averaged(job, role, losses, heard, rows, search, head)
    layer = layer_of(job.networks[role].module)
    if layer is not None and not job.records.targets.is_floating_point() and all(map(_under_known, losses)):
        return _averaged_classes(job, role, losses, heard, rows, search, layer)
    return _chosen(job, role, losses, heard, rows, start, search)


def _averaged(
    job: Job,
    role: str,
    losses: Sequence[Loss],
    heard: Sequence[Heard],
    rows: Tensor,
    search: Search,
    head: Head,
) -> tuple[Params, Choice]:
    """Logistic or linear regression: the mean of the candidates, weighted by how near they are to the best one."""
    squares = job.records.targets.is_floating_point()
    features, labels = head.features(job.records.inputs.to(job.device)), job.records.targets.double().numpy()
    priors = (*search.priors, NOTHING)
    folds = [(a.numpy(), b.numpy()) for a, b in _folds(job.records, search, job.seed, thorough=True)]
    table, tried = [], []
    for number, loss in enumerate(losses):
        under = _under(loss, heard[number].fair, len(labels))
        sums, counts = np.zeros((len(priors), len(labels))), np.zeros(len(labels))
        for fitted, left_out in folds:
            counts[left_out] += 1
            weights = None
            for place in reversed(
                range(len(priors))
            ):  # the strongest is soonest found, and leads to the next
                some = (features[fitted], labels[fitted], priors[place], under[fitted])
                weights = ridge(*some) if squares else newton(*some, weights)
                outputs = features[left_out] @ weights + under[left_out]
                sums[place, left_out] += _losses(outputs, labels[left_out], squares)
        table += list(sums / np.maximum(counts, 1))
        tried += [(number, prior) for prior in priors]
    judged = np.array(table)[:, rows.numpy()]
    shares = near_best(judged, [min(number, 1) for number, _ in tried])
    mean, own = np.zeros(features.shape[1]), np.zeros(len(losses))
    for share, (number, prior) in zip(shares, tried, strict=True):
        if share > 0:
            under = _under(losses[number], heard[number].raw, len(labels))
            mean += share * (ridge if squares else newton)(features, labels, prior, under)
            own[number] += share
    head.put(mean)
    most = int(shares.argmax())
    choice = Choice(tried[most][0], tried[most][1], 1, float(judged[most].mean()), tuple(own.tolist()))
    return job.networks[role].params(), choice


def _losses(outputs: Vector, labels: Vector, squares: bool) -> Vector:
    if squares:
        return np.square(outputs - labels)
    return np.asarray(np.logaddexp(0, outputs) - labels * outputs)


def _averaged_classes(
    job: Job,
    role: str,
    losses: Sequence[Loss],
    heard: Sequence[Heard],
    rows: Tensor,
    search: Search,
    layer: nn.Linear,
) -> tuple[Params, Choice]:
    """The same for several classes."""
    features = job.records.inputs.reshape(len(job.records), -1).float().cpu().numpy()
    labels, classes = job.records.targets.cpu().numpy(), layer.out_features
    shares = losses[0].shares if isinstance(losses[0], Balanced) else None
    logs = log_shares(shares, classes).numpy() if shares is not None else np.zeros(classes, np.float32)
    worth = np.exp(-logs)[labels] / classes if shares is not None else np.ones(len(labels))
    offered = []
    for number, loss in enumerate(losses):
        raw, fair = (
            _under_classes(loss, h, len(labels), classes) for h in (heard[number].raw, heard[number].fair)
        )
        offered.append(Candidate(number, raw + logs, fair + logs, fair))
    folds = [(a.numpy(), b.numpy()) for a, b in _folds(job.records, search, job.seed, thorough=True)]
    table, tried = judge(features, labels, offered, search.priors, folds, worth)
    judged = table[:, rows.numpy()]
    chances = near_best(judged, [min(number, 1) for number, _ in tried])
    mean, own = np.zeros((features.shape[1] + 1, classes)), np.zeros(len(losses))
    for chance, (number, prior) in zip(chances, tried, strict=True):
        if chance > 0:
            mean += chance * softmax.fitted(features, labels, offered[number].raw, prior)
            own[number] += chance
    layer.weight.data.copy_(torch.from_numpy(mean[:-1].T))
    layer.bias.data.copy_(torch.from_numpy(mean[-1]))
    most = int(chances.argmax())
    choice = Choice(tried[most][0], tried[most][1], 1, float(judged[most].mean()), tuple(own.tolist()))
    return job.networks[role].params(), choice


def _under_classes(loss: Loss, others: Others, records: int, classes: int) -> Matrix:
    """What a network's own outputs are added to."""
    within = loss.within if isinstance(loss, Balanced) else loss
    if isinstance(within, Stacked):
        return np.asarray(within.weight.value * others[within.under].float().numpy(), dtype=np.float32)
    return np.zeros((records, classes), dtype=np.float32)


def near_best(judged: NDArray[np.float64], groups: Sequence[int]) -> Vector:
    """How much each candidate counts, from its losses (candidates × records): 1 for the best, less for those behind it.

    A candidate that is t standard errors of the paired difference behind counts exp(−t²/2): the one-standard-error rule
    (Breiman et al. 1984), but smooth. With few records the least loss is often luck, and the mean of all that may be
    best is a safer bet than any of them. Groups count alike, however many candidates they have.
    """
    means = judged.mean(1)
    behind = judged - judged[means.argmin()]
    doubt = behind.std(1) / max(1, judged.shape[1]) ** 0.5 + 1e-12
    sizes = np.array([list(groups).count(g) for g in groups])
    shares = np.exp(-0.5 * np.square(behind.mean(1) / doubt)) / sizes
    shares[shares < 0.003 * shares.max()] = 0.0
    return np.asarray(shares / shares.sum())


def _chosen(
    job: Job,
    role: str,
    losses: Sequence[Loss],
    heard: Sequence[Heard],
    rows: Tensor,
    start: Params,
    search: Search,
) -> tuple[Params, Choice]:
    """Any other network: one candidate wins. What reads a proxy must be better by more than one standard error."""
    costly = job.networks[role].layers is None
    small = job.networks[role].flat.numel() <= SMALL and not costly
    in_epoch = max(1, len(job.records) // job.batch_size)
    lengths = search.lengths
    if not small:  # a network of convolutions or recurrences makes at least as many steps at a small site
        lengths = tuple(max(1, n // 10, n // in_epoch if costly else 1) for n in search.lengths)
    train = _converge if small else _descend
    priors = search.priors if small else search.priors[::2]
    folds = _folds(job.records, search, job.seed, rows=rows)[: FEWER if costly else None]
    judged_by = max(1, int(rows[torch.unique(torch.cat([b for _, b in folds]))].sum()))
    winners: list[tuple[Choice, Tensor]] = []
    for number, loss in enumerate(losses):
        tried: list[tuple[Choice, Tensor]] = []
        for prior in priors:
            judged: list[list[Tensor]] = [[] for _ in lengths]
            for fitted, left_out in folds:
                job.networks[role].load(start)
                for n, _ in enumerate(train(job, role, loss, prior, lengths, fitted, heard[number].fair)):
                    judged[n].append(_judge(job, role, loss, left_out[rows[left_out]], heard[number].fair))
            for length, found in zip(lengths, judged, strict=True):
                values = torch.cat(found)
                shares = tuple(float(n == number) for n in range(len(losses)))
                tried.append((Choice(number, prior, length, float(values.mean()), shares), values))
        winners.append(_simplest(tried, judged_by))
    best = winners[0]
    for rival in winners[1:]:
        gained = winners[0][1] - rival[1]
        doubt = float(gained.std() / judged_by**0.5) if len(gained) > 1 else 0.0
        if float(gained.mean()) > doubt and rival[0].held_out_loss < best[0].held_out_loss:
            best = rival
    won = best[0]
    job.networks[role].load(start)
    everything = torch.arange(len(job.records))
    for _ in train(job, role, losses[won.loss], won.prior, (won.length,), everything, heard[won.loss].raw):
        pass
    return job.networks[role].params(), won


def _simplest(tried: Sequence[tuple[Choice, Tensor]], records: int) -> tuple[Choice, Tensor]:
    """The strongest regularisation whose loss is within one standard error of the least (Breiman et al. 1984).

    With few records the least loss is often luck, and a weakly regularised winner a costly one.
    """
    least, values = min(tried, key=lambda t: t[0].held_out_loss)
    doubt = float(values.std() / records**0.5) if len(values) > 1 else 0.0
    near = [t for t in tried if t[0].held_out_loss <= least.held_out_loss + doubt]
    return max(near, key=lambda t: (t[0].prior, -t[0].length))


def _hear(job: Job, loss: Loss, seen: Tensor, echo: Echo | None) -> Heard:
    """What the models that a loss reads say about all records."""
    inputs = job.records.inputs
    raw = {r: predict(job.networks[r].module, inputs.to(job.device)).cpu() for r in loss.reads}
    fair, clean = dict(raw), not bool(seen.any()) or not raw
    if not clean and echo is not None:
        found = {
            r: without_echo(job.networks[r].module, inputs, job.records.targets, seen, echo) for r in raw
        }
        clean = all(logits is not None for logits in found.values())
        fair |= {
            r: torch.from_numpy(f).reshape(raw[r].shape).to(raw[r]) for r, f in found.items() if f is not None
        }
    return Heard(raw, fair, clean)


def _under_known(loss: Loss) -> bool:
    return isinstance(loss.within if isinstance(loss, Balanced) else loss, Supervised | Stacked)


def _under(loss: Loss, others: Others, records: int) -> Vector:
    """What a network's own logits are added to."""
    if isinstance(loss, Stacked):
        return np.asarray(loss.weight.value * others[loss.under][:, 0].double().numpy())
    return np.zeros(records)


def _converge(
    job: Job, role: str, loss: Loss, prior: float, lengths: Sequence[int], rows: Tensor, heard: Others
) -> Iterator[None]:
    """L-BFGS on all records at once; yields after each of the lengths."""
    network, records = job.networks[role], job.records.select(rows)
    inputs, targets = records.inputs.to(job.device), records.targets.to(job.device)
    others = {r: said[rows].to(job.device) for r, said in heard.items()}
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
    job: Job, role: str, loss: Loss, prior: float, lengths: Sequence[int], rows: Tensor, heard: Others
) -> Iterator[None]:
    """The study's own optimiser on shuffled batches; yields after each of the lengths."""
    records = job.records.select(rows)
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


def _folds(
    records: Records, search: Search, seed: int, thorough: bool = False, rows: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Rows to train on and rows to judge by; the records of a patient stay together.

    Where one split is enough and only some `rows` can be judged, these are the ones that are left out.
    """
    units = records.units if records.units is not None else torch.arange(len(records))
    numbers = torch.unique(units, return_inverse=True)[1]
    count = int(numbers.max()) + 1 if len(numbers) else 0
    folds = max(2, min(search.folds, count))
    many = len(records) > ENOUGH
    if many and not thorough and rows is not None and not bool(rows.all()):
        return [((~rows).nonzero()[:, 0], rows.nonzero()[:, 0])]
    pairs = []
    for repeat in range(1 if many else search.repeats):
        fold = (torch.randperm(count, generator=generator(seed, "folds", repeat)) % folds)[numbers]
        for k in range(1 if many and not thorough else folds):
            pairs.append(((fold != k).nonzero()[:, 0], (fold == k).nonzero()[:, 0]))
    return [(a, b) for a, b in pairs if len(a) and len(b)]


@torch.no_grad()
def _judge(job: Job, role: str, loss: Loss, rows: Tensor, heard: Others) -> Tensor:
    """The loss of each record that was left out."""
    records = job.records.select(rows)
    own = predict(job.networks[role].module, records.inputs.to(job.device)).cpu()
    return loss(own, {r: said[rows] for r, said in heard.items()}, records.targets).double()
