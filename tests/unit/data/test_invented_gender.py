"""Sites as published experiments cut them: an invented gender that misleads, and given counts of each class."""

from __future__ import annotations

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.data.bundled import federation
from confrere.data.bundled.prepared_tables import INVENTED_GENDER, with_gender
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task

TASK = Task("binary", ("benign", "malignant"), (2,), ("a", "b"))


def hospital(name: str, seed: int) -> SiteData:
    def some(count: int, offset: int) -> Records:
        rng = torch.Generator().manual_seed(seed + offset)
        return Records(torch.randn(count, 2, generator=rng), torch.randint(0, 2, (count,), generator=rng))

    return SiteData(name, some(4000, 0), some(100, 1), some(100, 2), common_test=some(4000, 3))


def men(records: Records, kind: int) -> float:
    return float(records.inputs[records.targets == kind, -1].mean())


def test_gender_misleads_in_opposite_ways_and_says_nothing_in_the_common_test() -> None:
    both = Federation("x", TASK, {n: hospital(n, k) for k, n in enumerate(("north", "south"))})
    found = with_gender(both, 0.8, seed=3)
    north, south = found.sites["north"], found.sites["south"]
    assert found.task.features[-1] == INVENTED_GENDER
    assert found.task.inputs == (3,)
    assert (men(north.train, 1), men(north.train, 0)) == pytest.approx((0.8, 0.2), abs=0.03)
    assert (men(south.train, 1), men(south.train, 0)) == pytest.approx((0.2, 0.8), abs=0.03)
    assert north.common_test is not None
    assert men(north.common_test, 1) == pytest.approx(0.5, abs=0.04)
    assert any("invented" in note for note in found.notes)


def test_the_same_seed_invents_the_same_gender() -> None:
    one = Federation("x", TASK, {"north": hospital("north", 0)})
    first, again, other = (with_gender(one, 0.8, s).sites["north"].train.inputs for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_bias_below_a_half_is_refused() -> None:
    with pytest.raises(StudyError, match=r"0\.5"):
        with_gender(Federation("x", TASK, {"north": hospital("north", 0)}), 0.2, 0)


def test_thyroid_patients_are_cut_as_asked_with_a_balanced_common_test() -> None:
    counts = [[107, 223], [425, 56]]
    found = federation("thyroid", seed=0, partition="given", counts=counts, common=558)
    assert [torch.bincount(s.all.targets).tolist() for s in found.sites.values()] == counts
    test = found.sites["site1"].common_test
    assert test is not None
    assert torch.bincount(test.targets).tolist() == [279, 279]
    with pytest.raises(StudyError, match="partition"):
        federation("thyroid", seed=0, counts=counts)
