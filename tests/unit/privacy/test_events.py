"""A mechanism event is read in full or refused: a value that no mechanism has must not come out as a small ε."""

from __future__ import annotations

import pytest

from confrere.core.errors import PrivacyError
from confrere.privacy.charges import Charge, canonical, gaussian, laplace, read_event

GAUSSIAN = {"kind": "gaussian", "noise_multiplier": "1.0", "sample_rate": "1/2"}


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": "nan"}, {"noise_multiplier": "inf"}, {"noise_multiplier": "-1"},
        {"sample_rate": "0"}, {"sample_rate": "3"}, {"sample_rate": "-1/2"}, {"sample_rate": "1/0"},
        {"group": "0"}, {"group": "-3"}, {"group": "1"}, {"group": "02"}, {"group": "2", "replaced": "yes"},
        {"replaced": "no"}, {"unit": "family"}, {"unit": "record"}, {"claim": "true"}, {"more": "1"},
        {"kind": "laplace"}, {"kind": "magic"},
    ],
)  # fmt: skip
def test_an_event_that_no_mechanism_has_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(PrivacyError):
        Charge(canonical({**GAUSSIAN, **change}), 1)
    with pytest.raises(PrivacyError):
        read_event(canonical({**GAUSSIAN, **change}))


@pytest.mark.parametrize("scale", ["nan", "inf", "0", "-1"])
def test_laplace_noise_has_a_finite_scale_above_zero(scale: str) -> None:
    with pytest.raises(PrivacyError, match="scale"):
        Charge(canonical({"kind": "laplace", "scale": scale}), 1)


def test_every_event_that_is_charged_can_be_read() -> None:
    for charge in (gaussian(0.0), gaussian(1.4, 0.5, group=3), gaussian(2, unit="patient", proven=False)):
        assert read_event(charge.event).kind == "gaussian"
    patient = gaussian(2, unit="patient").per("record")
    assert patient is not None
    assert read_event(patient.event).replaced
    assert read_event(laplace(2.0, unit="patient").event).kind == "laplace"
