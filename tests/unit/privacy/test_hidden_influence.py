"""What shapes a model from behind: a loss within a loss, an anchor that is not read, memory on the side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from confrere.core.custody import Custody, private, public
from confrere.core.errors import UnsafeModule
from confrere.core.loss_inspection import contents_of
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Loss
from confrere.learning.objectives import Near, Stacked, supervised_loss
from confrere.privacy import lint

WEIGHTS = Params({"w": torch.zeros(1)})
MODELS = {
    "proxy": Model(WEIGHTS, "linear", Custody.PUBLIC),
    "private": Model(WEIGHTS, "linear", Custody.PRIVATE),
}


@dataclass(frozen=True)
class Softened:
    """A loss around another one."""

    inner: Loss

    @property
    def reads(self) -> frozenset[str]:
        return self.inner.reads

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return self.inner(own, others, targets).log1p()


@dataclass(frozen=True)
class Pulled:
    """A loss that pulls its weights to a model that it does not own up to reading."""

    anchor: str
    pull: float = 1.0
    reads: frozenset[str] = field(default=frozenset())

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return supervised_loss(own, targets)


class Remembering(nn.Module):
    """Subtracts the mean of the last batch, which it keeps in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.mean = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - self.mean)
        if self.training:
            self.mean = x.detach().mean(0)
        return out


def test_a_number_from_records_is_found_in_a_loss_within_a_loss() -> None:
    assert contents_of(Softened(Stacked("proxy", private(0.3)))).custody(MODELS) == Custody.PRIVATE
    assert contents_of(Softened(Stacked("proxy", public(0.3)))).custody(MODELS) == Custody.PUBLIC


@pytest.mark.parametrize(("anchor", "custody"), [("private", Custody.PRIVATE), ("proxy", Custody.PUBLIC)])
def test_what_weights_are_pulled_to_counts_as_read(anchor: str, custody: Custody) -> None:
    assert contents_of(Pulled(anchor)).custody(MODELS) == custody
    assert contents_of(Near(anchor, 0.1)).custody(MODELS) == custody


def test_a_network_that_remembers_records_in_an_attribute_is_refused() -> None:
    with pytest.raises(UnsafeModule, match="next batch"):
        lint.check(Remembering(), torch.randn(4, 3))


def test_chance_in_a_network_is_not_taken_for_memory() -> None:
    lint.check(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)), torch.randn(4, 3))


class MixesLargeBatches(nn.Module):
    """Looks harmless in batches of up to four records."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out + x.mean() if len(x) > 4 else out


def test_a_network_that_mixes_records_in_larger_batches_alone_is_refused() -> None:
    lint.check(MixesLargeBatches(), torch.randn(4, 3))
    with pytest.raises(UnsafeModule, match="mixes records"):
        lint.check(MixesLargeBatches(), torch.randn(max(lint.SIZES), 3))
