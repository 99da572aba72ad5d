"""The form of a strategy that exchanges gradients: its common model is that of one step a round on all records."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.simulation.backends import simulate
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


CENTRED = Models("linear", "centred-linear")


def centre_of(found: Study) -> tuple[torch.Tensor, torch.Tensor]:
    """The agreed mean of the records and class shares, which all sites have in common."""
    first, *others = common(found)
    assert all(first.equals(other) for other in others)
    shares = first["shares.weight"].reshape(-1)
    return first["mean.weight"].reshape(-1) / shares.sum(), shares / shares.sum()


@pytest.mark.parametrize("masked", [False, True])
def test_the_first_sums_are_the_centre_of_all_records(masked: bool) -> None:
    quiet = Privacy(noise_multiplier=0.005, delta=1e-4, clipping={"name": "flat", "norm": 9.0})
    masks = {"combiner": "masked-sum", "masked": Masked(1, 1), "privacy": quiet}
    form = {"name": "proxyfl", "settle": 2} | ({} if masked else {"exchange": "gradients"})
    mean, shares = centre_of(study(form, models=CENTRED, **(masks if masked else {})))
    records = [site.train for site in federation(SIZES).sites.values()]
    inputs, targets = torch.cat([r.inputs for r in records]), torch.cat([r.targets for r in records])
    torch.testing.assert_close(mean, inputs.mean(0), rtol=0, atol=0.005 if masked else 1e-5)
    expected = torch.bincount(targets) / len(targets)
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.005 if masked else 1e-5)


def test_a_centre_under_masks_costs_a_round_and_the_whole_study_keeps_its_epsilon() -> None:
    privacy = Privacy(epsilon=4.0, delta=1e-4)
    asked = study("proxyfl", combiner="masked-sum", masked=Masked(1, 1), privacy=privacy, models=CENTRED)
    run = simulate(asked.with_(rounds=5), federation(SIZES))
    charged = [e for e in run.events if e.kind == "charged" and e.site == "site0"]
    assert [e.data["role"] for e in charged] == ["profile"] * 3 + ["proxy"] * 2
    found = run.sites["site0"].privacy
    assert found is not None
    assert 3.9 < found.epsilon <= 4.0
    assert found.proven
    assert found.condition


def test_proxyfl_needs_a_graph_that_reaches_all_sites() -> None:
    with pytest.raises(StudyError, match='set topology = "complete" or "star"'):
        study("proxyfl", combiner="masked-sum", privacy=Privacy(epsilon=4.0), topology=None)
