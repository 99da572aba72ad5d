"""A number fitted exactly, and judged without the echo of the record that it is said about."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from confrere.learning.fit.exact_regression import ridge
from confrere.learning.fit.leave_one_out import ProxyTraining, left_out_outputs
from confrere.learning.step_schedule import MOMENTUM, slow_for_squares


def numbers(count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, 3))
    features = np.concatenate([inputs, np.ones((count, 1))], axis=1)
    return features, features @ [1.0, -2.0, 0.5, 3.0] + 0.1 * rng.normal(size=count)


def test_the_slope_of_what_is_made_least_is_zero() -> None:
    features, values = numbers()
    under = 0.3 * features[:, 0]
    found = ridge(features, values, 10.0, under)
    slope = 2 * features.T @ (features @ found + under - values) + 10.0 * found * [1, 1, 1, 0]
    assert slope == pytest.approx(np.zeros(4), abs=1e-4)
    strong = ridge(features, values, 1e7, np.zeros(80))
    assert strong == pytest.approx([0, 0, 0, values.mean()], abs=0.01)


def test_without_its_echo_a_model_says_what_it_would_have_said_without_the_record() -> None:
    features, values = numbers(40)
    whole = ridge(features, values, 0.0, np.zeros(40))
    module = nn.Sequential(nn.Linear(3, 1))
    with torch.no_grad():
        module[0].weight.copy_(torch.from_numpy(whole[:3])[None])
        module[0].bias.fill_(float(whole[3]))
    inputs, targets = torch.from_numpy(features[:, :3]).float(), torch.from_numpy(values).float()
    seen = torch.arange(40) < 30
    fair = left_out_outputs(module, inputs, targets, seen, ProxyTraining(40.0))
    assert fair is not None
    for row in range(30):
        others = np.arange(40) != row
        left_out = features[row] @ ridge(features[others], values[others], 0.0, np.zeros(39))
        raw = float(features[row] @ whole)
        assert abs(fair[row] - left_out) < 0.25 * abs(raw - left_out) + 1e-3
    assert fair[30:] == pytest.approx(features[30:] @ whole, abs=1e-4)


def test_private_steps_on_squared_errors_do_not_swing() -> None:
    """Gradient descent with this pace comes nearer to the best weights, even where all inputs are as large as can be."""
    features = np.concatenate([np.sign(numbers()[0][:, :3]), np.ones((80, 1))], axis=1)
    values = features @ [1.0, -2.0, 0.5, 3.0]
    steps = 50
    rate = slow_for_squares(500.0, steps, 3) * (1 - MOMENTUM) / steps
    weights, speed = np.zeros(4), np.zeros(4)
    losses = []
    for _ in range(steps):
        speed = MOMENTUM * speed + 2 * features.T @ (features @ weights - values) / 80
        weights = weights - rate * speed
        losses.append(float(np.square(features @ weights - values).mean()))
    assert losses[-1] < 1e-3 * losses[0]
