"""Networks for bags: records that are a set of feature vectors, as a whole-slide image is one of its patches' features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.learning.architectures import network
from confrere.learning.sequences import unmasked, width

Pool = Literal["mean", "sum", "max"]


class DeepSets(nn.Module):
    """Each member of a bag is encoded by itself, what they say is pooled, and the pool is classified.

    The order of the members does not matter, nor how many places of the bag are empty.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int, pool: Pool, mask: bool) -> None:
        super().__init__()
        self.mask, self.pool = mask, pool
        self.member = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x: Tensor) -> Tensor:
        x, there = unmasked(x, self.mask)
        said = self.member(x) * there
        if self.pool == "max":  # after a ReLU nothing is below zero, so empty places never win
            return self.head(said.amax(1))  # type: ignore[no-any-return]
        total = said.sum(1)
        return self.head(total / there.sum(1).clamp_min(1.0) if self.pool == "mean" else total)  # type: ignore[no-any-return]


@network("deepsets")
def deepsets(
    shape: Sequence[int], outputs: int, hidden: int = 64, pool: Pool = "mean", mask: bool = False
) -> nn.Module:
    """Sets of feature vectors (members × features), pooled by mean, sum or max (Zaheer et al. 2017)."""
    if pool not in ("mean", "sum", "max"):
        raise StudyError(f'network "deepsets": pool is "{pool}"; it is "mean", "sum" or "max"')
    if len(shape) != 2:
        raise StudyError(
            f'network "deepsets" needs bags (members × features), not inputs of {"×".join(map(str, shape))}'
        )
    return DeepSets(width(shape, "deepsets", mask), outputs, hidden, pool, mask)
