"""The profile of a federation: means of the values that are there, and shares of columns with two values."""

from __future__ import annotations

import pytest
import torch

from confrere.data.federation_profile import profile
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task

TASK = Task("binary", ("no", "yes"), (3,), ("vitamin", "vitamin missing", "smoker"))


def site(name: str, rows: list[list[float]]) -> SiteData:
    records = Records(torch.tensor(rows), torch.tensor([i % 2 for i in range(len(rows))]))
    none = Records(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    return SiteData(name, records, none, none)


def test_a_site_that_lacks_a_column_is_not_far_from_the_others_in_it() -> None:
    full = [[2.0, 0.0, 1.0], [3.0, 0.0, 0.0], [4.0, 0.0, 0.0], [3.0, 0.0, 0.0]]
    lacking = [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    seen = profile(Federation("f", TASK, {"A": site("A", full), "B": site("B", lacking)}))
    assert seen.apart[:, 0].tolist() == pytest.approx([0.0, 0.0])
    assert seen.two_valued.tolist() == [False, True, True]
    assert seen.shares(2) == [(0.25, 1.0), (1.0, 0.25)]
