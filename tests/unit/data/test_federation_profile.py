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


def test_a_yes_or_no_column_with_gaps_is_described_by_its_share() -> None:
    """A number that stands in for a missing value does not make it a measurement."""
    one = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.4, 1.0, 0.0], [0.0, 0.0, 0.0]]
    two = [[0.4, 1.0, 1.0], [0.4, 1.0, 1.0]]
    seen = profile(Federation("f", TASK, {"A": site("A", one), "B": site("B", two), "C": site("C", one)}))
    assert seen.two_valued.tolist() == [True, True, True]
    shares = seen.shares(0)
    assert shares[0] == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert shares[1][1] == pytest.approx(1 / 3)
