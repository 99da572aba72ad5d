"""The network that releases the mean loss of another model privately (`learning/private_loss_sum.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from confrere.learning.networks.architectures import network

LOSS_SUM = "loss_sum"
"""The network that holds the mean loss of another model."""


class LossSum(nn.Module):
    """A single weight that does not read the record: only the loss does."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.total = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.total.weight)

    def forward(self, x: Tensor) -> Tensor:
        one: Tensor = self.total(x.new_ones(len(x), 1))
        return one.expand(-1, self.outputs)


@network(LOSS_SUM)
def loss_sum(shape: Sequence[int], outputs: int) -> nn.Module:
    """Holds one number, the mean loss of another model; not for use as a model of a study."""
    return LossSum(outputs)
