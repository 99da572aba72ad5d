"""Logistic regression fitted exactly, and what a proxy says without its echo."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from confrere.learning.fit.exact_regression import head_of, newton
from confrere.learning.fit.leave_one_out import ProxyTraining, left_out_outputs
from confrere.learning.fit.tuning import near_best


def problem(records: int = 120, inputs: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(records, inputs))
    return x, (x[:, 0] - x[:, 1] + rng.logistic(size=records) > 0).astype(float)


def test_newton_finds_what_scikit_learn_finds() -> None:
    x, y = problem()
    found = newton(np.c_[x, np.ones(len(x))], y, 3.0, np.zeros(len(x)))
    peer = LogisticRegression(C=1 / 3.0, tol=1e-10, max_iter=1000).fit(x, y)
    assert found == pytest.approx([*peer.coef_[0], peer.intercept_[0]], abs=1e-4)


def test_newton_survives_classes_that_fall_apart() -> None:
    x = np.c_[np.linspace(-1, 1, 20), np.ones(20)]
    weights = newton(x, (x[:, 0] > 0).astype(float), 0.1, np.zeros(20))
    assert np.isfinite(weights).all()
    assert weights[0] > 1


def test_only_a_network_with_one_trainable_layer_and_one_output_has_a_head() -> None:
    assert head_of(nn.Sequential(nn.Flatten(), nn.Linear(3, 1))) is not None
    assert head_of(nn.Sequential(nn.Flatten(), nn.Linear(3, 2))) is None
    assert head_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))) is None


def test_without_its_echo_a_proxy_says_what_it_would_say_had_it_not_seen_the_record() -> None:
    """Against training it again without each record."""
    x, y = problem(60)
    features = np.c_[x, np.ones(60)]
    weights = newton(features, y, 0.6, np.zeros(60))
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    head = head_of(module)
    assert head is not None
    head.put(weights)
    exact = np.array(
        [
            features[i] @ newton(np.delete(features, i, 0), np.delete(y, i), 0.6, np.zeros(59))
            for i in range(60)
        ]
    )
    seen = torch.arange(60) < 50
    found = left_out_outputs(
        module,
        torch.as_tensor(x, dtype=torch.float32),
        torch.as_tensor(y).long(),
        seen,
        ProxyTraining(60.0, time=100.0),
    )
    assert found is not None
    raw = features @ weights
    assert np.abs(found - exact)[:50].mean() < 0.25 * np.abs(raw - exact)[:50].mean()
    assert found[50:] == pytest.approx(raw[50:], abs=1e-5)


def test_what_cannot_be_told_from_the_best_counts_almost_as_much_and_what_is_behind_hardly() -> None:
    rng = np.random.default_rng(0)
    best = rng.random(400)
    close, far = best + rng.normal(size=400) * 0.5 + 0.005, best + 0.2 + rng.normal(size=400) * 0.1
    shares = near_best(np.array([best, close, far]), [0.5, 0.25, 0.25])
    assert shares.sum() == pytest.approx(1)
    assert shares[1] > 0.15
    assert shares[2] == 0
