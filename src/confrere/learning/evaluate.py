"""How good a model is on records that it has not seen. Everything here is PRIVATE to the site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from confrere.core.params import Params
from confrere.data.records import Records
from confrere.learning.objectives import is_multilabel, log_probabilities, supervised_loss
from confrere.learning.stack import Layer, Stack

HIGHER_IS_BETTER = {
    "accuracy": True,
    "macro_accuracy": True,
    "f1": True,
    "auc": True,
    "r2": True,
    "log_loss": False,
    "rmse": False,
}

FLOOR = math.log(1e-7)
"""Log-probabilities are cut off here, so that one absurd prediction does not decide a mean."""


@torch.no_grad()
def predict(module: nn.Module, inputs: Tensor, batch: int = 4096) -> Tensor:
    """The outputs for all records, in evaluation mode."""
    was = module.training
    module.eval()
    try:
        parts = [module(inputs[i : i + batch]) for i in range(0, len(inputs), batch)]
    finally:
        module.train(was)
    return torch.cat(parts) if parts else module(inputs)


@torch.no_grad()
def predict_chain(layers: Sequence[Layer], params: Params, inputs: Tensor, batch: int = 4096) -> Tensor:
    """The same for a chain of dense layers, whose weights need not be put into a network for it."""
    stack = Stack(layers, params.flatten().unsqueeze(0))
    return torch.cat(
        [stack.forward(inputs[i : i + batch].unsqueeze(0))[0] for i in range(0, max(1, len(inputs)), batch)]
    )


def auc(scores: Tensor, positive: Tensor) -> float:
    """The chance that a positive record scores higher than a negative one, ties counting half."""
    n, p = int((~positive).sum()), int(positive.sum())
    if n == 0 or p == 0:
        return math.nan
    ordered, places = torch.sort(scores.double())
    _, inverse, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = torch.empty_like(scores, dtype=torch.float64)
    ranks[places] = (last - (counts.double() - 1) / 2)[inverse]
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (n * p))


def measure(outputs: Tensor, targets: Tensor, spread: float = 1.0) -> dict[str, float]:
    """All metrics of one set of predictions.

    `macro_accuracy` is the mean of the classes' own accuracies; `auc` for several classes is the mean of
    one class against the rest. A metric that the records do not define (one class only) is left out.
    `spread` brings the error of a number back into the unit of its column.
    """
    if len(targets) == 0:
        return {}
    if is_multilabel(targets):
        return _multilabel(outputs, targets)
    if targets.is_floating_point():
        error = outputs.reshape(-1).double() - targets.reshape(-1).double()
        apart = (targets.double() - targets.double().mean()).square().sum()
        found = {"rmse": float(error.square().mean().sqrt()) * spread}
        if float(apart) > 0:
            found["r2"] = 1 - float(error.square().sum() / apart)
        return found
    logs = log_probabilities(outputs.double())
    truth = targets.long()
    predicted = logs.argmax(1)
    right = (predicted == truth).double()
    present = [c for c in range(logs.shape[1]) if bool((truth == c).any())]
    found = {
        "accuracy": float(right.mean()),
        "macro_accuracy": sum(float(right[truth == c].mean()) for c in present) / len(present),
        "log_loss": float(-logs.gather(1, truth[:, None]).clamp_min(FLOOR).mean()),
    }
    if logs.shape[1] == 2:
        areas = [auc(logs[:, 1] - logs[:, 0], truth == 1)]
    else:
        areas = [auc(logs[:, c], truth == c) for c in present]
    areas = [a for a in areas if not math.isnan(a)]
    if areas:
        found["auc"] = sum(areas) / len(areas)
    return found


def _multilabel(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Each label is a question of its own, and the figures are means over the labels.

    A label without a positive (or without a negative) record has no AUC, one without a positive no F1: it is left out
    of that mean.
    """
    truth, said = targets > 0.5, outputs > 0
    right = (said == truth).double()
    labels = range(targets.shape[1])
    halves = [[right[truth[:, c] == side, c] for side in (True, False)] for c in labels]
    balanced = [[float(half.mean()) for half in pair if len(half)] for pair in halves]
    hits = (said & truth).sum(0).double()
    named = (said.sum(0) + truth.sum(0)).double()
    scores = [float(2 * hits[c] / named[c]) for c in labels if bool(truth[:, c].any())]
    areas = [a for a in (auc(outputs[:, c], truth[:, c]) for c in labels) if not math.isnan(a)]
    # log-probabilities are cut off as they are for classes: one absurd prediction must not decide a mean
    logs = torch.where(truth, outputs.double(), -outputs.double())
    loss = -torch.nn.functional.logsigmoid(logs).clamp_min(FLOOR)
    found = {
        "accuracy": float(right.mean()),
        "macro_accuracy": sum(sum(pair) / len(pair) for pair in balanced) / len(balanced),
        "log_loss": float(loss.mean()),
    }
    if scores:
        found["f1"] = sum(scores) / len(scores)
    if areas:
        found["auc"] = sum(areas) / len(areas)
    return found


def knowing_nothing(targets: Tensor, reference: Tensor) -> float:
    """The loss of predicting only the class shares (or the mean) of `reference`."""
    if is_multilabel(targets):
        yes = (reference.double().sum(0) + 1) / (len(reference) + 2)
        logs = targets.double() * yes.log() + (1 - targets.double()) * (1 - yes).log()
        return float(-logs.sum(1).mean()) if len(targets) else 0.0
    if targets.is_floating_point():
        return float((targets - reference.mean(0)).square().sum() / max(1, len(targets)))
    classes = int(max(targets.max(), reference.max())) + 1 if len(targets) else 1
    shares = (torch.bincount(reference, minlength=classes).double() + 1) / (len(reference) + classes)
    return float(-shares.log()[targets].mean())


def loss_metrics(outputs: Tensor, records: Records, reference: Records) -> Mapping[str, float]:
    """The loss of outputs for held-out records beside the loss of knowing only the class shares, and the accuracy."""
    found = {
        "loss": float(supervised_loss(outputs.double(), _double(records.targets)).mean()),
        "baseline_loss": knowing_nothing(records.targets, reference.targets),
    }
    if not records.targets.is_floating_point():
        right = log_probabilities(outputs.double()).argmax(1) == records.targets.long()
        found["accuracy"] = float(right.double().mean())
    return found


def _double(targets: Tensor) -> Tensor:
    return targets.double() if targets.is_floating_point() else targets
