"""Several classes fitted to the end: the same as a plain optimiser finds, and judged as the study counts."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from confrere.learning.softmax import Candidate, fitted, judge, layer_of


def records(count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 4)).astype(np.float32)
    scores = features @ rng.normal(size=(4, 3)) + rng.gumbel(size=(count, 3))
    return features, scores.argmax(1)


def test_the_fit_is_where_the_slope_of_the_penalised_loss_is_nothing() -> None:
    features, labels = records()
    weights = torch.from_numpy(fitted(features, labels, np.zeros((300, 3), np.float32), 2.0)).requires_grad_()
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    loss = nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y, reduction="sum")
    (loss + weights[:-1].square().sum()).backward()  # prior 2: half of two
    assert weights.grad is not None
    assert float(weights.grad.abs().max()) < 0.1


def test_what_stands_underneath_needs_not_be_learned_again() -> None:
    features, labels = records()
    zero = np.zeros((300, 3), np.float32)
    alone = fitted(features, labels, zero, 1.0)
    rest = fitted(features, labels, features @ alone[:-1] + alone[-1], 1.0)
    assert np.abs(rest[:-1]).max() < 0.2 * np.abs(alone[:-1]).max()


def test_a_rare_class_counts_for_more_where_classes_count_alike() -> None:
    features, labels = records()
    zero = np.zeros((300, 3), np.float32)
    folds = [(np.arange(150), np.arange(150, 300)), (np.arange(150, 300), np.arange(150))]
    one = [Candidate(0, zero, zero, zero)]
    plain, tried = judge(features, labels, one, (1.0, 10.0), folds, np.ones(300))
    worth = np.where(labels == 0, 5.0, 1.0)
    counted, _ = judge(features, labels, one, (1.0, 10.0), folds, worth)
    assert tried == [(0, 1.0), (0, 10.0)]
    assert np.allclose(counted, plain * worth)


def test_only_a_single_linear_layer_with_several_outputs_is_taken() -> None:
    assert layer_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))) is not None
    assert layer_of(nn.Linear(4, 3)) is not None
    assert layer_of(nn.Linear(4, 1)) is None
    assert layer_of(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))) is None
