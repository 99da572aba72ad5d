"""Masked sums give the same in every runtime that has them, with masks and without."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from confrere.core.registry import strategies
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.study import Models, Study
from confrere.study.churn import Churn
from confrere.study.masked_settings import Masked, strategies_with_sums
from tests.conformance.table import MASKED_ROWS, Row
from tests.conformance.test_strategies import PRIVACY, TRAINING, same_models
from tests.conftest import arrays


def test_every_strategy_with_a_masked_form_has_a_row() -> None:
    ours = {n for n in strategies_with_sums() if strategies[n].__module__.startswith("confrere.")}
    assert {row.name for row in MASKED_ROWS} == ours


EACH = pytest.mark.parametrize("row", MASKED_ROWS, ids=lambda r: r.id)


def study(row: Row, mode: Any = "sums") -> Study:
    return Study(
        name="masked",
        rounds=4,
        strategy=row.strategy,
        topology=row.topology,
        combiner="masked-sum",
        masked=Masked(1, 1, mode),
        training=TRAINING,
        privacy=PRIVACY_OF_ONE_STEP,
        models=Models("linear", row.proxy),
        churn=Churn(absent={"site1": [1]}, join={"site4": 2}),
    )


PRIVACY_OF_ONE_STEP = type(PRIVACY)(epsilon=PRIVACY.epsilon, delta=PRIVACY.delta)


@cache
def in_memory(row: str) -> Run:
    return simulate(study(next(r for r in MASKED_ROWS if r.id == row)), arrays(5, 60))


def same(one: Run, two: Run) -> None:
    """What is common is the same to the bit. Private models that are trained in other groups differ by rounding."""
    for site, models in one.models.items():
        role = "model" if "model" in models else "proxy"
        assert models[role].params.equals(two.models[site][role].params)
    same_models(one, two, 1e-5)
    for name, site in one.sites.items():
        assert site.privacy == two.sites[name].privacy


@EACH
def test_with_masks_it_is_the_same_to_the_bit(row: Row) -> None:
    same(in_memory(row.id), simulate(study(row, "masks"), arrays(5, 60)))


@EACH
@pytest.mark.parametrize("mode", ["sums", "masks"])
def test_workers_give_the_same(row: Row, mode: str) -> None:
    same(in_memory(row.id), simulate(study(row, mode), arrays(5, 60), workers=2))


@pytest.mark.slow
@EACH
def test_ray_gives_the_same(row: Row) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'confrere[ray]'")
    same(in_memory(row.id), simulate(study(row), arrays(5, 60), workers=2, engine="ray"))


@EACH
def test_all_sites_share_one_model_and_it_learns(row: Row) -> None:
    run = in_memory(row.id)
    role = "model" if "model" in run.models["site0"] else "proxy"
    first, *others = [models[role].params for models in run.models.values()]
    assert all(first.equals(other) for other in others)
    assert all(site.privacy is not None and site.privacy.condition for site in run.sites.values())
    assert run.mean["accuracy"] > 0.7
