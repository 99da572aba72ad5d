"""Train, validation and test: by patient, by class, by seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.errors import DataError
from confrere.data.partition import split, split_indices
from confrere.data.records import Records


def some_records(n: int, seed: int = 0, patients: int | None = None) -> Records:
    rng = torch.Generator().manual_seed(seed)
    units = None if patients is None else torch.randint(0, patients, (n,), generator=rng)
    return Records(torch.randn(n, 3, generator=rng), (torch.rand(n, generator=rng) < 0.3).long(), units)


@given(st.integers(1, 200), st.integers(0, 1000), st.integers(1, 60))
def test_every_record_is_in_exactly_one_part_and_no_patient_in_two(n: int, seed: int, patients: int) -> None:
    records = some_records(n, seed, patients)
    parts = split_indices(records, seed)
    assert sorted(i for part in parts for i in part) == list(range(n))
    assert records.units is not None
    sides = [set(records.units[part].tolist()) for part in parts]
    assert sum(map(len, sides)) == len(set.union(*sides))


def test_each_class_keeps_its_share() -> None:
    records = some_records(1000)
    parts = split(records, seed=3)
    rate = float(records.targets.float().mean())
    for part, share in ((parts.train, 0.6), (parts.validation, 0.2), (parts.test, 0.2)):
        assert abs(len(part) - 1000 * share) <= 2
        assert abs(float(part.targets.float().mean()) - rate) < 0.005


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    records = some_records(300)
    assert split_indices(records, 1) == split_indices(records, 1)
    assert split_indices(records, 1) != split_indices(records, 2)


def test_the_order_of_the_file_does_not_matter() -> None:
    records = some_records(300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(9))
    train = set(split_indices(records, 5)[0])
    shuffled = split_indices(records.select(order), 5)[0]
    assert {int(order[i]) for i in shuffled} == train


@settings(deadline=None)
@given(st.integers(2, 120), st.integers(0, 50), st.data())
def test_one_patient_more_moves_at_most_one_other_in_or_out_of_training(
    n: int, seed: int, data: st.DataObject
) -> None:
    records = some_records(n, seed)
    gone = data.draw(st.integers(0, n - 1))
    rest = [i for i in range(n) if i != gone]
    before, after = split_indices(records, seed), split_indices(records.select(rest), seed)
    for full, less, most in zip(before, after, (1, 2, 1), strict=True):
        moved = set(full) ^ {rest[i] for i in less}
        assert len(moved - {gone}) <= most


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(DataError, match="add up to 1"):
        split(some_records(10), 0, (0.5, 0.2, 0.2))


def test_nothing_cannot_be_split() -> None:
    with pytest.raises(DataError, match="no records"):
        split(some_records(0), 0)
