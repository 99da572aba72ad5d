"""Several classes fitted to the end: the same as a plain optimiser finds, and judged as the study counts."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from confrere.learning.fit.exact_regression import layer_of, left_out_losses, softmax


def records(count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 4)).astype(np.float32)
    scores = features @ rng.normal(size=(4, 3)) + rng.gumbel(size=(count, 3))
    return features, scores.argmax(1)


def test_the_fit_is_where_the_slope_of_the_penalised_loss_is_nothing() -> None:
    features, labels = records()
    weights = torch.from_numpy(
        softmax(features, labels, np.zeros((300, 3), np.float32), 2.0)
    ).requires_grad_()
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    loss = nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y, reduction="sum")
    (loss + weights[:-1].square().sum()).backward()  # prior 2: half of two
    assert weights.grad is not None
    assert float(weights.grad.abs().max()) < 0.1


def test_what_stands_underneath_needs_not_be_learned_again() -> None:
    features, labels = records()
    zero = np.zeros((300, 3), np.float32)
    alone = softmax(features, labels, zero, 1.0)
    rest = softmax(features, labels, features @ alone[:-1] + alone[-1], 1.0)
    assert np.abs(rest[:-1]).max() < 0.2 * np.abs(alone[:-1]).max()


def test_each_record_is_judged_by_the_fits_that_left_it_out() -> None:
    folds = [
        (np.arange(2), np.arange(2, 4)),
        (np.arange(2, 4), np.arange(2)),
        (np.arange(1), np.arange(1, 4)),
    ]

    def fit(rows: np.ndarray, prior: float, start: np.ndarray | None) -> np.ndarray:
        assert start is None or start[1] > prior  # the stronger fit leads to the weaker one
        return np.array([rows.sum(), prior])

    found = left_out_losses(4, (1.0, 10.0), folds, fit, lambda weights, rows: weights[0] + weights[1] * rows)
    assert np.allclose(found, [[5, 3.5, 2.5, 3.5], [5, 12.5, 20.5, 30.5]])


def test_only_a_single_linear_layer_with_several_outputs_is_taken() -> None:
    assert layer_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))) is not None
    assert layer_of(nn.Linear(4, 3)) is not None
    assert layer_of(nn.Linear(4, 1)) is None
    assert layer_of(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))) is None
