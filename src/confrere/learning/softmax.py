"""Regression on several classes, fitted to the end: the mean of all candidates that may be the best one.

The counterpart of `logistic.py` for a network that is one linear layer with several outputs. Candidates are strengths of
regularisation and amounts of a proxy underneath; all are judged on records left out. Where all classes count alike
(`balance.py`), so do they in the judging: a record of a class that is rare at the site counts for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import nn

Matrix = NDArray[np.float32]
Fold = tuple[NDArray[np.int64], NDArray[np.int64]]

ITERATIONS = 60


@dataclass(frozen=True)
class Candidate:
    """A linear model on top of `under` (records × classes; what is added to its outputs while it learns).

    `fair` is what stands underneath when it is judged, without the log class shares where classes count alike.
    """

    number: int
    raw: Matrix
    fair: Matrix
    judged_on: Matrix


def layer_of(module: nn.Module) -> nn.Linear | None:
    """The one linear layer with several outputs that a network consists of; None for any other network."""
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    layer = parts[-1] if parts else None
    if not isinstance(layer, nn.Linear) or layer.bias is None or layer.out_features < 2:
        return None
    return layer if all(isinstance(p, nn.Flatten) for p in parts[:-1]) else None


def fitted(
    features: Matrix, labels: NDArray[np.int64], under: Matrix, prior: float, start: Matrix | None = None
) -> Matrix:
    """The weights (inputs and a constant × classes) that make the summed log loss and prior/2·‖weights‖² least."""
    n, classes = len(labels), under.shape[1]
    shape = (features.shape[1] + 1, classes)
    pull = np.full(shape, prior / n, dtype=np.float32)
    pull[-1] = 1e-6
    truth = np.zeros((n, classes), dtype=np.float32)
    truth[np.arange(n), labels] = 1

    def value(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = at.astype(np.float32).reshape(shape)
        logs = log_softmax(features @ weights[:-1] + weights[-1] + under)
        error = (np.exp(logs) - truth) / n
        slope = np.concatenate([features.T @ error, error.sum(0, keepdims=True)]) + pull * weights
        total = -float((truth * logs).sum()) / n + 0.5 * float((pull * weights * weights).sum())
        return total, slope.astype(np.float64).ravel()

    begin = np.zeros(shape) if start is None else start.astype(np.float64)
    found = minimize(value, begin.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    return np.asarray(found.x.reshape(shape), dtype=np.float32)


def judge(
    features: Matrix,
    labels: NDArray[np.int64],
    candidates: Sequence[Candidate],
    priors: Sequence[float],
    folds: Sequence[Fold],
    worth: NDArray[np.float64],
) -> tuple[NDArray[np.float64], list[tuple[int, float]]]:
    """The loss of each record that was left out, by candidate and strength; `worth` is what each record counts."""
    table, tried = [], []
    for candidate in candidates:
        sums, counts = np.zeros((len(priors), len(labels))), np.zeros(len(labels))
        for rows, left_out in folds:
            counts[left_out] += 1
            weights = None
            for place in reversed(range(len(priors))):  # the strongest is soonest found and leads to the next
                weights = fitted(features[rows], labels[rows], candidate.fair[rows], priors[place], weights)
                said = features[left_out] @ weights[:-1] + weights[-1] + candidate.judged_on[left_out]
                logs = log_softmax(said)
                sums[place, left_out] -= logs[np.arange(len(left_out)), labels[left_out]]
        table += list(sums / np.maximum(counts, 1) * worth)
        tried += [(candidate.number, prior) for prior in priors]
    return np.array(table), tried


def log_softmax(outputs: Matrix) -> Matrix:
    shifted = outputs - outputs.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), dtype=np.float32)
