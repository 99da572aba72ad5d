"""The task of `simulation.py`: made-up records, the network, and how well a model of it does.

It is apart so that other frameworks, in an environment of their own, can be given the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RECORDS, DRAWN, BATCH, RATE = 50, 50, 10, 0.1


def records(sites: int) -> tuple[Tensor, Tensor]:
    """The same made-up records for everybody: 32 inputs, of which some tell the class."""
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(sites, RECORDS, 32, generator=draw)
    score = x[..., :8].sum(-1) + torch.randn(sites, RECORDS, generator=draw)
    return x, (score > 0).long()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))


def final_loss(model: nn.Module, sites: int) -> float:
    x, y = records(sites)
    with torch.no_grad():
        return float(F.cross_entropy(model(x.flatten(0, 1)), y.flatten()))
