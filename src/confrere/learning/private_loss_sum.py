"""Release the sum of a site's losses, and hence their mean, under differential privacy, charged like a model.

A private step releases a sum of per-record gradients. Here the gradient of each record, with respect to a single weight,
is its loss cut off at a public bound; so the mean loss is released by the same mechanism as a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from confrere.core.custody import Custody, Scalar
from confrere.core.model import Model
from confrere.core.protocols import Site
from confrere.learning.networks.loss_sum import LOSS_SUM
from confrere.learning.objectives import supervised_loss


@dataclass(frozen=True)
class LossAsSum:
    """A loss whose gradient is minus the loss of the model `of`, cut off at `bound` and divided by it."""

    of: str
    bound: float

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.of])

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        found = supervised_loss(others[self.of], targets).clamp(0, self.bound) / self.bound
        return -own[:, 0] * found


async def mean_loss(site: Site, model: Model, bound: float) -> Scalar | None:
    """The mean loss of a model on the site's training records, each cut off at `bound`; it may leave the site.

    None if the site's budget is spent: then nothing was measured. With noise, the mean may be below 0 or above the bound;
    it is clamped to that range.
    """
    start = site.build(LOSS_SUM)
    found = (
        await site.train(
            {LOSS_SUM: LossAsSum("model", bound)}, {LOSS_SUM: start, "model": model}, protect=[LOSS_SUM]
        )
    )[LOSS_SUM]
    if found.custody == Custody.PUBLIC:
        return None
    value = bound * float(found.params["total.weight"])
    return Scalar(min(max(value, 0.0), bound), found.custody)
