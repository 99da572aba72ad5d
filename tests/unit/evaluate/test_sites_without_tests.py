"""A comparison in which a site has test records for some seeds only."""

from __future__ import annotations

import numpy as np

import confrere
from confrere.study import Study


def test_a_site_that_some_seeds_leave_without_test_records_has_no_interval_over_all_sites() -> None:
    draw = np.random.default_rng(0)

    def records(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = draw.normal(size=(count, 3)).astype("float32")
        return x, (x[:, 0] + 0.5 * draw.normal(size=count) > 0).astype(int)

    sites = {"a": records(80), "b": records(60), "c": records(3)}
    found = confrere.compare(Study(name="small", rounds=1), ["fedavg"], range(4), sites)
    tested = ["c" in run.predictions and "test" in run.predictions["c"].parts for run in found.runs["fedavg"]]
    assert 0 < sum(tested) < len(tested)
    overall = found.result.strategies["fedavg"].in_patients
    assert overall is not None
    assert overall.missed_change is None
