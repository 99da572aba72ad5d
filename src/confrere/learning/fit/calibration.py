"""Calibration: the factor to scale a model's outputs by so that they fit a site's records best."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.learning.objectives import is_multilabel

Vector = NDArray[np.float64]

PLENTY = 2_000
"""This many records determine one number."""

LARGEST = 3.0
"""The outputs of a proxy whose training was short are scaled up at most this far."""


def best_scale(outputs: Tensor, targets: Tensor, worth: Tensor | None = None) -> float:
    """The factor, from 0 to 3, by which a model's outputs fit these records best, beside a free constant.

    For logits this is one number of Platt's scaling (1999) for each class constant: how much of what the
    model says holds here. A useless model gets 0; without a record nothing speaks against it, and it gets 1.
    `worth` is how much each class's records count.
    """
    outputs, targets = outputs[:PLENTY], targets[:PLENTY]
    z, n = outputs.detach().double(), len(targets)
    if n == 0:
        return 1.0
    if is_multilabel(targets):
        return _of_labels(z.numpy(), targets.double().numpy())
    if targets.is_floating_point():
        y = targets.double().reshape(n, -1)
        zc, yc = z - z.mean(0), y - y.mean(0)
        return min(max(float((zc * yc).sum() / zc.square().sum().clamp_min(1e-12)), 0.0), LARGEST)
    if z.shape[1] == 1:
        z = torch.cat([torch.zeros_like(z), z], 1)
    logits, classes = z.numpy(), z.shape[1]
    truth = np.eye(classes)[targets.numpy()]
    counts = (np.ones(n) if worth is None else worth.double().numpy()[targets.numpy()])[:, None] / n

    def derivatives(at: Vector) -> tuple[Vector, Vector]:
        scores = at[0] * logits + at[1:]
        chance = np.exp(scores - scores.max(1, keepdims=True))
        chance /= chance.sum(1, keepdims=True)
        error = (chance - truth) * counts
        mean = (chance * logits).sum(1, keepdims=True)
        curve = np.zeros((classes + 1, classes + 1))
        curve[0, 0] = (counts * chance * logits * (logits - mean)).sum()
        curve[0, 1:] = curve[1:, 0] = (counts * chance * (logits - mean)).sum(0)
        curve[1:, 1:] = np.diag((counts * chance).sum(0)) - (counts * chance).T @ chance
        return np.concatenate([[(error * logits).sum()], error.sum(0)]), curve

    return _factor(derivatives, classes, n)


def _of_labels(logits: Vector, truth: Vector) -> float:
    """The same for several labels: one factor, and a constant for each label."""
    n, labels = logits.shape

    def derivatives(at: Vector) -> tuple[Vector, Vector]:
        chance = 1 / (1 + np.exp(-np.clip(at[0] * logits + at[1:], -30, 30)))
        error, bend = (chance - truth) / n, chance * (1 - chance) / n
        curve = np.diag(np.concatenate([[(bend * logits**2).sum()], bend.sum(0)]))
        curve[0, 1:] = curve[1:, 0] = (bend * logits).sum(0)
        return np.concatenate([[(error * logits).sum()], error.sum(0)]), curve

    return _factor(derivatives, labels, n)


def _factor(derivatives: Callable[[Vector], tuple[Vector, Vector]], constants: int, records: int) -> float:
    """The factor, by Newton's method on it and the constants; `derivatives` gives slope and curvature of the mean loss."""
    aim = np.array([1.0, *[0.0] * constants])
    at, pull = aim, 2 / records  # a faint pull to 1 and 0 keeps the fit finite where the classes fall apart
    for _ in range(12):
        slope, curve = derivatives(at)
        step = np.linalg.solve(curve + np.diag(np.full(constants + 1, pull)), slope + pull * (at - aim))
        step *= min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        at = at - step
        if float(np.abs(step).max()) < 1e-4:
            break
    return min(max(float(at[0]), 0.0), LARGEST)
