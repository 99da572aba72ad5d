"""Ways in which a custom strategy could hand on what records shaped without its custody, as far as they are closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from confrere.core import protocols
from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import CustodyError, StudyError
from confrere.core.model import Model
from confrere.core.protocols import loss_custody
from confrere.learning.objectives import supervised_loss
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from tests.conftest import arrays
from tests.unit.quick import quick

CACHE: dict[str, float] = {}
SEEN = torch.zeros(2)
LOG: list[float] = []
FACTOR = 2.0


@dataclass(frozen=True)
class ReadsMapping:
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return supervised_loss(own, targets) + CACHE.get("bias", 0.0) * own.sum(1)


@dataclass(frozen=True)
class ReadsTensor:
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return supervised_loss(own, targets) + SEEN[0] * own.sum(1)


@dataclass(frozen=True)
class ReadsInside:
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return supervised_loss(own, targets) + sum(LOG[k] for k in range(len(targets)) if k < 1) * own.sum(1)


@dataclass(frozen=True)
class ReadsConstant:
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return FACTOR * supervised_loss(own, targets)


@pytest.mark.parametrize("loss", [ReadsMapping(), ReadsTensor(), ReadsInside()])
def test_a_loss_that_reads_a_global_collection_or_tensor_is_refused(
    monkeypatch: pytest.MonkeyPatch, loss: Any
) -> None:
    with pytest.raises(StudyError, match="its custody is not known"):
        loss_custody(loss, {})
    monkeypatch.setattr(protocols, "_may_hold_records", lambda _: False)
    assert loss_custody(loss, {}) is Custody.PUBLIC  # what it would pass for without the rule


def test_a_loss_may_name_functions_modules_and_constants() -> None:
    assert loss_custody(ReadsConstant(), {}) is Custody.PUBLIC


def test_a_model_leaves_only_under_an_architecture_of_the_study() -> None:
    study = quick()
    simulation = Simulation(study, open_sites(study, arrays(2, 60)))
    simulation.prepare()
    model = simulation.sites["site0"].build("proxy")
    gate = simulation.peers["site0"].gate
    assert gate.admit(model)[0] is model
    with pytest.raises(CustodyError, match="none of the study's"):
        gate.admit(Model(model.params, model.architecture + " 0.731", model.custody))


@pytest.mark.parametrize("shaped", [torch.tensor(0.7), np.array(0.7), np.array([0.7])])
def test_a_tensor_does_not_take_on_the_custody_of_a_number(shaped: Any) -> None:
    for combine in (lambda: public(1.0) * shaped, lambda: shaped * public(1.0), lambda: public(1.0) - shaped):
        with pytest.raises(CustodyError, match="has none"):
            combine()
    assert (public(1.0) * private(float(shaped.sum()))).custody is Custody.PRIVATE
    assert public(2.0) * np.float32(0.5) == Scalar(1.0, Custody.PUBLIC)
