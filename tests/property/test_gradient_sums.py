"""Exchanging gradients is exchanging models, where a round is one step; and one optimiser acts for all sites."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from confrere.core.params import Params
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task
from confrere.simulation.backends import simulate
from confrere.study import Models, Privacy, Study, Training

GRADIENTS = {"name": "fedavg", "exchange": "gradients"}


def federation(sizes: list[int]) -> Federation:
    sites = {}
    for k, size in enumerate(sizes):
        source = torch.Generator().manual_seed(k)
        inputs = torch.randn(size, 3, generator=source)
        targets = (inputs[:, 0] + 0.5 * k + torch.randn(size, generator=source) > 0).long()
        targets[:2] = torch.tensor([0, 1])
        records = Records(inputs, targets, torch.arange(size) // 2)
        whole = size * 5 // 3  # of the whole file, three fifths are for training
        sites[f"site{k}"] = SiteData(f"site{k}", records, records.select([]), records, whole)
    return Federation("sums", Task("binary", ("no", "yes"), (3,)), sites)


def models(strategy: Any, sizes: list[int], **options: Any) -> list[Params]:
    training = {"optimiser": "sgd", "batch_size": 100, "tune": False, "weight_decay": 0.0} | options
    more = {k: training.pop(k) for k in ("privacy", "topology") if k in training}
    study = Study(
        name="sums", rounds=4, strategy=strategy, models=Models("linear", "linear"),
        training=Training(**training), **more,
    )  # fmt: skip
    run = simulate(study, federation(sizes))
    return [found["model"].params for _, found in sorted(run.models.items())]


def same(one: list[Params], other: list[Params], tolerance: float = 1e-5) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.flatten(), b.flatten(), rtol=0, atol=tolerance)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.sampled_from([6, 9, 12, 39]), min_size=2, max_size=4),
    rate=st.sampled_from([0.05, 0.5]),
    topology=st.sampled_from(["complete", "star"]),
    private=st.booleans(),
)
def test_one_full_step_a_round_is_the_same_by_gradients_and_by_models(
    sizes: list[int], rate: float, topology: str, private: bool
) -> None:
    privacy = Privacy(noise_multiplier=0.001, delta=1e-4, steps=1, clipping={"name": "flat", "norm": 0.7})
    options = {"learning_rate": rate, "topology": topology, "privacy": privacy if private else None}
    by_models, by_gradients = models("fedavg", sizes, **options), models(GRADIENTS, sizes, **options)
    same(by_models, by_gradients, 2e-3 if private else 1e-5)  # with the least noise that a study may have
    assert all(by_gradients[0].equals(other) for other in by_gradients)


@pytest.mark.parametrize("rule", [{"momentum": 0.9}, {"optimiser": "adam", "weight_decay": 0.01}])
def test_the_optimiser_acts_on_the_sum_as_on_pooled_records(rule: dict[str, Any]) -> None:
    sizes = [6, 30, 12]
    options = {"learning_rate": 0.1, **rule}
    same(
        models(GRADIENTS, sizes, **options),
        models({"name": "pooled", "architecture": "proxy"}, sizes, **options),
    )


def test_it_is_not_the_same_as_averaging_models_once_there_is_momentum_at_each_site() -> None:
    """So that the test above can fail: momentum at each site is momentum of each site."""
    sizes, options = [6, 30, 12], {"learning_rate": 0.1, "optimiser": "adam"}
    one, other = models(GRADIENTS, sizes, **options), models("fedavg", sizes, **options)
    assert one[0].distance(other[0]) > 1e-3
