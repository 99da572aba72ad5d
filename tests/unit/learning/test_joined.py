"""The losses of many sites at once, with slopes written out by hand, are those of each site alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from confrere.core.custody import public
from confrere.core.protocols import Loss
from confrere.learning.local_training.stacked_losses import joined
from confrere.learning.objectives import Distilled, Near, Stacked, Supervised

SITES, RECORDS = 4, 6
KINDS = ["binary", "classes", "regression", "labels"]


def made_up(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, a teacher's outputs, and targets of a kind of task."""
    draw = torch.Generator().manual_seed(len(kind))
    outputs = {"binary": 1, "classes": 3, "regression": 1, "labels": 3}[kind]
    own, other = (3 * torch.randn(SITES, RECORDS, outputs, generator=draw) for _ in range(2))
    if kind in ("binary", "classes"):
        return own, other, torch.randint(0, max(2, outputs), (SITES, RECORDS), generator=draw)
    if kind == "labels":
        return own, other, torch.randint(0, 2, (SITES, RECORDS, outputs), generator=draw).float()
    return own, other, torch.randn(SITES, RECORDS, generator=draw)


def alone(loss: Loss, own: Tensor, other: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What PyTorch's own differentiation says."""
    logits = own.clone().requires_grad_()
    values = loss(logits, {"t": other}, targets)
    (slopes,) = torch.autograd.grad(values.sum(), logits)
    return values.detach(), slopes


def check(losses: Sequence[Loss], kind: str) -> None:
    own, other, targets = made_up(kind)
    with torch.inference_mode():
        values, slopes = joined(losses)(own, {"t": other}, targets, [RECORDS] * SITES)
        values, slopes = values.clone(), slopes.clone()
    for k, loss in enumerate(losses):
        want, turned = alone(loss, own[k], other[k], targets[k])
        torch.testing.assert_close(values[k].clone(), want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(slopes[k].clone(), turned, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["teacher-student", "student-teacher"])
@pytest.mark.parametrize("weights", [(0.1, 0.5, 0.9, 1.0), (0.0, 0.3, 0.0, 1.0), (0.0,) * 4], ids=str)
def test_learning_from_a_teacher(kind: str, direction: Any, weights: Sequence[float]) -> None:
    check([Distilled("t", public(w), direction) for w in weights], kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "loss", [Supervised(), Near("t", 0.1), Stacked("t", public(0.7))], ids=lambda x: type(x).__name__
)
def test_other_losses(kind: str, loss: Loss) -> None:
    check([loss] * SITES, kind)


def test_who_gives_a_teacher_no_weight_does_not_mind_what_it_says() -> None:
    own, other, targets = made_up("classes")
    other[1] = torch.inf
    losses = [Distilled("t", public(w)) for w in (0.5, 0.0, 0.5, 0.5)]
    values, slopes = joined(losses)(own, {"t": other}, targets, [RECORDS] * SITES)
    assert bool(values[1].isfinite().all())
    assert bool(slopes[1].isfinite().all())
