"""What may leave a site, and that each rule is what stops it."""

from __future__ import annotations

import pytest
import torch

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import CustodyError, StudyError, TrainingError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.privacy import gate as gates
from confrere.privacy.gate import Gate, GateLimits


def model(custody: Custody = Custody.PROTECTED, value: float = 1.0) -> Model:
    return Model(Params({"w": torch.full((4,), value)}), "tiny", custody)


UNPROVEN = Scalar(1.0, Custody.UNPROVEN)
LAX = Gate(accept_unproven=True)
REFUSED = {
    "a private model": (LAX, model(Custody.PRIVATE), {}, "released", CustodyError),
    "a private number": (LAX, model(), {"auc": private(0.9)}, "released", CustodyError),
    "an unproven model": (Gate(), model(Custody.UNPROVEN), {}, "released", CustodyError),
    "an unproven number": (
        Gate(),
        model(),
        {"loss": Scalar(1.0, Custody.UNPROVEN)},
        "released",
        CustodyError,
    ),
    "NaN weights": (Gate(), model(value=float("nan")), {}, "finite", TrainingError),
    "infinite weights": (Gate(), model(value=float("inf")), {}, "finite", TrainingError),
    "a NaN number": (Gate(), model(), {"mass": public(float("nan"))}, "finite", TrainingError),
    "a large model": (Gate(limits=GateLimits(bytes=15)), model(), {}, "within_limits", StudyError),
    "many numbers": (
        Gate(limits=GateLimits(scalars=1)),
        model(),
        {"a": public(1), "b": public(2)},
        "within_limits",
        StudyError,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_its_rule_and_would_leave_without_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, leaving, scalars, rule, error = REFUSED[what]
    with pytest.raises(error):
        gate.admit(leaving, scalars)
    monkeypatch.setattr(gates, "RULES", tuple(r for r in gates.RULES if r.__name__ != rule))
    assert gate.admit(leaving, scalars) == (leaving, scalars)


def test_a_private_model_may_not_leave_the_site() -> None:
    with pytest.raises(CustodyError, match="a private model may not leave the site"):
        Gate(accept_unproven=True).admit(model(Custody.PRIVATE))


def test_what_was_mixed_with_something_private_may_not_leave_either() -> None:
    with pytest.raises(CustodyError, match='a private number \\("mass"\\) may not leave'):
        Gate().admit(model(), {"mass": public(1) * private(0.5)})


@pytest.mark.parametrize("bare", [0.5, 1, True, torch.tensor(0.5), "0.5"])
def test_a_bare_number_cannot_be_sent(bare: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CustodyError, match='a bare number cannot be sent: "loss"'):
        Gate().admit(model(), {"loss": bare})  # type: ignore[dict-item]
    monkeypatch.setattr(gates, "RULES", ())
    assert Gate().admit(model(), {"loss": bare})[1] == {"loss": bare}  # type: ignore[dict-item]


def test_weights_without_custody_cannot_be_sent() -> None:
    with pytest.raises(CustodyError, match="without custody"):
        Gate().admit(model().params)  # type: ignore[arg-type]
    with pytest.raises(CustodyError, match="without custody"):
        Gate().admit(Model(model().params, "tiny", 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("custody", [Custody.PUBLIC, Custody.PROTECTED])
def test_what_is_public_or_protected_leaves_as_it_is(custody: Custody) -> None:
    leaving = model(custody)
    out, scalars = Gate().admit(leaving, {"mass": public(1)})
    assert out is leaving
    assert scalars == {"mass": public(1)}


def test_what_is_unproven_leaves_only_where_the_site_accepts_it() -> None:
    leaving = model(Custody.UNPROVEN)
    assert Gate(accept_unproven=True).admit(leaving)[0] is leaving
    with pytest.raises(CustodyError, match="accept_unproven_privacy = true"):
        Gate().admit(leaving)


def test_numbers_may_leave_without_a_model() -> None:
    assert Gate().admit(None, {"ready": public(1)}) == (None, {"ready": public(1)})


def test_a_refusal_is_told_without_the_value() -> None:
    heard: list[Event] = []
    with pytest.raises(CustodyError):
        Gate(site="a", on_event=heard.append).admit(model(), {"auc": private(0.875)}, round=3)
    [event] = heard
    assert (event.kind, event.site, event.round) == ("notice", "a", 3)
    assert "auc" in event.data["text"]
    assert "0.875" not in str(event.data)
