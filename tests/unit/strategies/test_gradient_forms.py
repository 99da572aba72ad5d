"""The form of a strategy that exchanges gradients: its common model is that of one step a round on all records."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.simulation.backends import simulate
from confrere.simulation.simulation import Simulation
from confrere.study import Models, Privacy, Study, Training
from confrere.study.masked_settings import Masked
from tests.property.test_gradient_sums import federation

SIZES = [60, 50, 40, 30]
FORMS: dict[str, dict[str, Any]] = {
    "fml": {"name": "fml"},
    "fml taught by nobody": {"name": "fml", "beta": 0.0, "private": "distil"},
    "swarm": {"name": "swarm"},
    "proxyfl": {"name": "proxyfl"},
    "proxyfl distilled": {"name": "proxyfl", "private": "distil", "alpha": 0.3},
}
TRAINING = Training(
    tune=False, optimiser="sgd", learning_rate=0.3, momentum=0.5, weight_decay=0.0, tune_priors=(1.0, 10.0)
)


def study(strategy: Any, **changes: Any) -> Study:
    base = Study(
        name="forms", rounds=3, strategy=strategy, topology="star", models=Models("linear", "linear"),
        training=TRAINING,
    )  # fmt: skip
    return base.with_(**changes)


def common(found: Study) -> list[Params]:
    run = simulate(found, federation(SIZES))
    role = "model" if "model" in run.models["site0"] else "proxy"
    return [models[role].params for models in run.models.values()]


@pytest.mark.parametrize("form", FORMS)
def test_the_common_model_is_that_of_one_step_on_all_records(form: str) -> None:
    expected = common(study({"name": "fedavg", "exchange": "gradients"}))[0]
    for found in common(study({**FORMS[form], "exchange": "gradients"})):
        torch.testing.assert_close(found.flatten(), expected.flatten(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_with_masks_it_is_the_same_sum(form: str) -> None:
    quiet = Privacy(noise_multiplier=0.01, delta=1e-4, clipping={"name": "flat", "norm": 5.0})
    masked = study(FORMS[form], combiner="masked-sum", masked=Masked(1, 1), privacy=quiet)
    expected = common(study({"name": "fedavg", "exchange": "gradients"}))[0]
    first, *others = common(masked)
    assert all(first.equals(other) for other in others)
    torch.testing.assert_close(first.flatten(), expected.flatten(), rtol=0, atol=0.005)


def test_a_proxy_with_a_private_centre_is_refused_under_masks() -> None:
    privacy = Privacy(epsilon=4.0, delta=1e-4)
    centred = Models("linear", "centred-linear")
    asked = study("proxyfl", combiner="masked-sum", privacy=privacy, models=centred)
    with pytest.raises(StudyError, match="not part of a masked sum"):
        Simulation(asked, federation(SIZES)).prepare()


def test_proxyfl_needs_a_graph_that_reaches_all_sites() -> None:
    with pytest.raises(StudyError, match='set topology = "complete" or "star"'):
        study("proxyfl", combiner="masked-sum", privacy=Privacy(epsilon=4.0), topology=None)
