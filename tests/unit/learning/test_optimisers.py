"""Optimisers on a flat vector do what PyTorch's own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.learning.optimisers import SGD, Adam, AdamW, Optimiser, optimiser

PAIRS: list[tuple[Optimiser, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (SGD(0.1), torch.optim.SGD, {"lr": 0.1}),
    (SGD(0.1, momentum=0.9), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (
        SGD(0.1, momentum=0.5, weight_decay=0.2),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.2},
    ),
    (Adam(0.01), torch.optim.Adam, {"lr": 0.01}),
    (Adam(0.01, weight_decay=0.3), torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.3}),
    (Adam(0.01, beta1=0.5, beta2=0.8, epsilon=1e-3), torch.optim.Adam,
     {"lr": 0.01, "betas": (0.5, 0.8), "eps": 1e-3}),
    (AdamW(0.01), torch.optim.AdamW, {"lr": 0.01}),
    (AdamW(0.01, weight_decay=0.3), torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.3}),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=lambda x: str(x))
def test_steps_agree_with_pytorch(
    ours: Optimiser, theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    weights = torch.randn(50)
    parameter = torch.nn.Parameter(weights.clone())
    reference = theirs([parameter], **options)
    state = ours.start(50)
    for _ in range(20):
        gradient = torch.randn(50)
        parameter.grad = gradient.clone()
        reference.step()
        ours.update(weights, gradient, state)
        assert torch.allclose(weights, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_step_moves_the_module_whose_parameters_are_views() -> None:
    layer = torch.nn.Linear(3, 2)
    flat = torch.cat([p.detach().reshape(-1) for p in layer.parameters()])
    layer.weight.data, layer.bias.data = flat[:6].view(2, 3), flat[6:]
    before = layer.bias.detach().clone()
    chosen = Adam(0.1)
    chosen.update(flat, torch.ones(8), chosen.start(8))
    assert torch.allclose(layer.bias.detach(), before - 0.1, atol=1e-5)


def test_the_gradient_is_left_as_it_was() -> None:
    for ours, _, _ in PAIRS:
        gradient = torch.ones(4)
        ours.update(torch.ones(4), gradient, ours.start(4))
        assert torch.equal(gradient, torch.ones(4))


def test_a_study_names_its_optimiser() -> None:
    assert optimiser("adam", learning_rate=0.5) == Adam(0.5)
    with pytest.raises(StudyError, match="no optimiser 'adamm'"):
        optimiser("adamm")
    with pytest.raises(StudyError, match="speed"):
        optimiser("sgd", speed=1)


@pytest.mark.parametrize(
    "bad",
    [{"learning_rate": 0}, {"learning_rate": 1, "weight_decay": -1}, {"learning_rate": 1, "beta1": 1.0}],
)
def test_options_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(StudyError):
        Adam(**bad)
