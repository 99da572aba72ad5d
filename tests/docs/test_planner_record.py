"""What the record says about the planner is what benchmarks/utility.py computes from the kept numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from benchmarks.utility import ENOUGH_TRIED, LIKELY, SELDOM, USEFUL_TRIED, forecast_as, halves, shares, within
from confrere.privacy.forecast import CANNOT_KNOW, ENOUGH, USEFUL

RECORDS = Path(__file__).parents[2] / "docs" / "records"


def test_the_limits_are_those_of_the_calibration_half_and_the_held_out_figures_are_stated() -> None:
    found = json.loads((RECORDS / "figures" / "planner.json").read_text(encoding="utf-8"))
    page = (RECORDS / "utility.md").read_text(encoding="utf-8")
    first, second = halves(found)
    assert not {r["study"] for r in first} & {r["study"] for r in second}
    assert len(first) + len(second) == 11
    assert all(shares(first, within(u, ENOUGH)).gained < LIKELY for u in USEFUL_TRIED)
    seldom = [e for e in ENOUGH_TRIED if shares(first, within(USEFUL, e)).lost <= SELDOM]
    assert min(seldom) <= ENOUGH <= max(seldom)
    for word in (CANNOT_KNOW, "unclear"):
        cells = [shares(half, forecast_as(word)) for half in (first, second)]
        stated = " | ".join(
            f"{c.sites} sites, {100 * c.gained:.0f} % gain, {100 * c.lost:.0f} % lose" for c in cells
        )
        assert f"| {word} | {stated} |" in page
