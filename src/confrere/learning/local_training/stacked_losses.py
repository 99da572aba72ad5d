"""The losses of many sites at once: values and slopes for all records, with each site's own weights.

Losses that are written here are those of `learning.objectives`; any other, and the own loss of a task kind, is called site
by site.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from confrere.core.protocols import Loss
from confrere.learning.balance import Balanced, BalancedNear, log_shares
from confrere.learning.objectives import Direction, Distilled, Near, Stacked, Supervised, label_kind

Joined = Callable[[Tensor, Mapping[str, Tensor], Tensor, Sequence[int]], tuple[Tensor, Tensor]]
"""(outputs [sites, records, outputs], others, targets [sites, records, …], records of each site) →
losses [sites, records] and their slopes at the outputs. What it says about padding means nothing."""


@dataclass(frozen=True)
class StackedForm:
    """How the losses of one class are computed for many sites at once."""

    join: Callable[[Sequence[Any]], Joined]
    """One function for the losses of several sites, all of one kind."""
    kind: Callable[[Any], Hashable]
    """What two of them must share beside their class: everything but the weights of a site's own."""
    needs: Callable[[Any], frozenset[str]] = attrgetter("reads")
    """The models whose outputs the loss looks at."""


def kind_of(loss: Loss) -> Hashable:
    """What two losses must share to be computed together."""
    return type(loss), _form(loss).kind(loss)


def needed(loss: Loss) -> frozenset[str]:
    """The models whose outputs the loss reads; of an anchor it reads only the weights."""
    return FORMS.get(type(loss), SITE_BY_SITE).needs(loss)


def joined(losses: Sequence[Loss]) -> Joined:
    """One function for the losses of several sites; all of them are of one kind."""
    return _form(losses[0]).join(losses)


def _form(loss: Loss) -> StackedForm:
    """The form of a loss. The own loss of a task kind is not written out here."""
    return SITE_BY_SITE if label_kind(loss) else FORMS.get(type(loss), SITE_BY_SITE)


def _supervised(
    own: Tensor, others: Mapping[str, Tensor], targets: Tensor, counts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The plain loss, its slope written out: prediction minus truth."""
    if targets.is_floating_point():
        if targets.ndim == 3 and targets.shape[2] > 1:
            values = F.binary_cross_entropy_with_logits(own, targets, reduction="none").sum(2)
            return values, torch.sigmoid(own).sub_(targets)
        error = own - targets.reshape(own.shape)
        return error.square().squeeze(2), error.mul(2)
    if own.shape[2] == 1:
        truth = targets.unsqueeze(2).to(own.dtype)
        values = F.binary_cross_entropy_with_logits(own, truth, reduction="none").squeeze(2)
        return values, torch.sigmoid(own).sub_(truth)
    logs = own.log_softmax(2)
    at = targets.unsqueeze(2)
    values = logs.gather(2, at).squeeze(2).neg_()
    slopes = logs.exp_()
    return values, slopes.scatter_add_(2, at, slopes.new_full((1, 1, 1), -1.0).expand(at.shape))


def _weights(losses: Sequence[Distilled | Stacked]) -> Tensor:
    return torch.tensor([float(loss.weight.value) for loss in losses])


def _stacked(losses: Sequence[Stacked]) -> Joined:
    under, weights = losses[0].under, _weights(losses)

    def loss(
        own: Tensor, others: Mapping[str, Tensor], targets: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        return _supervised(own + weights[: len(own), None, None] * others[under], {}, targets, counts)

    return loss


def _balanced(losses: Sequence[Balanced]) -> Joined:
    """The losses within, of outputs to which each site's log class shares were added."""
    within = joined([loss.within for loss in losses])

    def loss(
        own: Tensor, others: Mapping[str, Tensor], targets: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        shifts = torch.stack([log_shares(one.shares, own.shape[2]) for one in losses[: len(own)]])
        return within(own + shifts.unsqueeze(1), others, targets, counts)

    return loss


def _distilled(losses: Sequence[Distilled]) -> Joined:
    """The plain loss and the divergence from a teacher, slopes written out; who gives it no weight does not look at it."""
    like, weights = losses[0], _weights(losses)
    alone, some = weights == 0, bool((weights == 0).any())
    if bool(alone.all()):
        return _supervised

    def loss(
        own: Tensor, others: Mapping[str, Tensor], targets: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        sites = len(own)
        values, slopes = _supervised(own, {}, targets, counts)
        apart, pull = _divergence(own, others[like.teacher], like.direction, targets)
        share = weights[:sites].unsqueeze(1)
        mixed, turned = torch.lerp(values, apart, share), torch.lerp(slopes, pull, share.unsqueeze(2))
        if some:
            left = alone[:sites]
            return values.where(left[:, None], mixed), slopes.where(left[:, None, None], turned)
        return mixed, turned

    return loss


def _divergence(
    student: Tensor, teacher: Tensor, direction: Direction, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """`objectives.divergence` of all sites' records and its slope at the student's outputs."""
    labels = targets.is_floating_point() and targets.ndim == 3 and targets.shape[2] > 1
    gap = student - teacher
    if targets.is_floating_point() and not labels:
        return gap.square().sum(2), gap.mul_(2)
    if labels or student.shape[2] == 1:  # yes or no: the chances and log(1 + e^logit) of both
        chance, theirs = torch.sigmoid(student), torch.sigmoid(teacher)
        between = F.softplus(student) - F.softplus(teacher)
        if direction == "teacher-student":
            return (between - theirs * gap).sum(2), chance - theirs
        return (chance * gap - between).sum(2), chance * (1 - chance) * gap
    ours, theirs = student.log_softmax(2), teacher.log_softmax(2)
    if direction == "teacher-student":
        chance = theirs.exp()
        return (chance * (theirs - ours)).sum(2), ours.exp_().sub_(chance)
    chance, apart = ours.exp(), ours - theirs
    values = (chance * apart).sum(2)
    return values, chance * (apart - values.unsqueeze(2))


def _site_by_site(losses: Sequence[Loss]) -> Joined:
    def loss(
        own: Tensor, others: Mapping[str, Tensor], targets: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        values, slopes = own.new_zeros(own.shape[:2]), torch.zeros_like(own)
        with torch.enable_grad():
            for site, count in enumerate(counts):
                if not count:
                    continue
                logits = own[site, :count].detach().requires_grad_()
                seen = {name: said[site, :count] for name, said in others.items()}
                found = losses[site](logits, seen, targets[site, :count])
                values[site, :count] = found.detach()
                (slopes[site, :count],) = torch.autograd.grad(found, logits, torch.ones_like(found))
        return values, slopes

    return loss


def _pull(loss: Loss) -> Hashable:
    return loss.reads, getattr(loss, "pull", None)


def _within(loss: Balanced) -> Hashable:
    return kind_of(loss.within)


SITE_BY_SITE = StackedForm(_site_by_site, _pull)
BALANCED = StackedForm(_balanced, _within, lambda loss: needed(loss.within))
FORMS: dict[type, StackedForm] = {
    Supervised: StackedForm(lambda losses: _supervised, lambda loss: None),
    Near: StackedForm(lambda losses: _supervised, _pull, lambda loss: frozenset()),
    Stacked: StackedForm(_stacked, attrgetter("under")),
    Distilled: StackedForm(_distilled, attrgetter("teacher", "direction")),
    Balanced: BALANCED,
    BalancedNear: BALANCED,
}
"""The losses that are written out here; all others are called site by site."""
