"""The mixing matrix of a topology."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from confrere.core.protocols import Topology


def matrix_of(graph: Topology, round: int, members: Sequence[str]) -> Tensor:
    """The mixing matrix of a round, members in sorted order: entry [k, k'] is what k receives of k'."""
    names = sorted(members)
    out = torch.zeros(len(names), len(names), dtype=torch.float64)
    for j, sender in enumerate(names):
        for receiver, share in graph.column(round, names, sender).items():
            out[names.index(receiver), j] = share
    return out
