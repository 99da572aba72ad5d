"""A custody that nobody thought of is refused wherever something could leave a site."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.cli import node as node_command
from confrere.core.custody import Custody, Scalar, may_leave
from confrere.core.errors import BadParcel, CustodyError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.learning.objectives import Supervised
from confrere.node.inspection import ParcelRules
from confrere.node.node_journal import Log
from confrere.privacy.charged_steps import PrivateSteps
from confrere.privacy.gate import Gate
from confrere.site.training import TrainingCall
from confrere.transport import batch, wire
from confrere.transport.body import Body


class Float(float):
    """A level between two others, as a later version might have it; it has a name as every level has."""

    name, value = "BETWEEN", 1.5
    _name_, _value_ = name, value


def level(value: int) -> Any:
    """A member of `Custody` that this version does not have."""
    made = int.__new__(Custody, value)
    made._name_, made._value_ = f"LEVEL_{value}", value
    return made


UNKNOWN: dict[str, Any] = {
    "above all": level(4),
    "below all": level(-1),
    "between": Float(1.5),
    "a bare number": 1,
    "private": Custody.PRIVATE,
}
unknown = pytest.mark.parametrize("custody", UNKNOWN.values(), ids=UNKNOWN.keys())


def model(custody: Any) -> Model:
    return Model(Params({"w": torch.ones(3)}), "net", custody)


def parcels(custody: Any) -> list[Parcel]:
    """A parcel whose model is of unknown custody, and one whose number is, beside another that is UNPROVEN."""
    beside = {"mass": Scalar(1.0, Custody.UNPROVEN)}
    route = ("run", 0, 0, 0, "a", "b", 1)
    return [
        Parcel(*route, model(custody), beside),
        Parcel(*route, model(Custody.PUBLIC), {**beside, "n": Scalar(1.0, custody)}),
    ]


def test_only_three_levels_may_leave_and_unproven_only_with_consent() -> None:
    assert [c.name for c in Custody if may_leave(c)] == ["PUBLIC", "PROTECTED"]
    assert [c.name for c in Custody if may_leave(c, consent=True)] == ["PUBLIC", "PROTECTED", "UNPROVEN"]


@unknown
def test_the_gate_refuses_it(custody: Any) -> None:
    for parcel in parcels(custody):
        with pytest.raises(CustodyError):
            Gate(accept_unproven=True).admit(parcel.model, parcel.scalars)


ENCODERS: dict[str, Callable[[Parcel], Any]] = {
    "wire": wire.encode,
    "size on the wire": wire.size,
    "batch": lambda parcel: batch.encode([parcel]),
}


@unknown
@pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS.keys())
def test_no_encoder_writes_it(encode: Callable[[Parcel], Any], custody: Any) -> None:
    for parcel in parcels(custody):
        with pytest.raises(CustodyError, match="may not leave the site"):
            encode(parcel)


@unknown
def test_a_node_does_not_take_it_in(custody: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"net": model(Custody.PUBLIC).params.shapes}
    rules = ParcelRules("b", "run", 1, {"a": None}, shapes, accept_unproven=True)  # type: ignore[dict-item]
    for parcel in parcels(custody):
        monkeypatch.setattr(wire, "decode", lambda *_, parcel=parcel, **__: parcel)
        with pytest.raises(BadParcel, match="no proven guarantee"):
            rules.inspect("a", Body.of(b""))


@unknown
def test_the_log_and_the_terminal_do_not_show_it(
    custody: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path / "log.jsonl")
    for held in (custody, Custody.PROTECTED):
        event = Event("notice", "a", 0, held, {"text": f"counted {float(held)}"})
        log(event)
        node_command._print_event(event)
    log.close()
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["counted 1.0"]
    assert capsys.readouterr().out.count("counted") == 1


@unknown
def test_training_with_noise_does_not_launder_it(custody: Any) -> None:
    class Site:
        unproven = "as published"

    trained, models = {"proxy": Supervised()}, {"proxy": model(custody)}
    call = TrainingCall(Site(), 0, trained, models, ["proxy"])  # type: ignore[arg-type]
    found = call._custody("proxy", PrivateSteps({"proxy": None}, 1), trained, models)  # type: ignore[dict-item]
    assert found is Custody.PRIVATE
