"""A loss is tried before a private step: one record must not reach another record's loss."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from confrere.core.custody import public
from confrere.core.errors import UnsafeModule
from confrere.core.protocols import Loss
from confrere.learning.balance import Balanced, BalancedNear
from confrere.learning.networks.network import MICROBATCH
from confrere.learning.objectives import Descent, Distilled, Near, Stacked, Supervised, supervised_loss
from confrere.learning.private_centre import Profiled
from confrere.learning.private_loss_sum import LossAsSum
from confrere.privacy import lint
from confrere.site.site_round import SiteRound
from tests.unit.privacy.test_custody_rules import site_of, train

OWN = torch.randn(MICROBATCH, 3, generator=torch.Generator().manual_seed(1))
OTHERS = {"peer": torch.randn(MICROBATCH, 3, generator=torch.Generator().manual_seed(2))}
CLASSES = torch.arange(MICROBATCH) % 3
NUMBERS = torch.randn(MICROBATCH, generator=torch.Generator().manual_seed(3))
LABELS = (torch.randn(MICROBATCH, 3, generator=torch.Generator().manual_seed(4)) > 0).float()
SHARES = (public(0.2), public(0.3), public(0.5))


@dataclass(frozen=True)
class Mixing:
    """The plain loss, changed by a factor that other records of the batch have a say in."""

    how: str
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        plain = supervised_loss(own, targets)
        count = int((targets == 1).sum())
        if self.how == "a mean over the batch":
            return plain * (1 + targets.float().mean())
        if self.how == "a count above 100":
            return plain if count > 100 else -plain
        if self.how == "a count above 3000":
            return plain if count > 3000 else -plain
        if self.how == "the size of the batch":
            return plain / len(own)
        if self.how == "the slope alone":
            strangers = own[:, 0] * own.mean()
            return plain + strangers - strangers.detach()
        if self.how == "the largest output":
            return plain * own.abs().max().clamp(max=20)
        if self.how == "one loss for all":
            return plain.mean().reshape(1)
        if self.how == "only in large batches":
            return plain - plain.mean() if len(own) > 40 else plain
        return plain


HOWS = [
    "a mean over the batch", "a count above 100", "a count above 3000", "the size of the batch", "the slope alone",
    "the largest output", "one loss for all", "only in large batches",
]  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
def test_a_loss_that_mixes_records_is_refused(how: str) -> None:
    with pytest.raises(UnsafeModule, match=r"mixes records|one loss per record"):
        lint.check_loss(Mixing(how), OWN, {}, CLASSES)


@pytest.mark.parametrize("how", HOWS)
def test_a_loss_that_mixes_records_is_refused_before_anything_is_charged(how: str) -> None:
    site = site_of()
    with pytest.raises(UnsafeModule, match="the proxy loss Mixing: "):
        train(site, {"proxy": Mixing(how)})
    assert site.ledger.charges() == ()


def test_a_loss_that_remembers_records_is_refused() -> None:
    seen: list[Any] = []

    class Remembering:
        reads: frozenset[str] = frozenset()

        def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
            seen.append(own)
            return supervised_loss(own, targets) * len(seen)

    with pytest.raises(UnsafeModule):
        lint.check_loss(Remembering(), OWN, {}, CLASSES)


SOUND: dict[str, Loss] = {
    "supervised": Supervised(), "near": Near("peer", 0.1), "descent": Descent(), "stacked": Stacked("peer", public(0.7)),
    "distilled": Distilled("peer", public(0.5)), "reversed": Distilled("peer", public(0.5), "student-teacher"),
    "tallied": LossAsSum("peer", 4.0),
}  # fmt: skip
FOR_CLASSES: dict[str, Loss] = {
    "balanced": Balanced(Distilled("peer", public(0.5)), SHARES), "balanced near": BalancedNear(Near("peer", 0.1), SHARES),
}  # fmt: skip


@pytest.mark.parametrize("targets", [CLASSES, NUMBERS, LABELS], ids=["classes", "numbers", "labels"])
@pytest.mark.parametrize("name", SOUND)
def test_a_loss_of_each_record_by_itself_passes(name: str, targets: Tensor) -> None:
    width = 1 if targets is NUMBERS else 3
    others = {name: outputs[:, :width] for name, outputs in OTHERS.items()}
    lint.check_loss(SOUND[name], OWN[:, :width], others, targets)


@pytest.mark.parametrize("name", FOR_CLASSES)
def test_a_balanced_loss_of_each_record_by_itself_passes(name: str) -> None:
    lint.check_loss(FOR_CLASSES[name], OWN, OTHERS, CLASSES)


def test_a_released_profile_passes() -> None:
    lint.check_loss(Profiled(), torch.cat([OWN, OWN[:, :1]], 1), {}, CLASSES)


def test_a_loss_is_tried_once_for_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Loss] = []
    monkeypatch.setattr(lint, "check_loss", lambda loss, *_: tried.append(loss))
    site = site_of()
    models = {"proxy": site.build("proxy")}
    for number in range(3):
        asyncio.run(SiteRound(site, number).train({"proxy": Supervised()}, models, protect=["proxy"]))
    assert tried == [Supervised()]
    asyncio.run(SiteRound(site, 3).train({"proxy": Descent(rate=0.5)}, models, protect=["proxy"]))
    assert len(tried) == 2
