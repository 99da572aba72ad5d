"""The planner and comparisons know masked sums: what they would change, and the noise of a study that has them."""

from __future__ import annotations

import math

import pytest

from confrere.evaluate.compare import variant
from confrere.evaluate.plan import plan, plan_for_sizes
from confrere.study import Models, Privacy, Study
from confrere.study.masked_settings import Masked
from tests.conftest import arrays


def test_masks_pay_with_many_sites_and_less_with_few() -> None:
    gains = []
    for sites in (3, 8, 32):
        found = plan_for_sizes([1000] * sites, parameters=100, epsilon=3.0)
        assert found.masked is not None
        gains.append(found.masked.signal_to_noise / found.forecast.signal_to_noise)
    assert gains == sorted(gains)
    # all members but the colluding one share the noise, which costs a little more to prove: √h instead of 1
    assert gains[1] == pytest.approx(math.sqrt(7) * 1.3906 / 1.49, rel=0.02)


def test_two_sites_have_no_masked_sums() -> None:
    assert plan_for_sizes([1000, 1000], parameters=100, epsilon=3.0).masked is None


def test_a_study_with_masked_sums_is_forecast_with_its_own_noise() -> None:
    study = Study(
        rounds=4,
        strategy="fedavg",
        models=Models("linear", "linear"),
        privacy=Privacy(epsilon=3.0, delta=1e-4),
    )
    plain = plan(study, arrays(4, 100))
    masked = plan(study.with_(combiner="masked-sum", masked=Masked(1, 0)), arrays(4, 100))
    assert plain.masked is not None
    assert masked.masked is None
    assert masked.forecast.signal_to_noise == pytest.approx(plain.masked.signal_to_noise, rel=0.01)


def test_a_comparison_with_training_alone_leaves_the_masks_out() -> None:
    privacy = Privacy(epsilon=3.0, delta=1e-4)
    robust = {"robust": {"combiner": "median"}}
    study = Study(
        strategy="fedavg", combiner="masked-sum", masked=Masked(1, 0), privacy=privacy, variants=robust
    )
    for name in ("local", "pooled", "robust"):
        assert variant(study, name).masked is None
    assert variant(study, "fedavg").masked == Masked(1, 0)
    masked = {"combiner": "masked-sum", "masked": {"dropouts": 0}}
    plain = Study(strategy="fedavg", privacy=privacy, variants={"masked": masked})
    assert variant(plain, "masked").masked == Masked(1, 0)
