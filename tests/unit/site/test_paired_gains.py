"""Gains are paired, or the comparison says that they are not."""

from __future__ import annotations

from confrere.evaluate.compare import compare
from tests.conftest import arrays
from tests.unit.quick import quick


def test_a_variant_with_other_records_is_said_to_be_unpaired() -> None:
    plan = quick(
        rounds=1, variants={"larger test": {"data": {"split": {"test": 0.5}}}, "longer": {"rounds": 2}}
    )
    notes = compare(plan, ["larger test", "longer"], [0], arrays(2, 60)).result.notes
    assert [n for n in notes if "paired" in n] == [
        '"larger test" has other records than «local»: its gains are not paired'
    ]
