"""Every kind of task, and every kind of record, through the strategies: each learns something, however it is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confrere import Data, Models, Privacy, Study, Training, padded, simulate
from confrere.study import Split

STRATEGIES: dict[str, Any] = {
    "local": "local",
    "pooled": "pooled",
    "fedavg": "fedavg",
    "fedprox": {"name": "fedprox", "pull": 0.05},
    "avgpush": "avgpush",
    "cwt": "cwt",
    "fml": {"name": "fml", "alpha": 0.3, "beta": 0.3},
    "proxyfl": {"name": "proxyfl", "private": "distil", "alpha": 0.3, "beta": 0.3},
    "proxyfl-stacked": "proxyfl",
}
TRAINING = Training(
    learning_rate=0.05, batch_size=32, tune=False, protected={"optimiser": "adam", "learning_rate": 0.05}
)
FEW = Data(split=Split(validation=0.1, test=0.3))
PRIVACY = Privacy(epsilon=20.0, delta=1e-3, steps=4)


def table(seed: int, records: int = 100) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1, 1, size=(records, 4)).astype(np.float32)
    return inputs, inputs[:, 0] + 0.5 * inputs[:, 1] + 0.15 * rng.normal(size=records)


def task(kind: str, seed: int) -> tuple[Any, Any]:
    inputs, score = table(seed)
    if kind == "regression":
        return inputs, 20 + 10 * score
    if kind == "binary":
        return inputs, (score > 0).astype(int)
    if kind == "multiclass":
        return inputs, np.digitize(score, [-0.4, 0.4])
    return inputs, np.stack([score > 0, inputs[:, 2] > 0.2, score < -0.3], axis=1).astype(int)


LEARNED = {
    "regression": lambda m: m["r2"] > 0.3 and m["rmse"] < 6,
    "binary": lambda m: m["auc"] > 0.8,
    "multiclass": lambda m: m["auc"] > 0.75,
    "multilabel": lambda m: m["auc"] > 0.75 and m["f1"] > 0.3,
}


def study(strategy: str, kind: str = "binary", **changes: Any) -> Study:
    data = Data(split=FEW.split, range=(0.0, 40.0) if kind == "regression" else None)
    return Study(
        **{"rounds": 10, "training": TRAINING, "data": data, **changes}, strategy=STRATEGIES[strategy]
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", LEARNED)
def test_every_strategy_learns_every_kind_of_task(kind: str, strategy: str) -> None:
    sites = {n: task(kind, k) for k, n in enumerate("abc")}
    run = simulate(study(strategy, kind), sites)
    assert LEARNED[kind](run.mean), run.mean
    assert all(entry.metrics.keys() == run.mean.keys() for entry in run.sites.values())


@pytest.mark.parametrize("strategy", ["fedavg", "fml", "proxyfl"])
@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_under_privacy_too_and_the_same_alone_and_stacked(kind: str, strategy: str) -> None:
    sites = {n: task(kind, k) for k, n in enumerate("abc")}
    asked = study(strategy, kind, privacy=PRIVACY)
    together, alone = (simulate(asked, sites, trainer=t) for t in ("cohort", "one"))
    assert together.mean["r2" if kind == "regression" else "auc"] > (0.2 if kind == "regression" else 0.65)
    assert together.mean == pytest.approx(alone.mean, rel=1e-3)
    assert all(s.privacy is not None and s.privacy.proven for s in together.sites.values())
    assert not any("one at a time" in e.data["text"] for e in together.events if e.kind == "notice")


def records(kind: str, seed: int) -> tuple[Any, Any]:
    """Inputs of every shape in which one thing says the class."""
    rng = np.random.default_rng(seed)
    count = 60
    truth = rng.integers(0, 2, count)
    sign = (2.0 * truth - 1)[:, None, None]
    if kind == "series":
        return rng.normal(size=(count, 5, 2)) * 0.3 + sign * [0.8, 0.0], truth
    if kind == "unequal series":
        return padded([rng.normal(size=(1 + n % 4, 2)) * 0.3 + s for n, s in enumerate(sign[:, 0])], 4), truth
    if kind == "bag":
        return padded([rng.normal(size=(1 + n % 3, 3)) * 0.3 + s for n, s in enumerate(sign[:, 0])], 3), truth
    if kind == "volume":
        return rng.normal(size=(count, 4, 4, 4)) * 0.3 + sign[..., None], truth
    return {
        "history": rng.normal(size=(count, 3)),
        "image": rng.normal(size=(count, 1, 6, 6)) * 0.3 + sign[..., None],
    }, truth


NETWORKS: dict[str, Any] = {
    "series": {"name": "conv1d", "channels": 4},
    "unequal series": {"name": "gru", "hidden": 6, "mask": True},
    "bag": {"name": "deepsets", "hidden": 6, "mask": True},
    "volume": {"name": "cnn3d", "channels": 2},
    "branches": {"name": "branches", "features": 4},
}


@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
@pytest.mark.parametrize("strategy", ["fedavg", "avgpush", "proxyfl"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_records_of_every_shape_are_learned_from(kind: str, strategy: str, private: bool) -> None:
    sites = {n: records(kind, k) for k, n in enumerate("ab")}
    models = Models(private=NETWORKS[kind], proxy=NETWORKS[kind])
    asked = study(strategy, models=models, rounds=6, privacy=PRIVACY if private else None)
    run = simulate(asked, sites)
    assert run.mean["auc"] > (0.75 if private else 0.85), run.mean
    notices = [e.data["text"] for e in run.events if e.kind == "notice"]
    assert any("one at a time" in text for text in notices)  # such a network is not stacked, and that is said


def test_a_flat_proxy_may_stand_beside_a_private_model_of_branches() -> None:
    sites = {n: records("branches", k) for k, n in enumerate("ab")}
    run = simulate(
        study("proxyfl", models=Models(private=NETWORKS["branches"], proxy="linear"), rounds=3), sites
    )
    assert run.mean["auc"] > 0.8


@pytest.mark.parametrize("kind", ["unequal series", "branches"])
def test_a_site_fits_its_own_network_of_any_shape_to_the_end(kind: str) -> None:
    training = replace(TRAINING, tune=True, tune_priors=(1.0,), tune_lengths=(10, 30))
    models = Models(private=NETWORKS[kind], proxy="linear")
    sites = {n: records(kind, k) for k, n in enumerate("ab")}
    run = simulate(study("proxyfl-stacked", models=models, training=training, rounds=2), sites)
    assert {e.site for e in run.events if e.kind == "fitted"} == {"a", "b"}
    assert run.mean["auc"] > 0.85
