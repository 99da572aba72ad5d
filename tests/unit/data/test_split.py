"""Train, validation and test: by patient, by seed and key; and what a stratified split costs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.federation import Source
from confrere.data.read.streaming import encode_stream
from confrere.data.records import Records, concatenate
from confrere.data.schema import Schema
from confrere.data.split.holdout import SplitRule, file_group, split, split_indices, whole_file
from confrere.data.tasks import Label

STRATIFIED = SplitRule(method="stratified")


def some_records(n: int, seed: int = 0, patients: int | None = None) -> Records:
    rng = torch.Generator().manual_seed(seed)
    units = None if patients is None else torch.randint(0, patients, (n,), generator=rng)
    return Records(torch.randn(n, 3, generator=rng), (torch.rand(n, generator=rng) < 0.3).long(), units)


@pytest.mark.parametrize("rule", [SplitRule(), STRATIFIED], ids=lambda r: r.method)
@given(st.integers(1, 200), st.integers(0, 1000), st.integers(1, 60))
def test_every_record_is_in_exactly_one_part_and_no_patient_in_two(
    rule: SplitRule, n: int, seed: int, patients: int
) -> None:
    records = some_records(n, seed, patients)
    parts = split_indices(records, seed, rule)
    assert sorted(i for part in parts for i in part) == list(range(n))
    assert records.units is not None
    sides = [set(records.units[part].tolist()) for part in parts]
    assert sum(map(len, sides)) == len(set.union(*sides))


def test_stratified_each_class_keeps_its_share() -> None:
    records = some_records(1000)
    parts = split(records, seed=3, rule=STRATIFIED)
    rate = float(records.targets.float().mean())
    for part, share in ((parts.train, 0.6), (parts.validation, 0.2), (parts.test, 0.2)):
        assert abs(len(part) - 1000 * share) <= 2
        assert abs(float(part.targets.float().mean()) - rate) < 0.005


@pytest.mark.parametrize("rule", [SplitRule(), STRATIFIED], ids=lambda r: r.method)
def test_the_same_seed_gives_the_same_split_and_another_seed_another(rule: SplitRule) -> None:
    records = some_records(300)
    assert split_indices(records, 1, rule) == split_indices(records, 1, rule)
    assert split_indices(records, 1, rule) != split_indices(records, 2, rule)


def test_each_site_has_a_key_of_its_own_and_a_stated_key_is_all_that_counts() -> None:
    records = some_records(300)
    assert split_indices(records, 1, site="a") != split_indices(records, 1, site="b")
    own, another = SplitRule(key=b"a" * 32), SplitRule(key=b"b" * 32)
    assert split_indices(records, 1, own, "a") == split_indices(records, 2, own, "b")
    assert split_indices(records, 1, own) != split_indices(records, 1, another)


@pytest.mark.parametrize("rule", [SplitRule(), STRATIFIED], ids=lambda r: r.method)
def test_the_order_of_the_file_does_not_matter(rule: SplitRule) -> None:
    records = some_records(300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(9))
    train = set(split_indices(records, 5, rule)[0])
    shuffled = split_indices(records.select(order), 5, rule)[0]
    assert {int(order[i]) for i in shuffled} == train


@settings(deadline=None)
@given(st.integers(2, 120), st.integers(0, 50), st.data())
def test_stratified_one_patient_more_moves_no_more_than_a_group_of_three(
    n: int, seed: int, data: st.DataObject
) -> None:
    records = some_records(n, seed)
    gone = data.draw(st.integers(0, n - 1))
    rest = [i for i in range(n) if i != gone]
    before, after = (
        split_indices(records, seed, STRATIFIED),
        split_indices(records.select(rest), seed, STRATIFIED),
    )
    moved = {i for full, less in zip(before, after, strict=True) for i in set(full) ^ {rest[j] for j in less}}
    assert len(moved | {gone}) <= file_group("stratified")


def test_stratified_a_record_more_does_move_two_others() -> None:
    """Or the label «a group of three» would be more than it costs."""
    most = 0
    for seed in range(40):
        records = some_records(30, seed)
        for gone in range(30):
            rest = [i for i in range(30) if i != gone]
            before = split_indices(records, seed, STRATIFIED)
            after = split_indices(records.select(rest), seed, STRATIFIED)
            sides = {i: k for k, part in enumerate(before) for i in part}
            most = max(most, sum(sides[rest[j]] != k for k, part in enumerate(after) for j in part))
    assert most + 1 == file_group("stratified") == 3
    assert file_group("hash") == 1


def test_what_a_split_costs_is_in_its_words() -> None:
    assert "whole file" in whole_file("hash")
    assert "moves up to two others" in whole_file("stratified")
    assert "a group of three" in whole_file("stratified")


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(DataError, match="add up to 1"):
        SplitRule((0.5, 0.2, 0.2))


def test_no_records_are_split_into_empty_parts() -> None:
    parts = split(some_records(0), 0)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (0, 0, 0)


def test_patients_of_several_sites_stay_apart_and_do_not_depend_on_each_other() -> None:
    one, two = some_records(30, 1, patients=10), some_records(20, 2, patients=10)
    both = concatenate([one, two])
    assert both.patients == one.patients + two.patients
    assert both.units is not None
    fewer = concatenate([one.select(list(range(1, 30))), two])
    assert fewer.units is not None
    assert torch.equal(fewer.units, both.units[1:])


def repeated(path: Path, before: int) -> Path:
    rows = [(str(i), i % 90, 0) for i in range(before)] + [("A", 50, 1), ("B", 51, 1), ("A", 50, 1)]
    pd.DataFrame(rows, columns=["who", "age", "sick"]).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_which_repeats_are_dropped_does_not_depend_on_where_a_streamed_file_is_cut(
    tmp_path: Path, before: int
) -> None:
    schema = Schema(
        label=Label(column="sick"), columns=(Column("age", range=(0, 120)),), patient="who", repeats="drop"
    )
    source = Source(repeated(tmp_path / "a.csv", before))
    assert len(encode_stream(source, schema, rows=2).records) == before + 2
    once = Schema(label=schema.label, columns=schema.columns, patient="who", repeats="refuse")
    with pytest.raises(DataError, match="patient A is there for the second time"):
        encode_stream(source, once, rows=2)
