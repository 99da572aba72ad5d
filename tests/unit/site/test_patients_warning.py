"""Where patients have several records, a guarantee per record is said to be what it is."""

from __future__ import annotations

import numpy as np
import pytest

from confrere.simulation.backends import simulate
from confrere.study import Privacy, Study, Training
from tests.conftest import arrays


@pytest.mark.parametrize(("unit", "warned"), [("record", True), ("patient", False)])
def test_a_guarantee_per_record_warns_where_patients_have_several(unit: str, warned: bool) -> None:
    sites = {n: (x, y, np.arange(len(x)) // 2) for n, (x, y) in arrays().items()}
    privacy = Privacy(epsilon=8.0, delta=1e-4, unit=unit)  # type: ignore[arg-type]
    run = simulate(Study(rounds=1, strategy="fedavg", training=Training(tune=False), privacy=privacy), sites)
    told = [e for e in run.events if e.kind == "notice" and "several records" in e.data["text"]]
    assert bool(told) == warned
