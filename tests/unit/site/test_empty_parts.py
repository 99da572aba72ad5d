"""A part of the split may be empty, at a small site: every strategy goes on, and says nothing that it cannot know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.metrics import METRICS
from confrere.data.records import Records, SiteData
from confrere.data.split.holdout import SplitRule, split_indices
from confrere.evaluate.compare import compare
from confrere.simulation.backends import simulate
from confrere.site.open_sites import open_sites
from confrere.strategies import discover, strategies
from confrere.study import Data, Privacy, Study

discover()
SIZES = (1, 1, 1, 1, 2, 3, 12, 30)


def sites(patients: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {
        f"site{k}": (rng.normal(size=(n, 3)), np.arange(n) % 2, *([np.arange(n) // 2] if patients else []))
        for k, n in enumerate(SIZES)
    }


def study(**changes: Any) -> Study:
    return Study(**{"rounds": 2, "data": Data(classes=("no", "yes"), one_class="allow"), **changes})


def parts(site: SiteData) -> tuple[int, int, int]:
    return len(site.train), len(site.validation), len(site.test)


def test_the_sites_of_this_file_lack_each_part_somewhere() -> None:
    found = [parts(s) for s in open_sites(study(), sites()).sites.values()]
    assert all(any(sizes[part] == 0 for sizes in found) for part in range(3))


@pytest.mark.parametrize("unit", ["none", "record", "patient"])
@pytest.mark.parametrize("strategy", strategies.names())
def test_a_site_without_a_part_takes_part(strategy: str, unit: Any) -> None:
    privacy = None if unit == "none" else Privacy(epsilon=8.0, delta=1e-3, unit=unit)
    run = simulate(study(strategy=strategy, privacy=privacy), sites(unit == "patient"))
    federation = open_sites(study(), sites(unit == "patient"))
    for name, entry in run.sites.items():
        if name in federation.sites:
            assert bool(entry.metrics) == bool(len(federation.sites[name].test))


def test_a_comparison_leaves_out_what_a_site_cannot_say(tmp_path: Path) -> None:
    privacy = Privacy(epsilon=8.0, delta=1e-3)
    done = compare(study(privacy=privacy), ["proxyfl", "pooled"], (0, 1, 2), sites(), out=tmp_path / "runs")
    for strategy in done.strategies.values():
        assert set(strategy.mean) <= set(METRICS)
    assert done.report(tmp_path / "page.html").exists()


def test_a_site_that_has_seen_one_class_is_not_certain_that_there_is_no_other() -> None:
    """Ten records of one class, and a test record of the other: a constant that is free would go to infinity."""
    rng = np.random.default_rng(0)

    def records(targets: list[int]) -> Records:
        inputs = torch.as_tensor(rng.normal(size=(len(targets), 3)), dtype=torch.float32)
        return Records(inputs, torch.tensor(targets))

    lopsided = SiteData("lopsided", records([0] * 10), records([]), records([1]))
    usual = SiteData("usual", records([0, 1] * 30), records([0, 1] * 5), records([0, 1] * 10))
    run = simulate(study(strategy="local"), {"lopsided": lopsided, "usual": usual})
    assert 1.0 < run.sites["lopsided"].metrics.log_loss < 3.5  # log 12 is 2.5


def test_a_file_without_records_has_three_empty_parts() -> None:
    none = open_sites(study(), sites()).sites["site7"].train.select([])
    assert split_indices(none, 0) == split_indices(none, 0, SplitRule(method="stratified")) == ([], [], [])
