"""Together beats alone where there is something to learn, and does no harm where there is nothing."""

from __future__ import annotations

import numpy as np

from confrere.evaluate.compare import compare
from confrere.study import Privacy, Study

Site = tuple[np.ndarray, np.ndarray]


def hospitals(sizes: list[int], common: float, own: float, inputs: int = 8) -> dict[str, Site]:
    """Logistic patients: what holds at every hospital has the strength `common`, what holds at one alone `own`."""
    rng = np.random.default_rng(4)
    shared = rng.normal(size=inputs) * common / inputs**0.5
    found = {}
    for number, size in enumerate(sizes):
        weights = shared + rng.normal(size=inputs) * own / inputs**0.5
        x = rng.normal(size=(size, inputs))
        y = rng.random(size) < 1 / (1 + np.exp(-(x @ weights) + 1))
        found[f"hospital {number}"] = (x.astype(np.float32), y.astype(int))
    return found


def gains(sites: dict[str, Site]) -> dict[str, float]:
    """Over eight seeds, with the default settings and a proven ε of 3."""
    study = Study(rounds=20, topology="complete", privacy=Privacy(epsilon=3.0, delta=1e-5))
    found = compare(study, ["proxyfl"], tuple(range(8)), sites).strategies["proxyfl"]
    assert found.privacy.proven
    assert found.privacy.epsilon <= 3.0
    return {m: gain.mean for m, gain in found.gains.items()}


def test_with_default_settings_and_a_proven_epsilon_of_3_together_beats_alone() -> None:
    """Measured: .006 in log loss, .009 in AUC, with standard errors over the seeds of .003 both."""
    gained = gains(hospitals([160] * 8, common=1.5, own=0.3))
    assert gained["log_loss"] > 0.003
    assert gained["auc"] > 0.006


def test_a_proxy_that_knows_nothing_of_use_does_no_harm() -> None:
    """Every hospital has a rule of its own, so peers have nothing to teach; the proxy is noise and others' rules."""
    gained = gains(hospitals([160] * 4, common=0.0, own=1.5))
    assert gained["log_loss"] > -0.005
    assert gained["auc"] > -0.005
