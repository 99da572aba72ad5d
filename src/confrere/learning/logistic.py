"""Logistic regression fitted exactly: Newton's method on the last layer of a network whose other layers are fixed.

For a network with one trainable linear layer and one output, a handful of Newton steps replaces hundreds of steps by
gradients. So a site can afford to compare many strengths of regularisation on many folds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confrere.learning.evaluate import predict

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

STEPS = 50
WIDEST = 1000
"""With more inputs than this, solving for a Newton step costs more than it saves."""


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
        curve[np.diag_indices_from(curve)] += pull + 1e-9
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
