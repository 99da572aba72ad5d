"""The audit finds what is broken, on a case that was made for it, and finds no excess where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confrere.data.records import Federation
from confrere.privacy.mechanism import Mechanism
from confrere.runtime.audit import canaries, membership, outlier, reconstruction
from confrere.runtime.records import open_sites
from confrere.study import Models, Privacy, Study, Training

SOUND = ["none", "peers"]


def study(teacher: str, epsilon: float | None = 0.5, **changes: Any) -> Study:
    """As published, but for the teacher: full batches at the private model, so that nothing is left to order."""
    strategy = {"name": "proxyfl", "private": "distil", "alpha": 0.5, "beta": 0.5, "teacher": teacher}
    base = Study(
        name="audited",
        rounds=2,
        strategy=strategy,
        models=Models("linear", "linear"),
        training=Training(
            optimiser="sgd",
            learning_rate=0.5,
            batch_size=500,
            epochs=10,
            weight_decay=0.0,
            protected={"optimiser": "sgd", "learning_rate": 1.0},
        ),
        privacy=Privacy(epsilon=epsilon, delta=1e-5, steps=1) if epsilon else None,
    )
    return base.with_(**changes)


def sites(found: Study, records: int = 120, columns: int = 3) -> Federation:
    """Two sites with labels that are half chance, so that a model has something to learn by heart."""
    rng = np.random.default_rng(0)
    made = {}
    for name in "ab":
        x = rng.normal(size=(records, columns)).astype(np.float32)
        made[name] = (x, (x[:, 0] + rng.normal(size=records) > 0).astype(int))
    return open_sites(found, made)


def many_runs(found: Study, runs: int) -> outlier.Outlier:
    return outlier.attack(found, sites(found, records=400), runs=runs, confidence=0.95)


def test_the_flaw_of_a_proxy_that_learns_from_the_private_model_is_found() -> None:
    found = many_runs(study("private"), runs=30)
    assert found.claimed is not None
    assert found.claimed.epsilon <= 0.5
    assert not found.claimed.proven
    assert found.detected.epsilon > 2 * found.claimed.epsilon
    assert "the guarantee is broken" in found.detected.against(found.claimed.epsilon)


@pytest.mark.parametrize("teacher", SOUND)
def test_no_excess_is_found_in_a_sound_mode(teacher: str) -> None:
    found = many_runs(study(teacher), runs=30)
    assert found.claimed is not None
    assert found.claimed.proven
    assert not found.detected.breaks(found.claimed.epsilon)


def test_too_little_noise_is_found_in_a_sound_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that finds nothing where there is something would be worth nothing."""
    honest = Mechanism.release

    def careless(self: Mechanism, *arguments: Any) -> Any:
        return honest(replace(self, noise_multiplier=0.02), *arguments)

    monkeypatch.setattr(Mechanism, "release", careless)
    found = many_runs(study("none"), runs=30)
    assert found.claimed is not None
    assert found.detected.breaks(found.claimed.epsilon)


@pytest.mark.slow
def test_claimed_one_detected_three() -> None:
    found = many_runs(study("private", epsilon=1.0), runs=200)
    assert found.claimed is not None
    assert found.claimed.epsilon <= 1.0
    assert found.detected.epsilon >= 3.0


@pytest.mark.slow
@pytest.mark.parametrize("teacher", SOUND)
def test_no_excess_over_many_more_runs(teacher: str) -> None:
    found = many_runs(study(teacher, epsilon=1.0), runs=300)
    assert found.claimed is not None
    assert not found.detected.breaks(found.claimed.epsilon)


@pytest.mark.parametrize("teacher", SOUND)
def test_canaries_in_one_run_show_no_excess_in_a_sound_mode(teacher: str) -> None:
    plan = study(teacher)
    found = canaries.attack(plan, sites(plan), "a", canaries=60, confidence=0.95)
    assert found.claimed is not None
    assert not found.detected.breaks(found.claimed.epsilon)


def test_canaries_sing_where_there_is_no_noise() -> None:
    """More directions than canaries: each leaves a trace of its own in the weights."""
    plan = study("none", epsilon=None, rounds=5)
    found = canaries.attack(plan, sites(plan, columns=200), "a", canaries=60, confidence=0.95)
    assert found.claimed is None
    assert found.detected.epsilon > 1.0


def test_members_are_found_in_the_private_model_and_not_in_what_leaves() -> None:
    plan = study(
        "none", training=Training(optimiser="sgd", learning_rate=1.0, batch_size=500, epochs=40, tune=False)
    )
    found = membership.attack(plan, sites(plan, records=80, columns=80), "a", runs=8)
    leaves, stays = found["released"], found["private"]
    assert stays.attack.area > 0.7
    assert stays.attack.area - 3 * stays.spread > leaves.attack.area
    assert abs(leaves.attack.area - 0.5) < 0.1


def test_a_record_is_rebuilt_from_an_update_without_noise_and_not_from_what_leaves() -> None:
    plan = study("none")
    found = reconstruction.attack(plan, sites(plan, columns=20), "a", attempts=5)
    assert found["released without noise"].similarity > 0.99
    assert found["released without noise"].found == 1.0
    assert found["private"].similarity > 0.99
    assert found["released"].similarity < 0.7
    assert found["released"].similarity < found["released without noise"].similarity - 0.3


def test_behind_a_hidden_layer_a_record_is_rebuilt_too() -> None:
    small = {"name": "mlp", "hidden": [16]}
    plan = study("none", models=Models(small, small))
    found = reconstruction.attack(plan, sites(plan, columns=20), "a", attempts=3)
    assert found["released without noise"].similarity > 0.9
    assert found["released"].similarity < found["released without noise"].similarity
