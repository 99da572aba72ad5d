"""Objectives: per-record losses, each with the names of the other models that it reads.

The kind of task is read off the shapes: integer targets with one output are binary (the output is the
logit of class 1), with several outputs multi-class; floating-point targets are regression when they have
the outputs' shape in one column, and multi-label 0/1 targets when they have several. A task kind with its own loss
(`data.tasks`) is named in the losses that a site trains with; see `for_kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from confrere.core.custody import ZERO, Scalar
from confrere.core.errors import StudyError
from confrere.core.protocols import Loss, Objective
from confrere.data.tasks import task_kinds

Teacher = Literal["peers", "none", "private"]
Direction = Literal["teacher-student", "student-teacher"]
Shares = tuple[Scalar, ...]
"""The shares of the classes."""


def check_share(**shares: float | str) -> None:
    """Refuse a weight between two terms of a loss that is not a share of the whole; text ("auto") is left alone."""
    for name, value in shares.items():
        if not isinstance(value, str) and not 0 <= value <= 1:
            raise StudyError(f"{name} is a share between 0 and 1, not {value}")


def is_multilabel(targets: Tensor) -> bool:
    """Whether each record has several answers of yes and no."""
    return targets.is_floating_point() and targets.ndim == 2 and targets.shape[1] > 1


def supervised_loss(outputs: Tensor, targets: Tensor, kind: str = "") -> Tensor:
    """Cross-entropy (or squared error) of each record, or the own loss of a task kind."""
    if kind and (own := task_kinds[kind].loss) is not None:
        return own(outputs, targets)
    if targets.is_floating_point():
        if is_multilabel(targets):
            return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1)
        return (outputs.reshape(-1) - targets.reshape(-1)).square()
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(outputs.dtype), reduction="none")
    return F.cross_entropy(outputs, targets, reduction="none")


def log_probabilities(outputs: Tensor) -> Tensor:
    """Log-probabilities of all classes; a single output is the logit of class 1."""
    if outputs.shape[1] == 1:
        return torch.cat([F.logsigmoid(-outputs), F.logsigmoid(outputs)], 1)
    return F.log_softmax(outputs, 1)


def divergence(student: Tensor, teacher: Tensor, direction: Direction, targets: Tensor) -> Tensor:
    """How far a student's prediction is from its teacher's, record by record.

    Kullback–Leibler for classes, in either direction: KL(teacher ‖ student) is the usual one in
    distillation. With several labels, the sum of it over the labels, each yes or no. For numbers, the squared distance.
    """
    if is_multilabel(targets):
        flat = divergence(
            student.reshape(-1, 1), teacher.reshape(-1, 1), direction, targets.new_zeros(0).long()
        )
        return flat.view(student.shape).sum(1)
    if targets.is_floating_point():
        return (student - teacher).square().sum(1)
    ours, theirs = log_probabilities(student), log_probabilities(teacher)
    if direction == "student-teacher":
        ours, theirs = theirs, ours
    return (theirs.exp() * (theirs - ours)).sum(1)


@dataclass(frozen=True)
class Labelled:
    """What the losses on a site's own labels have in common."""

    kind: str = field(default="", kw_only=True)
    """The task kind whose own loss judges the labels; where there is none, their loss follows from the shapes."""

    def on_labels(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss on the labels alone."""
        return supervised_loss(outputs, targets, self.kind)


@runtime_checkable
class SummedLoss(Protocol):
    """A loss on the labels of the model's own outputs plus something that is known before training.

    With `plain`, nothing else is in it: the labels are judged by their form, and there is no teacher or anchor.
    """

    @property
    def plain(self) -> bool: ...

    @property
    def shares(self) -> Shares | None:
        """The class shares whose logs are added to the outputs; None if classes count as they are."""

    def added(self, others: Mapping[str, Tensor]) -> Tensor | None:
        """What the model's own outputs are added to, apart from class shares; None for nothing."""


@runtime_checkable
class LearnedWith(Protocol):
    """A loss with another model that has learned from this site's records, among others."""

    ours: Scalar
    """Of the records that the other model has learned from, the share that is this site's."""


class StatedRate(Protocol):
    """A loss that is made smaller by plain descent at its own rate."""

    rate: float
    one_batch: bool


def stated_rate(loss: Loss) -> StatedRate | None:
    """The loss, if it states the rate of its descent. Asked of every loss in every round: `isinstance` takes 5 µs."""
    states = hasattr(loss, "rate") and hasattr(loss, "one_batch")
    return cast("StatedRate", loss) if states else None


def label_kind(loss: Loss) -> str:
    """The task kind whose own loss judges the labels; empty where their loss follows from the shapes."""
    return loss.kind if isinstance(loss, Labelled) else ""


def for_kind(loss: Loss, kind: str) -> Loss:
    """The same loss, with the labels judged by the own loss of a task kind, where it has one."""
    own = task_kinds[kind].loss is not None
    return replace(loss, kind=kind) if own and isinstance(loss, Labelled) else loss


@dataclass(frozen=True)
class Supervised(Labelled):
    """The plain loss on the site's own labels."""

    reads: frozenset[str] = frozenset()
    shares: ClassVar[None] = None

    @property
    def plain(self) -> bool:
        return not self.kind

    def added(self, others: Mapping[str, Tensor]) -> Tensor | None:
        return None

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return self.on_labels(own, targets)


@dataclass(frozen=True)
class Near(Labelled):
    """The plain loss, and the weights pulled towards an anchor: (pull/2)·‖w − w_anchor‖² (FedProx)."""

    anchor: str
    pull: float

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.anchor])

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return self.on_labels(own, targets)


@dataclass(frozen=True)
class Descent(Supervised):
    """The plain loss, made smaller by plain descent at a stated rate, whatever the study's optimiser is.

    The way of the weights is then `rate` times the sum of the gradients on it, which can be compared between sites.
    With `one_batch` it is a single step on one batch; where privacy makes the steps, as many as that.
    """

    rate: float = 1.0
    one_batch: bool = True


@dataclass(frozen=True)
class Distilled(Labelled):
    """(1 − weight)·own labels + weight·divergence from a teacher's prediction."""

    teacher: str
    weight: Scalar
    direction: Direction = "teacher-student"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.teacher])

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        w = self.weight.value
        labels = self.on_labels(own, targets)
        if w == 0.0:
            return labels
        return (1 - w) * labels + w * divergence(own, others[self.teacher], self.direction, targets)


@dataclass(frozen=True)
class Stacked(Labelled):
    """The plain loss of the sum of the model's own outputs and `weight` times another model's.

    The model learns what is left to explain once the other has spoken. Outputs are logits, so the sum is a
    product of experts; where the other model says it all, one's own shrinks to nothing.
    """

    under: str
    weight: Scalar
    ours: Scalar = ZERO
    """Of the records that the other model has learned from, the share that is this site's."""
    shares: ClassVar[None] = None

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.under])

    @property
    def plain(self) -> bool:
        return not self.kind

    def added(self, others: Mapping[str, Tensor]) -> Tensor | None:
        return self.weight.value * others[self.under]

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return self.on_labels(own + self.weight.value * others[self.under], targets)


def mutual(
    distill_private: Scalar,
    distill_proxy: Scalar,
    teacher: str | None,
    direction: Direction = "teacher-student",
) -> Objective:
    """Two models that learn from each other: the private one from the proxy, the proxy from `teacher`.

    Deep mutual learning (Zhang et al. 2018) as ProxyFL has it (Kalra, Wen et al. 2023, equations 4 and 5),
    except that the proxy's teacher is a choice: a proxy that reads the private model has no guarantee.
    """
    proxy = Supervised() if teacher is None else Distilled(teacher, distill_proxy, direction)
    return {"private": Distilled("proxy", distill_private, direction), "proxy": proxy}
