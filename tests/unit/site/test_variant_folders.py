"""Whatever a variant is called, its runs stay in the folder of the comparison, and its report finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.evaluate.compare import compare
from confrere.report.results_folder import runs_of
from tests.conftest import arrays
from tests.unit.quick import quick


@pytest.mark.parametrize("name", ["../../outside", "a/b", "two words", "less noise (ε = 9)"])
def test_a_variant_stays_inside(tmp_path: Path, name: str) -> None:
    out = tmp_path / "deep" / "out"
    plan = quick("fedavg", rounds=1, variants={name: {"rounds": 1}})
    found = compare(plan, [name], [0], arrays(2, 60), out=out)
    journals = [j for j in tmp_path.rglob("journal.jsonl") if j.parent.parent.name != "sites"]
    assert len(journals) == 2
    assert all(j.parent.parent == out / "runs" for j in journals)
    assert len(runs_of(out, name)) == 1
    assert found.report().exists()
