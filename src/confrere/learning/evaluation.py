"""How good a model is on records that it has not seen. Everything here is PRIVATE to the site."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from confrere.core import metrics
from confrere.core.metrics import Predictions
from confrere.data.records import Records
from confrere.learning.objectives import is_multilabel, log_probabilities, supervised_loss


@torch.no_grad()
def predict(module: nn.Module, inputs: Tensor, batch: int = 4096) -> Tensor:
    """The outputs for all records, in evaluation mode."""
    trains = module.training
    if trains:  # to switch takes as long as a small network needs for its outputs
        module.eval()
    try:
        parts = [module(inputs[i : i + batch]) for i in range(0, len(inputs), batch)]
    finally:
        if trains:
            module.train()
    return torch.cat(parts) if parts else module(inputs)


def measure(outputs: Tensor, targets: Tensor, spread: float = 1.0) -> dict[str, float]:
    """Every metric that these records define; `spread` converts the error of a number back to the unit of its column."""
    return metrics.measure(Predictions(outputs.detach().numpy(), targets.numpy(), spread))


def knowing_nothing(targets: Tensor, reference: Tensor) -> float:
    """The loss of predicting only the class shares (or the mean) of `reference`."""
    if is_multilabel(targets):
        yes = (reference.double().sum(0) + 1) / (len(reference) + 2)
        logs = targets.double() * yes.log() + (1 - targets.double()) * (1 - yes).log()
        return float(-logs.sum(1).mean()) if len(targets) else 0.0
    if targets.is_floating_point():
        middle = reference.mean(0) if len(reference) else torch.zeros(())
        return float((targets - middle).square().sum() / max(1, len(targets)))
    classes = int(torch.cat([targets, reference]).max()) + 1 if len(targets) else 1
    shares = (torch.bincount(reference, minlength=classes).double() + 1) / (len(reference) + classes)
    return float(-shares.log()[targets].mean())


def loss_metrics(outputs: Tensor, records: Records, reference: Records) -> Mapping[str, float]:
    """The loss of outputs for held-out records beside the loss of knowing only the class shares, and the accuracy.

    Without a held-out record no model is worth more than another: all of it is 0.
    """
    if not len(records):
        return {"loss": 0.0, "baseline_loss": 0.0, "accuracy": 0.0}
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
