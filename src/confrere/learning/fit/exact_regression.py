"""Exactly fitted regression: logistic, linear (ridge) and multiclass (softmax).

Where only the last, linear layer of a network is trainable, a few Newton steps, or one solution of linear equations,
replace hundreds of gradient steps. So a site can afford to compare many strengths of regularisation on many folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # `scipy.optimize` is loaded when a model is first fitted
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confrere.learning.evaluation import predict

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Singles = NDArray[np.float32]
Rows = NDArray[np.int64]
Fold = tuple[Rows, Rows]
"""The rows to train on and the rows to judge by."""

STEPS = 50
WIDEST = 1000
"""With more inputs than this, solving for a Newton step costs more than it saves."""

ITERATIONS = 60
"""Of L-BFGS, for several classes."""


@dataclass(frozen=True)
class Head:
    """A network as fixed features and one trainable linear layer on top of them."""

    body: nn.Module | None
    layer: nn.Linear

    def features(self, inputs: Tensor) -> Matrix:
        """The inputs of the last layer, with a constant behind them."""
        found = inputs if self.body is None else predict(self.body, inputs)
        flat = found.reshape(len(inputs), -1).double().cpu().numpy()
        return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)

    def weights(self) -> Vector:
        both = torch.cat([self.layer.weight.detach().reshape(-1), self.layer.bias.detach().reshape(-1)])
        return np.asarray(both.double().cpu().numpy())

    def put(self, weights: Vector) -> None:
        new = torch.from_numpy(weights).to(self.layer.weight)
        self.layer.weight.data.copy_(new[:-1].reshape(self.layer.weight.shape))
        self.layer.bias.data.copy_(new[-1:])


def head_of(module: nn.Module) -> Head | None:
    """The trainable layer of a network that is otherwise fixed and has one output; None for any other network."""
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    layer = parts[-1] if parts else None
    if not isinstance(layer, nn.Linear) or layer.bias is None or layer.out_features != 1:
        return None
    if layer.in_features > WIDEST or any(p.requires_grad for part in parts[:-1] for p in part.parameters()):
        return None
    return Head(nn.Sequential(*parts[:-1]) if len(parts) > 1 else None, layer)


def newton(
    features: Matrix, labels: Vector, prior: float, under: Vector, start: Vector | None = None
) -> Vector:
    """The weights that make the summed log loss of `features @ weights + under`, and prior/2·‖weights‖², least.

    The constant (last) is not pulled to zero. Steps are halved until they make the sum less.
    """
    pull = np.full(features.shape[1], prior)
    pull[-1] = 1e-6  # keeps a site with one class finite
    weights = np.zeros(features.shape[1]) if start is None else start.copy()

    def total(at: Vector) -> float:
        logits = features @ at + under
        return float(np.logaddexp(0, logits).sum() - labels @ logits + 0.5 * (pull * at * at).sum())

    value = total(weights)
    for _ in range(STEPS):
        chance = chances(features @ weights + under)
        slope = features.T @ (chance - labels) + pull * weights
        curve = (features * (chance * (1 - chance))[:, None]).T @ features
        curve.flat[:: len(pull) + 1] += pull + 1e-9  # the diagonal
        step = np.linalg.solve(curve, slope)
        length = 1.0
        while (lower := total(weights - length * step)) > value and length > 1e-4:
            length /= 2
        if lower > value:
            break
        weights = weights - length * step
        done = value - lower < 1e-9 * (1 + abs(value))
        value = lower
        if done:
            break
    return weights


def chances(logits: Vector) -> Vector:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))


def ridge(features: Matrix, values: Vector, prior: float, under: Vector) -> Vector:
    """The weights that make the summed squared error of `features @ weights + under`, and prior/2·‖weights‖², least.

    The constant (last) is not pulled to zero.
    """
    pull = np.full(features.shape[1], prior / 2)
    pull[-1] = 1e-6
    curve = features.T @ features
    curve.flat[:: len(pull) + 1] += pull + 1e-9  # the diagonal
    return np.asarray(np.linalg.solve(curve, features.T @ (values - under)))


def layer_of(module: nn.Module) -> nn.Linear | None:
    """The one linear layer with several outputs that a network consists of; None for any other network."""
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    layer = parts[-1] if parts else None
    if not isinstance(layer, nn.Linear) or layer.bias is None or layer.out_features < 2:
        return None
    return layer if all(isinstance(p, nn.Flatten) for p in parts[:-1]) else None


def softmax(
    features: Singles, labels: NDArray[np.int64], under: Singles, prior: float, start: Singles | None = None
) -> Singles:
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
    found = scipy.optimize.minimize(
        value, begin.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}
    )
    return np.asarray(found.x.reshape(shape), dtype=np.float32)


def log_softmax(outputs: Singles) -> Singles:
    shifted = outputs - outputs.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), dtype=np.float32)


def left_out_losses(
    records: int,
    priors: Sequence[float],
    folds: Sequence[Fold],
    fit: Callable[[Rows, float, NDArray[np.floating] | None], NDArray[np.floating]],
    losses: Callable[[NDArray[np.floating], Rows], Vector],
) -> Matrix:
    """The mean loss of each record while it was left out, for each strength of regularisation: priors × records.

    `fit(rows, prior, start)` gives weights and `losses(weights, rows)` the loss of each of these rows.
    """
    sums, counts = np.zeros((len(priors), records)), np.zeros(records)
    for rows, left_out in folds:
        counts[left_out] += 1
        weights: NDArray[np.floating] | None = None
        for place in reversed(range(len(priors))):  # the strongest is found soonest and leads to the next
            weights = fit(rows, priors[place], weights)
            sums[place, left_out] += losses(weights, left_out)
    return np.asarray(sums / np.maximum(counts, 1))
