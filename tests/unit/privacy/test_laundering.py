"""Ways in which a custom strategy could hand on what records shaped without its custody, as far as they are closed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from confrere.core import loss_inspection
from confrere.core.custody import Custody, HeldNumber, Scalar, Tagged, private, public
from confrere.core.errors import CustodyError, StudyError
from confrere.core.loss_inspection import contents_of
from confrere.core.model import Model, mix
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.combine import models
from confrere.learning.objectives import supervised_loss
from confrere.privacy.gate import Gate
from confrere.simulation.simulation import Simulation
from confrere.site import snapshot
from confrere.site.open_sites import open_sites
from confrere.site.site_round import SiteRound
from confrere.site.training import check_given
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
        contents_of(loss).custody({})
    monkeypatch.setattr(loss_inspection, "_may_hold_records", lambda _: False)
    assert contents_of(loss).custody({}) is Custody.PUBLIC  # what it would pass for without the rule


def test_a_loss_may_name_functions_modules_and_constants() -> None:
    assert contents_of(ReadsConstant()).custody({}) is Custody.PUBLIC


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


# -- numbers that were read out of metrics ----------------------------------------------------------


@dataclass(frozen=True)
class Leaning:
    """A loss with a number in a field."""

    by: float
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return supervised_loss(own, targets) + self.by * own.sum(1)


METRIC = private(0.7)
DERIVED = {
    "as it is": METRIC.value,
    "negated": -METRIC.value,
    "scaled": 2 * METRIC.value + 1,
    "divided": 1 / (1 + METRIC.value),
    "a power": METRIC.value**2,
    "a power of it": 2**METRIC.value,
    "rounded": round(METRIC.value, 1),
    "the larger": max(METRIC.value, 0.1),
    "its size": abs(METRIC.value - 1),
    "a difference of two": METRIC.value - private(0.2).value,
    "a sum": sum([METRIC.value, METRIC.value]),
    "the rest": METRIC.value % 0.3,
    "sent to another process": pickle.loads(pickle.dumps(METRIC.value)),
    "copied": copy.deepcopy([METRIC.value])[0],
    "kept in a checkpoint": snapshot.unpack(snapshot.pack(METRIC.value, {}), {}),
}


@pytest.mark.parametrize("number", DERIVED.values(), ids=DERIVED.keys())
def test_a_number_that_was_read_from_a_private_one_stays_private(number: float) -> None:
    assert contents_of(Leaning(number)).custody({}) is Custody.PRIVATE
    assert (public(1.0) * number).custody is (number * public(1.0)).custody is Custody.PRIVATE
    for claim in (public, lambda n: Scalar(n, Custody.PROTECTED), lambda n: Tagged(n, Custody.PUBLIC)):
        with pytest.raises(CustodyError, match="hand on the Scalar"):
            claim(number)
    with pytest.raises(CustodyError, match="hand on the Scalar"):
        Params({"w": torch.ones(2)}) * number
    assert private(number).value == number


def test_what_may_leave_is_read_as_a_plain_number() -> None:
    for custody in (Custody.PUBLIC, Custody.PROTECTED):
        assert type(Scalar(0.5, custody).value) is float
    assert type(Scalar(0.5, Custody.UNPROVEN).value) is HeldNumber
    assert isinstance(METRIC.value * torch.ones(2), Tensor)
    assert (repr(METRIC.value), f"{METRIC.value:.2f}", json.dumps(METRIC.value)) == ("0.7", "0.70", "0.7")


# -- weights that are overwritten, and weights that a network holds ----------------------------------


def overwrite(params: Params, how: str) -> None:
    tensor = params["w"]
    {
        "copy_": lambda: tensor.copy_(torch.full((3,), 42.0)),
        "an item": lambda: tensor.__setitem__(0, 42.0),
        "+=": lambda: tensor.__iadd__(1),
        "a view": lambda: tensor[1:].zero_(),
        "the vector": lambda: params.flatten().add_(1),
        "out": lambda: torch.add(tensor, 1, out=tensor),
    }[how]()


@pytest.mark.parametrize("how", ["copy_", "an item", "+=", "a view", "out"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_model_whose_weights_were_overwritten_neither_leaves_nor_mixes_nor_trains(
    how: str, flat: bool
) -> None:
    params = Params({"w": torch.zeros(3)})
    if flat:
        params = Params.of_flat(torch.zeros(3), params.shapes)
    model = Model(params, "net", Custody.PROTECTED)
    Gate().admit(model)
    assert params.digest() == params.clone().digest()
    overwrite(params, how)
    parcel = Parcel("run", 0, 0, 0, "a", "b", 1, model)
    for use in (
        lambda: Gate().admit(model),
        lambda: mix([(public(1.0), model)]),
        lambda: models([parcel]),
        lambda: check_given({}, {"model": model}),
        lambda: dict(params.items()),
        params.flatten,
        params.digest,
    ):
        with pytest.raises(CustodyError, match="overwritten in place"):
            use()


def test_the_vector_of_a_model_is_not_written_to_either() -> None:
    params = Params.of_flat(torch.zeros(3), (("w", (3,), "float32"),))
    overwrite(params, "the vector")
    with pytest.raises(CustodyError, match="overwritten in place"):
        params.flatten()


def test_copies_of_a_model_are_models_of_their_own() -> None:
    params = Params({"w": torch.zeros(3).add_(1)})
    for other in (copy.deepcopy(params), pickle.loads(pickle.dumps(params)), params.clone()):
        assert other.equals(params)
        other["w"].add_(1)
        params.require_unchanged()


def test_a_network_to_look_at_has_layers_and_no_numbers() -> None:
    """The network that works at a site holds the weights that were loaded last, private ones among them."""
    study = quick("proxyfl", rounds=1)
    simulation = Simulation(study, open_sites(study, arrays()))
    simulation.prepare()
    site = SiteRound(next(iter(simulation.sites.values())), 0)
    for role in ("private", "proxy"):
        module = site.module(role)
        assert {n: tuple(p.shape) for n, p in module.named_parameters()} == {
            n: tuple(t.shape) for n, t in site.build(role).params.items()
        }
        assert all(t.is_meta for t in (*module.parameters(), *module.buffers()))
