"""Records, and the count that a site owns up to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from confrere.core.errors import DataError
from confrere.data.records import Federation, Records, SiteData, Task, concatenate, declared_count


@given(st.integers(1, 10**7))
def test_a_declared_count_is_close_and_has_two_digits_at_most(n: int) -> None:
    declared = declared_count(n)
    assert abs(declared - n) <= 0.05 * n
    assert len(str(declared).rstrip("0")) <= 2


def test_a_site_without_a_stated_count_declares_the_rounded_one() -> None:
    records = Records(torch.zeros(1234, 2), torch.zeros(1234, dtype=torch.int64))
    assert SiteData("a", records, records, records).declared == 1200
    assert SiteData("a", records, records, records, declared=1000).declared == 1000


def test_inputs_and_targets_go_together() -> None:
    with pytest.raises(DataError, match="each record needs both"):
        Records(torch.zeros(3, 1), torch.zeros(2))


def test_patients_of_different_parts_stay_different_patients() -> None:
    a = Records(torch.zeros(3, 1), torch.zeros(3), torch.tensor([7, 7, 9]))
    b = Records(torch.zeros(2, 1), torch.zeros(2), torch.tensor([7, 8]))
    assert concatenate([a, b]).patients == 4


def test_a_site_of_another_shape_is_refused() -> None:
    records = Records(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(DataError, match="site a"):
        Federation("f", Task("binary", ("no", "yes"), (5,)), {"a": SiteData("a", records, records, records)})
