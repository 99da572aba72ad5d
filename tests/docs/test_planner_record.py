"""What the record says about the planner is what benchmarks/utility.py computes from the kept numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from benchmarks.utility import (
    ENOUGH_TRIED,
    LIKELY,
    SELDOM,
    USEFUL_TRIED,
    by_the_rule,
    forecast_as,
    halves,
    outcomes,
    within,
)
from confrere.privacy.forecast import CANNOT_KNOW, ENOUGH, USEFUL
from confrere.statistics.verdict import WORDS

RECORDS = Path(__file__).parents[2] / "docs" / "records"


def test_the_limits_are_those_of_the_calibration_half_and_the_held_out_words_are_stated() -> None:
    found = json.loads((RECORDS / "figures" / "planner.json").read_text(encoding="utf-8"))
    page = (RECORDS / "utility.md").read_text(encoding="utf-8")
    first, second = halves(found)
    assert not {r["study"] for r in first} & {r["study"] for r in second}
    assert len(first) + len(second) == 11
    assert all(by_the_rule(r) and s["word"] in WORDS for r in (*first, *second) for s in r["sites"].values())
    assert all(outcomes(first, within(u, ENOUGH)).better < LIKELY for u in USEFUL_TRIED)
    seldom = [e for e in ENOUGH_TRIED if outcomes(first, within(USEFUL, e)).worse <= SELDOM]
    assert min(seldom) <= ENOUGH <= max(seldom)
    for word in (CANNOT_KNOW, "unclear"):
        cells = [str(outcomes(half, forecast_as(word))) for half in (first, second)]
        assert f"| {word} | {' | '.join(cells)} |" in page
