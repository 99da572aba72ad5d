"""What a loss may hold: values whose custody is known, and nothing in which records could hide."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from confrere.core.custody import Custody, Tagged, private, public
from confrere.core.errors import StudyError
from confrere.core.loss_inspection import contents_of, described
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.learning.balance import Balanced
from confrere.learning.objectives import Descent, Distilled, Near, Stacked, Supervised
from confrere.learning.private_centre import Profiled
from confrere.learning.private_loss_sum import LossAsSum

SECRET = torch.ones(1)
PUBLIC_MODEL = Model(Params({"w": torch.zeros(1)}), "linear", Custody.PUBLIC)


@dataclass(frozen=True)
class Holding:
    value: Any
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return own


class Plain:
    def __init__(self) -> None:
        self.hidden = private(1.0)


@pytest.mark.parametrize(
    "value",
    [
        Plain(), SimpleNamespace(a=private(1.0)), deque([private(1.0)]), partial(print, private(1.0)),
        np.array([private(1.0)], dtype=object), iter([private(1.0)]), torch.ones(2), np.ones(2), Holding, print,
        (1.0, {"a": [Plain()]}), Tagged(Plain(), Custody.PUBLIC),
    ],
)  # fmt: skip
def test_a_loss_with_a_field_that_could_hide_records_is_refused(value: Any) -> None:
    with pytest.raises(StudyError, match=r"Holding\.value: a loss holds .*Tagged"):
        contents_of(Holding(value)).custody({})


@pytest.mark.parametrize(
    "value",
    [
        private(1.0), Tagged(private(1.0), Custody.PUBLIC), {private(1.0): 1}, {"a": (1, private(1.0))},
        frozenset([private(1.0)]), Holding(private(1.0)), Tagged(torch.ones(2), Custody.PRIVATE),
        Tagged({"a": [private(2.0)]}, Custody.PUBLIC),
    ],
)  # fmt: skip
def test_a_tag_is_found_however_deep_in_a_loss(value: Any) -> None:
    assert contents_of(Holding(value)).custody({}) is Custody.PRIVATE


@pytest.mark.parametrize(
    "value",
    [None, True, "a", 1, 0.5, np.float32(1), (1, "a"), {"a": [1]}, Custody.PRIVATE, public(1.0), b"a"],
)
def test_plain_options_do_not_bind_a_loss(value: Any) -> None:
    assert contents_of(Holding(value)).custody({}) is Custody.PUBLIC


def test_losses_are_told_apart_by_every_value_they_hold() -> None:
    values = [
        1.0,
        2.0,
        "1.0",
        (1.0,),
        ((1.0,), ()),
        (1.0, ()),
        {"a": 1.0},
        Tagged(torch.ones(2), Custody.PUBLIC),
    ]
    values += [Tagged(torch.ones(2), Custody.PRIVATE), Tagged(torch.tensor([1.0, 1.5]), Custody.PUBLIC)]
    assert len({described(Holding(value)) for value in values}) == len(values)
    assert described(Holding({"b", "a"})) == described(Holding(frozenset(["a", "b"])))


@dataclass
class Thawed:
    """Not frozen: anything can be put into it."""

    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return own


@dataclass(frozen=True)
class WithClassAttribute:
    secret: ClassVar[Any] = torch.ones(2)
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WithList:
    seen: ClassVar[Any] = []
    reads: frozenset[str] = frozenset()


class Slotted:
    __slots__ = ("secret",)


@dataclass(frozen=True)
class WithSlot(Slotted):
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WithDefault:
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Any, targets: Tensor, secret: Tensor = SECRET) -> Tensor:
        return own


def with_attribute() -> Any:
    loss = Holding(1.0)
    object.__setattr__(loss, "secret", torch.ones(2))
    return loss


def with_closure() -> Any:
    secret = 3.5

    @dataclass(frozen=True)
    class Closed:
        reads: frozenset[str] = frozenset()

        def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
            return own - secret

    return Closed()


@pytest.mark.parametrize(
    "make",
    [with_attribute, with_closure, Thawed, WithClassAttribute, WithList, WithSlot, WithDefault],
    ids=lambda make: make.__name__,
)
def test_a_loss_that_keeps_something_outside_of_its_fields_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(
        StudyError, match=r"not a field, so its custody is not known|a loss is a frozen dataclass"
    ):
        contents_of(make()).custody({})
    with pytest.raises(StudyError):
        contents_of(Holding(make())).custody({})  # in a loss within a loss as well


@pytest.mark.parametrize(
    "loss",
    [Supervised(), Near("proxy", 0.1), Descent(), Distilled("proxy", public(0.5)), Balanced(Supervised(), (public(0.5),)),
     Stacked("proxy", public(1.0)), Profiled(), LossAsSum("proxy", 1.0)],
    ids=lambda loss: type(loss).__name__,
)  # fmt: skip
def test_the_losses_that_come_along_hide_nothing(loss: Any) -> None:
    assert contents_of(loss).custody(dict.fromkeys(["proxy"], PUBLIC_MODEL)) is Custody.PUBLIC
