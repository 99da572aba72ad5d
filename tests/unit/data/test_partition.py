"""Rehearsal sites: disjoint, seeded, and as unlike as asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.errors import DataError, StudyError
from confrere.data.records import Records
from confrere.data.split.partitions import PARTITIONS, blank, by_column, held_out, partition


def pictures(n: int = 3000, classes: int = 10, patients: int | None = None) -> Records:
    rng = torch.Generator().manual_seed(1)
    units = None if patients is None else torch.randint(0, patients, (n,), generator=rng)
    return Records(torch.randn(n, 4, generator=rng), torch.randint(0, classes, (n,), generator=rng), units)


def marked(records: Records) -> Records:
    """The same records with their position in the first feature."""
    inputs = records.inputs.clone()
    inputs[:, 0] = torch.arange(len(records)).float()
    return Records(inputs, records.targets, records.units)


@pytest.mark.parametrize("how", list(PARTITIONS))
def test_no_record_and_no_patient_is_at_two_sites(how: str) -> None:
    records = marked(pictures(patients=900))
    sites = partition(records, how, 4, seed=5)
    ids = [int(i) for site in sites for i in site.inputs[:, 0]]
    assert len(ids) == len(set(ids)) > 0
    people = [set(site.units.tolist()) for site in sites if site.units is not None]
    assert sum(map(len, people)) == len(set.union(*people))


@pytest.mark.parametrize("how", list(PARTITIONS))
def test_the_same_seed_gives_the_same_sites_and_another_one_others(how: str) -> None:
    records = marked(pictures())
    first, again, other = (partition(records, how, 4, seed=s) for s in (5, 5, 6))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    assert how == "feature" or any(
        a.inputs.shape != b.inputs.shape or not torch.equal(a.inputs, b.inputs)
        for a, b in zip(first, other, strict=True)
    )


def shares(site: Records, classes: int = 10) -> Any:
    return np.bincount(site.targets.numpy(), minlength=classes) / len(site)


def test_p_major_gives_each_site_one_class_in_the_asked_share() -> None:
    sites = partition(pictures(), "p_major", 8, seed=0, records_per_site=200, p=0.8)
    assert [len(s) for s in sites] == [200] * 8
    assert [shares(s).max() for s in sites] == pytest.approx([0.8] * 8)
    assert len({int(shares(s).argmax()) for s in sites}) == 8


def test_with_repeat_sites_may_share_their_majority_class() -> None:
    def majors(repeat: bool, seed: int) -> int:
        sites = partition(pictures(), "p_major", 8, seed=seed, records_per_site=20, p=0.8, repeat=repeat)
        return len({int(s.targets.mode().values) for s in sites})

    assert [majors(False, seed) for seed in range(5)] == [8] * 5
    assert min(majors(True, seed) for seed in range(5)) < 8


def test_a_small_concentration_is_more_unlike_than_a_large_one() -> None:
    def unlike(concentration: float) -> float:
        sites = partition(pictures(), "dirichlet", 5, seed=3, concentration=concentration)
        return float(np.mean([np.abs(shares(s) - 0.1).sum() for s in sites]))

    assert unlike(0.1) > 2 * unlike(10.0)


def test_label_skew_leaves_each_site_its_own_classes_only() -> None:
    for k in (1, 2):
        sites = partition(pictures(classes=4), "label", 4, seed=0, classes_per_site=k)
        assert all(len(torch.unique(s.targets)) == k for s in sites)


def test_given_counts_are_given_and_too_many_are_refused() -> None:
    records = pictures(classes=2)
    counts = [[30, 10], [5, 40]]
    sites = partition(records, "given", 2, seed=0, counts=counts)
    assert [np.bincount(s.targets.numpy()).tolist() for s in sites] == counts
    with pytest.raises(DataError, match="class 1"):
        partition(records, "given", 2, seed=0, counts=[[1, 3000], [1, 1]])
    with pytest.raises(StudyError, match="each of the 2 classes"):
        partition(records, "given", 2, seed=0, counts=[[1, 2, 3], [1, 2, 3]])


def test_a_common_test_is_balanced_and_shares_no_patient_with_the_rest() -> None:
    records = pictures(classes=2, patients=900)
    rest, test = held_out(records, 200, seed=1)
    assert len(rest) + len(test) == len(records)
    assert rest.units is not None
    assert test.units is not None
    assert not set(rest.units.tolist()) & set(test.units.tolist())
    alike, out = held_out(pictures(classes=2), 200, seed=1)
    assert np.bincount(out.targets.numpy()).tolist() == [100, 100]
    with pytest.raises(DataError, match="leaves no record"):
        held_out(alike, 6000, seed=1)


def test_size_skew_makes_each_site_a_multiple_of_the_next() -> None:
    sizes = [len(s) for s in partition(pictures(), "size", 3, seed=0, ratio=3.0)]
    assert sizes[0] / sizes[1] == pytest.approx(3, rel=0.02)
    assert sum(sizes) == 3000


def test_feature_skew_sorts_sites_by_a_feature() -> None:
    means = [float(s.inputs[:, 2].mean()) for s in partition(pictures(), "feature", 3, seed=0, column=2)]
    assert means == sorted(means)
    assert means[2] - means[0] > 1
    mild = [float(s.inputs[:, 2].mean()) for s in partition(pictures(), "feature", 3, seed=0, strength=0.0)]
    assert max(mild) - min(mild) < 0.3


def test_inequality_runs_from_alike_to_each_its_own() -> None:
    pure = partition(pictures(classes=4), "inequality", 4, seed=0, degree=1.0)
    assert all(len(torch.unique(s.targets)) == 1 for s in pure)
    alike = partition(pictures(classes=4), "inequality", 4, seed=0, degree=0.0)
    assert max(shares(s, 4).max() for s in alike) < 0.33


def test_blanking_sets_the_indicator_and_nothing_else() -> None:
    features = ("age", "age high", "age low", "age missing", "x")
    records = Records(torch.ones(1000, 5), torch.zeros(1000, dtype=torch.int64))
    gone = blank(records, features, ["age"], 0.3, seed=0)
    hit = gone.inputs[:, 3] == 1
    assert 0.25 < float((gone.inputs[:, 0] == 0).float().mean()) < 0.35
    assert bool((gone.inputs[gone.inputs[:, 0] == 0][:, :3] == 0).all())
    assert bool((gone.inputs[:, 4] == 1).all())
    assert bool(hit.all())
    with pytest.raises(StudyError, match="no missing-value indicator"):
        blank(records, features, ["x"], 0.3, seed=0)


def test_by_column_names_sites_in_the_order_of_the_file() -> None:
    assert {k: v.tolist() for k, v in by_column(["b", "a", "b"]).items()} == {"b": [0, 2], "a": [1]}


def test_what_cannot_be_cut_is_said() -> None:
    with pytest.raises(DataError, match="are left"):
        partition(pictures(100), "p_major", 8, seed=0, records_per_site=200)
    with pytest.raises(StudyError, match="known are iid, p_major"):
        partition(pictures(), "fair", 3, seed=0)
    with pytest.raises(StudyError, match="has no option 'q'; it has p, records"):
        partition(pictures(), "p_major", 3, seed=0, q=1)
    with pytest.raises(StudyError, match="from 0 to 1"):
        partition(pictures(), "p_major", 3, seed=0, p=1.5)
    with pytest.raises(DataError, match="no patient"):
        partition(pictures(3), "iid", 5, seed=0)
