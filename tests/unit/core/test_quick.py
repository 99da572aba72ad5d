"""Values that are made quickly are the dataclasses that they were."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from confrere.core.custody import Custody, Scalar, Tagged, public
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Inbox, Parcel
from confrere.core.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Thing:
    name: str
    size: int = 3
    parts: list[str] = field(default_factory=list)


class Odd(Thing):
    """What somebody else derives, without slots."""


PARCEL = Parcel("r", 0, 1, 0, "a", "b", 1, None, {"mass": public(0.5)})


@pytest.mark.parametrize(
    "value", [Thing("a"), public(2), PARCEL, Inbox((PARCEL,), ("c",), 1, 0), Event("sent", "a", 2)]
)
def test_copies_and_pickles_are_equal(value: object) -> None:
    assert copy.copy(value) == copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


def test_arguments_defaults_and_replacing() -> None:
    assert Thing("a") == Thing(name="a", size=3, parts=[])
    assert Thing("a").parts is not Thing("a").parts
    assert replace(Thing("a", 1), size=2) == Thing("a", 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Thing()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'weight'"):
        Thing("a", weight=1)  # type: ignore[call-arg]
    assert list(inspect.signature(Thing).parameters) == [f.name for f in fields(Thing)]


@pytest.mark.parametrize("name", ["size", "anything"])
def test_nothing_can_be_written_to(name: str) -> None:
    thing = Thing("a")
    with pytest.raises(FrozenInstanceError):
        setattr(thing, name, 1)
    with pytest.raises(FrozenInstanceError):
        delattr(thing, name)


def test_a_custody_cannot_be_lowered() -> None:
    model, number = Model(Params({}), "net", Custody.PRIVATE), Scalar(1.0, Custody.PRIVATE)
    for held in (model, number, Tagged[float](1.0, Custody.PRIVATE)):
        with pytest.raises(FrozenInstanceError):
            held.custody = Custody.PUBLIC  # type: ignore[misc]


def test_who_derives_a_class_without_slots_keeps_what_is_put_there() -> None:
    odd = Odd("a")
    odd.note = "kept"  # type: ignore[attr-defined]
    for other in (copy.copy(odd), pickle.loads(pickle.dumps(odd))):
        assert (other.name, other.note) == ("a", "kept")
    with pytest.raises(FrozenInstanceError):
        odd.name = "b"  # type: ignore[misc]
