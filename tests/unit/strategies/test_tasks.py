"""Every strategy on every kind of task, and by patient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from confrere.core.metrics import Form, metrics_of
from confrere.simulation.backends import simulate
from confrere.strategies import discover, strategies
from tests.conftest import arrays
from tests.unit.quick import PRIVACY, quick

NAMES = [n for n in discover() if strategies[n].__module__.startswith("confrere.")]
RULE = np.array([1.0, -0.5, 0.25, 0.0])


def sites(kind: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for n, (name, (x, _)) in enumerate(arrays(3, 90).items()):
        rng = np.random.default_rng(n)
        value = x @ RULE + 0.1 * rng.normal(size=len(x))
        out[name] = {
            "multiclass": (x, np.digitize(value, [-0.6, 0.6])),
            "regression": (x, value.astype(np.float32)),
            "column": (x, value.astype(np.float32)[:, None]),
            "multilabel": (x, np.stack([value > 0, x[:, 1] > 0, x[:, 2] > 0.5], 1).astype(np.float32)),
        }[kind]
    return out


FORMS: dict[str, Form] = {
    "multiclass": "classes",
    "multilabel": "labels",
    "regression": "number",
    "column": "number",
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_takes_every_kind_of_task(name: str, kind: str) -> None:
    run, expected = simulate(quick(name), sites(kind)), {m.name for m in metrics_of(FORMS[kind])}
    assert set(run.mean) == expected
    assert all(math.isfinite(v) for v in run.mean.values())
    for site in run.sites.values():
        assert set(site.metrics) == expected
        assert name in ("local", "pooled") or site.privacy.proven


@pytest.mark.parametrize("kind", ["multiclass", "regression", "multilabel"])
def test_it_learns_what_can_be_learned(kind: str) -> None:
    run = simulate(quick("fedavg", rounds=25), sites(kind))
    if kind == "regression":
        assert run.mean["r2"] > 0.6
    else:
        assert run.mean["auc"] > 0.85


@pytest.mark.parametrize("sampling", ["full", "poisson"])
@pytest.mark.parametrize("name", ["fedavg", "proxyfl"])
def test_privacy_by_patient_protects_whoever_has_many_records(name: str, sampling: str) -> None:
    """Ten records each: the mechanism draws and clips whole patients, and the guarantee says so."""
    by_patient = {n: (x, y, np.arange(len(x)) // 10) for n, (x, y) in arrays().items()}
    privacy = {**vars(PRIVACY), "unit": "patient", "sampling": sampling, "batch_size": 20}
    run = simulate(quick(name, privacy=type(PRIVACY)(**privacy)), by_patient)
    assert {s.privacy.unit for s in run.sites.values()} == {"patient"}
    charged = [e.data["unit"] for e in run.events if e.kind == "charged"]
    assert charged
    assert set(charged) == {"patient"}


def test_no_patient_is_in_two_parts() -> None:
    from confrere.site.open_sites import open_sites

    by_patient = {n: (x, y, [f"p{i // 7}" for i in range(len(x))]) for n, (x, y) in arrays().items()}
    for site in open_sites(quick(), by_patient).sites.values():
        parts = [
            set(r.units.tolist()) for r in (site.train, site.validation, site.test) if r.units is not None
        ]
        assert len(parts) == 3
        assert not parts[0] & parts[1] | parts[1] & parts[2] | parts[0] & parts[2]
