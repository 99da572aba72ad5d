"""What a network starts with: the same numbers as it was built with, of every kind."""

from __future__ import annotations

import torch
from torch import nn

from confrere.core.model import Architecture
from confrere.learning.networks.network import NetworkCache


class Salted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.register_buffer("salt", torch.tensor([2**40 + 1, 16_777_217]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(x)
        return found


def test_whole_numbers_are_not_rounded() -> None:
    params = NetworkCache().fresh(Architecture("salted", Salted), 0, "cpu")
    assert params["salt"].tolist() == [2**40 + 1, 16_777_217]
    assert params["salt"].dtype == torch.int64


def test_weights_of_one_kind_are_one_piece() -> None:
    params = NetworkCache().fresh(Architecture("plain", lambda: nn.Linear(3, 2)), 0, "cpu")
    assert params.flatten().data_ptr() == params["bias"].data_ptr()
