"""A site's own model, fitted as well as the site can."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from confrere.core.custody import Custody
from confrere.learning.fit.calibration import best_scale
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.study import Models, Privacy, Study, Training
from tests.conftest import arrays

TRAINING = Training(protected={"optimiser": "sgd", "learning_rate": 1.0, "momentum": 0.5})


def run(strategy: object, sites: dict[str, object], **privacy: object) -> Run:
    study = Study(
        rounds=15, strategy=strategy, training=TRAINING, models=Models("linear", "linear"),  # type: ignore[arg-type]
        topology="complete", privacy=Privacy(epsilon=8.0, delta=1e-4, **privacy),  # type: ignore[arg-type]
    )  # fmt: skip
    return simulate(study, sites)  # type: ignore[arg-type]


def unequal() -> dict[str, object]:
    """Two large sites and a tiny one, all under one rule."""
    found = arrays(3, records=900)
    x, y = found["site2"]
    return {**found, "site2": (x[:60], y[:60])}


def test_a_tiny_site_gains_by_what_the_large_ones_taught_the_proxy() -> None:
    alone, together = run("local", unequal()), run("proxyfl", unequal())
    assert together.sites["site2"].metrics.log_loss < alone.sites["site2"].metrics.log_loss


def test_a_proxy_of_pure_noise_leaves_large_sites_where_they_were() -> None:
    """Noise drowns the proxy: cross-validation must leave it aside, or weigh it near nothing."""
    drowned = run("proxyfl", unequal(), noise_multiplier=5000.0)
    alone = run("local", unequal())
    for name in ("site0", "site1"):
        loss = drowned.sites[name].metrics.log_loss
        assert loss == pytest.approx(alone.sites[name].metrics.log_loss, abs=0.01)
    chosen = {e.site: e.data["loss"] for e in drowned.events if e.kind == "fitted"}
    assert set(chosen) == {"site0", "site1", "site2"}


def test_what_is_fitted_is_private_and_told_to_nobody() -> None:
    found = run("proxyfl", unequal())
    assert all(m["private"].custody == Custody.PRIVATE for m in found.models.values())
    fitted = [e for e in found.events if e.kind == "fitted"]
    assert fitted
    assert all(e.custody == Custody.PRIVATE for e in fitted)
    sent_after = [e for e in found.events if e.kind == "sent" and e.round == 15]
    assert sent_after == []


def test_alone_is_tuned_with_the_same_effort() -> None:
    assert [e.site for e in run("local", unequal()).events if e.kind == "fitted"] == [
        "site0",
        "site1",
        "site2",
    ]


@pytest.mark.parametrize("classes", [2, 4])
def test_the_scale_of_outputs_that_are_twice_too_sure_is_a_half(classes: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, classes))
    labels = torch.as_tensor((logits + rng.gumbel(size=logits.shape)).argmax(1))
    outputs = torch.as_tensor(2 * logits)
    if classes == 2:
        outputs = outputs[:, 1:] - outputs[:, :1]
    assert best_scale(outputs, labels) == pytest.approx(0.5, abs=0.05)


def test_the_scale_of_outputs_that_say_nothing_is_near_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (2000,), generator=generator)
    assert best_scale(torch.randn(2000, 1, generator=generator), labels) < 0.1
    assert best_scale(-(labels.double()[:, None] * 4 - 2), labels) == 0.0


def test_validation_records_that_were_learned_from_are_not_shown_as_held_back() -> None:
    found = run("local", arrays(2, 200))
    last = [e for e in found.events if e.kind == "evaluated" and e.round == 15]
    assert len(last) == 2
    assert all(e.data["validation"] is None and e.data["test"] for e in last)
    before = [e for e in found.events if e.kind == "evaluated" and e.round == 14]
    assert all(e.data["validation"] for e in before)
