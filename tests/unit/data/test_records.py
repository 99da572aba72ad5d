"""Records, and the count that a site owns up to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from confrere.core.errors import DataError
from confrere.data.records import Federation, Records, SiteData, concatenate, declared_count, training_size
from confrere.data.tasks import Task


@given(st.integers(1, 10**7))
def test_a_declared_count_is_close_and_has_two_digits_at_most(n: int) -> None:
    declared = declared_count(n)
    assert abs(declared - n) <= 0.05 * n
    assert len(str(declared).rstrip("0")) <= 2


def test_the_training_size_is_the_training_share_of_what_a_site_declares() -> None:
    records = Records(torch.zeros(1234, 2), torch.zeros(1234, dtype=torch.int64))
    site = SiteData("a", records, records, records).declaring(1000, 0.6)
    assert (site.declared, site.size, site.computed) == (1000, 600, False)


@given(st.integers(1, 10**9), st.integers(1, 100))
def test_the_training_size_is_rounded_alike_however_the_share_was_computed(
    declared: int, percent: int
) -> None:
    test = (100 - percent) / 200
    assert training_size(declared, percent / 100) == training_size(declared, 1 - test - test)
    assert abs(training_size(declared, percent / 100) - declared * percent / 100) <= 1


def test_a_rehearsal_counts_and_rounds_the_units_of_a_site_that_declares_none() -> None:
    records = Records(torch.zeros(411, 2), torch.zeros(411, dtype=torch.int64), torch.arange(411) // 3)
    site = SiteData("a", records, records, records)
    found = site.declaring(0, 0.5)
    assert (found.declared, found.size, found.computed) == (1200, 600, True)
    assert site.declaring(0, 0.5, "patient").declared == 410


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
