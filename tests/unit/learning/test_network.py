"""A network at work: one flat vector, read and written by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from confrere.core.errors import StudyError
from confrere.core.model import Architecture
from confrere.core.params import Params
from confrere.learning.networks.network import Network


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_what_is_loaded_is_read_back() -> None:
    one, two = (Network(Architecture("small", small), seed) for seed in (1, 2))
    assert not one.params().equals(two.params())
    two.load(one.params())
    assert one.params().equals(two.params())
    assert "1.running_mean" in one.params()  # what a model remembers belongs to it


def test_a_step_on_the_flat_vector_moves_the_module() -> None:
    network = Network(Architecture("small", small))
    before = network.params()
    network.flat.add_(1.0)
    for name, tensor in network.params().items():
        moved = 0.0 if "running" in name or "num_batches" in name else 1.0
        torch.testing.assert_close(tensor.double(), before[name].double() + moved)


def test_the_gradient_has_the_order_of_the_flat_vector() -> None:
    network = Network(Architecture("line", lambda: nn.Linear(2, 1)))
    gradient = network.backward(network.module(torch.tensor([[3.0, 5.0]])).sum())
    assert gradient.tolist() == [1.0, 3.0, 5.0]  # «bias» comes before «weight»


def test_weights_of_another_architecture_are_refused() -> None:
    with pytest.raises(StudyError, match="another architecture"):
        Network(Architecture("small", small)).load(Params({"weight": torch.zeros(1)}))


def test_a_network_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(StudyError, match="no trainable weights"):
        Network(Architecture("flat", nn.Flatten))


def test_frozen_weights_stay_as_they_are() -> None:
    def half_frozen() -> nn.Module:
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        module[0].requires_grad_(False)
        return module

    network = Network(Architecture("half", half_frozen))
    assert network.flat.numel() == 3
    assert len(network.params()) == 4
