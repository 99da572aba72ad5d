"""Fitting a site's own model as well as the site can: regularisation and length by cross-validation.

A comparison is worth nothing if training alone is tuned badly. So the same search serves every strategy: each
loss on offer is trained with each strength of regularisation on folds of the site's records and judged on the
records left out. A regression then becomes the mean of all candidates, each weighted by its public prior share
(`public_prior.py`) and by how near it is to the best, seen against how sure that is; of other networks the winner is
trained again on all records. The result is PRIVATE.

Where a loss reads a model that has learned from these very records (a proxy), it is judged by what that model would
predict had it not learned from each record (`leave_one_out.py`), or on records that it never saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy  # `scipy.optimize` is loaded when a model is first fitted
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confrere.core.params import Params
from confrere.core.protocols import Loss
from confrere.core.seeds import derive, generator
from confrere.data.records import Records
from confrere.learning.balance import log_shares
from confrere.learning.evaluation import predict
from confrere.learning.fit.exact_regression import (
    Fold,
    Head,
    Matrix,
    Rows,
    Singles,
    Vector,
    head_of,
    layer_of,
    left_out_losses,
    log_softmax,
    newton,
    ridge,
    softmax,
)
from confrere.learning.fit.leave_one_out import ProxyTraining, left_out_outputs
from confrere.learning.fit.public_prior import DECADES, STRENGTHS, PublicPrior
from confrere.learning.local_training.one_site import Job, train_site
from confrere.learning.networks.network import Network
from confrere.learning.objectives import SummedLoss, is_multilabel
from confrere.privacy.charged_steps import UNPROTECTED

ENOUGH = 600
"""With more records than this, one split tells the candidates apart; with fewer, all folds are used, repeatedly."""

FEW = 30
"""With fewer records that a proxy never saw, it is judged on all of them."""

SMALL = 20_000
"""Chains of dense layers with at most this many weights are fitted to convergence by L-BFGS on all records at once."""

FEWER = 2
"""How many folds judge a network that is not a chain of dense layers: training it more often would cost too much."""

NOTHING = 1e5
"""A strength of regularisation that leaves nothing but the constant."""

Others = Mapping[str, Tensor]


@dataclass(frozen=True)
class Search:
    """What is tried: strengths of regularisation × lengths of training, on a number of folds.

    `priors` count in records: a strength of 10 pulls the weights to zero as ten records of no effect would,
    so that one list serves small sites and large ones. Constants (biases) are left alone.
    """

    priors: tuple[float, ...] | None = None
    """The strengths; None for those of the public prior (regressions) and for decades (other networks)."""
    lengths: tuple[int, ...] = (10, 100)
    """Iterations of L-BFGS for small networks; epochs for large ones, in tenths. Logistic regression needs none."""
    folds: int = 5
    repeats: int = 3
    """How often small sites divide their records into folds anew: one division of 50 records says little."""
    public: PublicPrior = field(default_factory=PublicPrior)
    """How much each candidate of a regression counts before any record is seen; with listed `priors`, strengths count equally."""


@dataclass(frozen=True)
class TuningChoice:
    """What won, its mean loss on the records left out, and how much each loss on offer has in the result."""

    loss: int
    prior: float
    length: int
    held_out_loss: float
    shares: tuple[float, ...]
    averaged: tuple[tuple[int, float, float], ...] = ()
    """Of regression: the candidates (loss and prior) whose mean is taken, each with its weight."""

    def mean(self, trained: Callable[[int, float], Matrix]) -> Matrix:
        """The mean of these candidates; `trained(loss, prior)` gives the weights of one."""
        found = np.zeros(())
        for number, prior, share in self.averaged:
            found = found + share * trained(number, prior)
        return found


@dataclass(frozen=True)
class OtherOutputs:
    """The outputs of the models that a loss reads, for all records: as they are, and corrected for a fair judgement."""

    raw: Others
    fair: Others
    clean: bool
    """Whether the fair outputs hold nothing of the record that they are about."""


@dataclass(frozen=True)
class SeenRecords:
    """The records (a mask) that the models which losses read have learned from, and how, where that is known."""

    mask: Tensor
    proxy: ProxyTraining | None = None


def fit(
    job: Job,
    losses: Sequence[Loss],
    start: Params,
    search: Search,
    seen: SeenRecords | None = None,
) -> tuple[Params, TuningChoice]:
    """Choose by cross-validation, then train the one model of `job` on all of its records.

    `losses[0]` is training alone, with which the others are compared.
    """
    (role,) = job.objective
    seen = seen or SeenRecords(torch.zeros(len(job.records), dtype=torch.bool))
    others = [_outputs_for(job, loss, seen) for loss in losses]
    rows = torch.ones(len(job.records), dtype=torch.bool)
    if not all(o.clean for o in others) and int((~seen.mask).sum()) >= FEW:
        rows = ~seen.mask
    case = _Case(job, role, losses, others, rows, search)
    targets, module = job.records.targets, job.networks[role].module
    if all(map(_under_known, losses)):
        head, layer = head_of(module), layer_of(module)
        balanced = any(_summed(loss).shares is not None for loss in losses)
        if head is not None and not balanced and not is_multilabel(targets):
            return _averaged(case, head)
        if layer is not None and not targets.is_floating_point():
            return _averaged_classes(case, layer)
    won = _chosen(case, start)
    return _trained(case, start, won), won


@dataclass(frozen=True)
class _Case:
    """One fit: the losses on offer with what they read, the records (a mask) that judge them, and what is tried."""

    job: Job
    role: str
    losses: Sequence[Loss]
    others: Sequence[OtherOutputs]
    rows: Tensor
    search: Search

    @property
    def network(self) -> Network:
        return self.job.networks[self.role]

    @property
    def small(self) -> bool:
        """Whether the network is fitted to convergence."""
        return self.network.flat.numel() <= SMALL and self.network.layers is not None

    def folds(self) -> list[Fold]:
        found = _folds(self.job.records, self.search, self.job.seed, thorough=True)
        return [(a.numpy(), b.numpy()) for a, b in found]

    def near_best(self, table: Sequence[Matrix], priors: Sequence[float]) -> TuningChoice:
        """How much each candidate counts, by its public prior share and by how near it is to the best one.

        `table` has the losses of left-out records (priors × records) for each loss on offer.
        """
        tried = [(number, prior) for number in range(len(self.losses)) for prior in priors]
        judged = np.concatenate(table)[:, self.rows.numpy()]
        search = self.search
        before = search.public.shares(len(self.losses), priors, flat=search.priors is not None)
        weights = near_best(judged, before)
        averaged = [(*candidate, w) for candidate, w in zip(tried, weights.tolist(), strict=True) if w > 0]
        shares = [sum(w for n, _, w in averaged if n == number) for number in range(len(self.losses))]
        most = int(weights.argmax())
        return TuningChoice(*tried[most], 1, float(judged[most].mean()), tuple(shares), tuple(averaged))


def _averaged(case: _Case, head: Head) -> tuple[Params, TuningChoice]:
    """Logistic or linear regression: the mean of the candidates near the best."""
    records = case.job.records
    squares = records.targets.is_floating_point()
    features, labels = head.features(records.inputs.to(case.job.device)), records.targets.double().numpy()

    def fitted(rows: Rows | slice, prior: float, under: Vector, start: Vector | None = None) -> Vector:
        some = features[rows], labels[rows], prior, under[rows]
        return ridge(*some) if squares else newton(*some, start)

    def left_out(loss: Loss, others: OtherOutputs) -> Matrix:
        under = _under(loss, others.fair, len(labels))

        def fit(rows: Rows, prior: float, start: Any) -> Vector:
            return fitted(rows, prior, under, start)

        def judge(weights: Any, rows: Rows) -> Vector:
            return _losses(features[rows] @ weights + under[rows], labels[rows], squares)

        return left_out_losses(len(labels), priors, folds, fit, judge)

    def trained(number: int, prior: float) -> Vector:
        return fitted(slice(None), prior, _under(case.losses[number], case.others[number].raw, len(labels)))

    listed, folds = case.search.priors, case.folds()
    priors = STRENGTHS if listed is None else (*listed, NOTHING)
    chosen = case.near_best(list(map(left_out, case.losses, case.others)), priors)
    head.put(chosen.mean(trained))
    return case.network.params(), chosen


def _losses(outputs: Vector, labels: Vector, squares: bool) -> Vector:
    if squares:
        return np.square(outputs - labels)
    return np.asarray(np.logaddexp(0, outputs) - labels * outputs)


def _averaged_classes(case: _Case, layer: nn.Linear) -> tuple[Params, TuningChoice]:
    """The same for several classes. If classes weigh equally in training, they also weigh equally in validation."""
    records, classes = case.job.records, layer.out_features
    features = records.inputs.reshape(len(records), -1).float().cpu().numpy()
    labels = records.targets.cpu().numpy()
    shares = _summed(case.losses[0]).shares
    logs = log_shares(shares, classes).numpy() if shares is not None else np.zeros(classes, np.float32)
    worth = np.exp(-logs)[labels] / classes if shares is not None else np.ones(len(labels))

    def left_out(loss: Loss, others: OtherOutputs) -> Matrix:
        fair = _under_classes(loss, others.fair, len(labels), classes)
        under = fair + logs

        def fit(rows: Rows, prior: float, start: Any) -> Singles:
            return softmax(features[rows], labels[rows], under[rows], prior, start)

        def judge(weights: Any, rows: Rows) -> Vector:
            found = log_softmax(features[rows] @ weights[:-1] + weights[-1] + fair[rows])
            return np.asarray(-found[np.arange(len(rows)), labels[rows]], dtype=np.float64)

        return left_out_losses(len(labels), priors, folds, fit, judge) * worth

    def trained(number: int, prior: float) -> Matrix:
        raw = _under_classes(case.losses[number], case.others[number].raw, len(labels), classes)
        return np.asarray(softmax(features, labels, raw + logs, prior), dtype=np.float64)

    priors, folds = case.search.priors or DECADES, case.folds()
    chosen = case.near_best(list(map(left_out, case.losses, case.others)), priors)
    mean = chosen.mean(trained)
    layer.weight.data.copy_(torch.from_numpy(mean[:-1].T))
    layer.bias.data.copy_(torch.from_numpy(mean[-1]))
    return case.network.params(), chosen


def _under_classes(loss: Loss, others: Others, records: int, classes: int) -> Singles:
    """What a network's own outputs are added to."""
    added = _summed(loss).added(others)
    if added is None:
        return np.zeros((records, classes), dtype=np.float32)
    return np.asarray(added.float().numpy(), dtype=np.float32)


def near_best(judged: NDArray[np.float64], before: Sequence[float] | Vector) -> Vector:
    """How much each candidate counts, from its losses (candidates × records) and its share before any record was seen.

    A candidate that is t standard errors of the paired difference behind the best counts its share × exp(−t²/2): the
    one-standard-error rule (Breiman et al. 1984), but smooth. With few records the least loss is often luck, and the mean of
    all that may be best is a safer bet than any of them. Without records the share decides. What counts less than 0.003
    of the largest is left out.
    """
    if not judged.shape[1]:
        judged = np.zeros((len(judged), 1))
    means = judged.mean(1)
    behind = judged - judged[means.argmin()]
    doubt = behind.std(1) / judged.shape[1] ** 0.5 + 1e-12
    shares = np.asarray(before) * np.exp(-0.5 * np.square(behind.mean(1) / doubt))
    shares[shares < 0.003 * shares.max()] = 0.0
    return np.asarray(shares / shares.sum())


def _chosen(case: _Case, start: Params) -> TuningChoice:
    """Any other network: one candidate wins. What reads a proxy must be better by more than one standard error."""
    job, rows, search = case.job, case.rows, case.search
    costly, small = case.network.layers is None, case.small
    in_epoch = max(1, len(job.records) // job.batch_size)
    lengths = search.lengths
    if not small:  # a network of convolutions or recurrences makes at least as many steps at a small site
        lengths = tuple(max(1, n // 10, n // in_epoch if costly else 1) for n in search.lengths)
    train = _converge if small else _descend
    priors = search.priors or DECADES
    priors = priors if small else priors[::2]
    folds = _folds(job.records, search, job.seed, rows=rows)[: FEWER if costly else None]
    judged_by = max(1, int(rows[torch.unique(torch.cat([b for _, b in folds]))].sum()))
    winners: list[tuple[TuningChoice, Tensor]] = []
    for number, loss in enumerate(case.losses):
        tried: list[tuple[TuningChoice, Tensor]] = []
        fair = case.others[number].fair
        for prior in priors:
            judged: list[list[Tensor]] = [[] for _ in lengths]
            for fitted, left_out in folds:
                case.network.load(start)
                for n, _ in enumerate(train(case, loss, prior, lengths, fitted, fair)):
                    judged[n].append(_judge(case, loss, left_out[rows[left_out]], fair))
            for length, found in zip(lengths, judged, strict=True):
                values = torch.cat(found)
                shares = tuple(float(n == number) for n in range(len(case.losses)))
                tried.append((TuningChoice(number, prior, length, float(values.mean()), shares), values))
        winners.append(_simplest(tried, judged_by))
    best = winners[0]
    for rival in winners[1:]:
        gained = winners[0][1] - rival[1]
        doubt = float(gained.std() / judged_by**0.5) if len(gained) > 1 else 0.0
        if float(gained.mean()) > doubt and rival[0].held_out_loss < best[0].held_out_loss:
            best = rival
    return best[0]


def _trained(case: _Case, start: Params, won: TuningChoice) -> Params:
    """The chosen candidate, trained on all records."""
    case.network.load(start)
    everything, others = torch.arange(len(case.job.records)), case.others[won.loss].raw
    train = _converge if case.small else _descend
    for _ in train(case, case.losses[won.loss], won.prior, (won.length,), everything, others):
        pass
    return case.network.params()


def _simplest(tried: Sequence[tuple[TuningChoice, Tensor]], records: int) -> tuple[TuningChoice, Tensor]:
    """The strongest regularisation whose loss is within one standard error of the least (Breiman et al. 1984).

    With few records the least loss is often luck, and a weakly regularised winner a costly one.
    """
    least, values = min(tried, key=lambda t: t[0].held_out_loss)
    doubt = float(values.std() / records**0.5) if len(values) > 1 else 0.0
    near = [t for t in tried if t[0].held_out_loss <= least.held_out_loss + doubt]
    return max(near, key=lambda t: (t[0].prior, -t[0].length))


def _outputs_for(job: Job, loss: Loss, seen: SeenRecords) -> OtherOutputs:
    """The outputs of the models that a loss reads, for all records."""
    inputs = job.records.inputs
    raw = {r: predict(job.networks[r].module, inputs.to(job.device)).cpu() for r in loss.reads}
    fair, clean = dict(raw), not bool(seen.mask.any()) or not raw
    if not clean and seen.proxy is not None:
        found = {
            r: left_out_outputs(job.networks[r].module, inputs, job.records.targets, seen.mask, seen.proxy)
            for r in raw
        }
        clean = all(logits is not None for logits in found.values())
        fair |= {
            r: torch.from_numpy(f).reshape(raw[r].shape).to(raw[r]) for r, f in found.items() if f is not None
        }
    return OtherOutputs(raw, fair, clean)


def _under_known(loss: Loss) -> bool:
    return isinstance(loss, SummedLoss) and loss.plain


def _summed(loss: Loss) -> SummedLoss:
    assert isinstance(loss, SummedLoss)
    return loss


def _under(loss: Loss, others: Others, records: int) -> Vector:
    """What a network's own logits are added to."""
    added = _summed(loss).added({role: outputs.double() for role, outputs in others.items()})
    return np.zeros(records) if added is None else np.asarray(added[:, 0].numpy())


def _converge(
    case: _Case, loss: Loss, prior: float, lengths: Sequence[int], rows: Tensor, others: Others
) -> Iterator[None]:
    """L-BFGS on all records at once; yields after each of the lengths."""
    network, records, device = case.network, case.job.records.select(rows), case.job.device
    inputs, targets = records.inputs.to(device), records.targets.to(device)
    others = {r: outputs[rows].to(device) for r, outputs in others.items()}
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
        found = scipy.optimize.minimize(
            value, begin, jac=True, method="L-BFGS-B", options={"maxiter": length - done}
        )
        network.flat.copy_(torch.from_numpy(found.x).to(network.flat))
        done = length
        yield


def _descend(
    case: _Case, loss: Loss, prior: float, lengths: Sequence[int], rows: Tensor, others: Others
) -> Iterator[None]:
    """The study's own optimiser on shuffled batches; yields after each of the lengths."""
    job, role, records = case.job, case.role, case.job.records.select(rows)
    optimiser = replace(job.optimisers[role], weight_decay=prior / max(1, len(records)))  # type: ignore[type-var]
    memory: dict[str, dict[str, dict[str, Tensor]]] = {}
    done = 0
    for length in lengths:
        part = replace(
            job, records=records, objective={role: loss}, private=UNPROTECTED, optimisers={role: optimiser},
            memory=memory, epochs=length - done, seed=derive(job.seed, "fit", done),
        )  # fmt: skip
        memory, done = train_site(part).memory, length
        yield


def _pulled(network: Network) -> Tensor:
    """1 for weights, 0 for constants: a site's base rate is not shrunk."""
    parts = network.trainable(network.flat).values()
    return torch.cat([torch.full((p.numel(),), float(p.ndim > 1)) for p in parts]).to(network.flat)


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
def _judge(case: _Case, loss: Loss, rows: Tensor, others: Others) -> Tensor:
    """The loss of each record that was left out."""
    records = case.job.records.select(rows)
    own = predict(case.network.module, records.inputs.to(case.job.device)).cpu()
    return loss(own, {r: outputs[rows] for r, outputs in others.items()}, records.targets).double()
