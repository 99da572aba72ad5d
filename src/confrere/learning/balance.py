"""Class balancing by logit adjustment.

A site where four of five records are of one class learns to say that class. Adding the log of the class shares to the
outputs while learning (Menon et al. 2021, «logit adjustment») leaves outputs that hold where all classes are equally
frequent; adding them again where the site's own mix is predicted gives back what it had. A site's own class shares are
PRIVATE: they may shape its private model. What leaves may only know shares that were released, or are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from confrere.core.custody import Custody, Scalar
from confrere.core.model import Model
from confrere.core.protocols import Loss, Proximal
from confrere.learning.objectives import Shares, SummedLoss

LEAST = 0.02
"""No class is taken to be rarer than this part of an equal share: noise must not make a class impossible."""


def counted(targets: Tensor, classes: int) -> Shares:
    """The class shares of a site's own records, with one record added to each class; PRIVATE."""
    counts = torch.bincount(targets.long(), minlength=classes).double() + 1
    return tuple(Scalar(float(c / counts.sum()), Custody.PRIVATE) for c in counts)


def released(model: Model) -> Shares | None:
    """The class shares that a proxy carries, with the proxy's custody; None before anything was released."""
    if "shares.weight" not in model.params:
        return None
    shares = model.params["shares.weight"].double().reshape(-1)
    total = float(shares.sum())
    if total <= 0:
        return None
    shares = (shares / total).clamp_min(LEAST / len(shares))
    return tuple(Scalar(float(s), model.custody) for s in shares / shares.sum())


def log_shares(shares: Shares, outputs: int) -> Tensor:
    """What is added to the outputs: log shares, or the log odds of class 1 for a single output."""
    logs = torch.tensor([s.value for s in shares], dtype=torch.float64).log()
    return (logs[1:] - logs[:1] if outputs == 1 else logs).float()


@dataclass(frozen=True)
class Balanced:
    """A loss of outputs to which the log class shares were added; otherwise it is the loss within."""

    within: Loss
    shares: Shares

    @property
    def reads(self) -> frozenset[str]:
        return self.within.reads

    @property
    def plain(self) -> bool:
        return isinstance(self.within, SummedLoss) and self.within.plain

    def added(self, others: Mapping[str, Tensor]) -> Tensor | None:
        return self.within.added(others) if isinstance(self.within, SummedLoss) else None

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return self.within(own + log_shares(self.shares, own.shape[1]).to(own), others, targets)


@dataclass(frozen=True)
class BalancedNear(Balanced):
    """The same for a loss that also pulls the weights towards an anchor."""

    @property
    def anchor(self) -> str:
        return self._proximal.anchor

    @property
    def pull(self) -> float:
        return self._proximal.pull

    @property
    def _proximal(self) -> Proximal:
        assert isinstance(self.within, Proximal)
        return self.within


def balance(loss: Loss, shares: Shares) -> Loss:
    """The same loss, with all classes counting alike."""
    return BalancedNear(loss, shares) if isinstance(loss, Proximal) else Balanced(loss, shares)
