"""A comparison in which a site has test records for some seeds only."""

from __future__ import annotations

import numpy as np
import pytest

import confrere
from confrere.evaluate.compare import Comparison
from confrere.evaluate.comparison_verdicts import verdicts
from confrere.study import Study


def small_comparison() -> Comparison:
    draw = np.random.default_rng(0)

    def records(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = draw.normal(size=(count, 3)).astype("float32")
        return x, (x[:, 0] + 0.5 * draw.normal(size=count) > 0).astype(int)

    sites = {"a": records(80), "b": records(60), "c": records(3)}
    return confrere.compare(Study(name="small", rounds=1), ["fedavg"], range(4), sites)


def test_a_site_that_some_seeds_leave_without_test_records_has_no_interval_over_all_sites() -> None:
    found = small_comparison()
    tested = ["c" in run.predictions and "test" in run.predictions["c"].parts for run in found.runs["fedavg"]]
    assert 0 < sum(tested) < len(tested)
    overall = found.result.strategies["fedavg"].in_patients
    assert overall is not None
    assert overall.missed_change is None


def test_the_interval_of_a_mean_is_about_the_mean_beside_it() -> None:
    """Both are over the sites that have test records in a seed."""
    found = small_comparison()
    judged = verdicts(found.runs, "log_loss", {}).gains
    for way in found.strategies.values():
        for metric, gain in way.gains.items():
            if gain.interval is not None:
                assert judged["test", way.name, "mean", "all"][metric].mean == pytest.approx(
                    gain.mean, abs=1e-6
                )
                assert gain.interval[0] <= gain.mean <= gain.interval[1]
                assert way.name != "fedavg" or gain.mean != 0


def test_the_threshold_is_the_share_of_the_ill_among_training_records() -> None:
    """Test records choose nothing, not even the threshold at which a model warns."""
    draw = np.random.default_rng(1)
    sites = {n: (draw.normal(size=(50, 2)).astype("float32"), (np.arange(50) % 3 == 0) * 1) for n in "ab"}
    found = confrere.compare(Study(name="small", rounds=1), ["fedavg"], range(3), sites)
    for name in sites:
        result = found.result.strategies["fedavg"].sites[name].in_patients
        trained = [run.sites[name].prevalence for run in found.runs["fedavg"]]
        assert result is not None
        assert result.threshold == pytest.approx(np.mean([p for p in trained if p is not None]))
        assert result.threshold != pytest.approx(result.ill)
