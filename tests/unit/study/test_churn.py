"""Who is there: fixed lists, chance and time zones, all worked out alike by every site."""

from __future__ import annotations

import pytest

from confrere.core.errors import StudyError
from confrere.study.churn import Churn

SITES = ["a", "b", "c"]


def test_members_join_leave_and_each_change_starts_an_epoch() -> None:
    churn = Churn(join={"b": 2}, leave={"a": 4, "c": 4})
    assert [churn.members(r, SITES) for r in (0, 2, 4)] == [("a", "c"), ("a", "b", "c"), ("b",)]
    assert [churn.epoch(r) for r in range(6)] == [0, 0, 1, 1, 2, 2]
    assert churn.changes(6) == [0, 2, 4]
    assert churn.changes(4) == [0, 2]


def test_mere_absence_changes_no_membership() -> None:
    churn = Churn(absent={"a": [1]}, probability=0.5)
    assert {churn.members(r, SITES) for r in range(20)} == {("a", "b", "c")}
    assert {churn.epoch(r) for r in range(20)} == {0}
    assert not churn.present(1, "a")


def test_chance_is_the_same_for_everybody_and_as_frequent_as_said() -> None:
    churn = Churn(probability=0.3)
    pattern = [churn.present(r, "a") for r in range(2000)]
    assert pattern == [Churn(probability=0.3).present(r, "a") for r in range(2000)]
    assert pattern != [churn.present(r, "b") for r in range(2000)]
    assert pattern != [Churn(probability=0.3, seed=1).present(r, "a") for r in range(2000)]
    assert 0.66 < sum(pattern) / 2000 < 0.74


def test_time_zones_shift_the_night() -> None:
    churn = Churn(probability=0.25, period=8, zones={"b": 4})
    assert [churn.present(r, "a") for r in range(8)] == [False] * 2 + [True] * 6
    assert [churn.present(r, "b") for r in range(8)] == [True] * 4 + [False] * 2 + [True] * 2


@pytest.mark.parametrize(
    ("churn", "said"),
    [
        (Churn(absent={"aa": [1]}), 'churn.absent names "aa"'),
        (Churn(zones={"x": 1}), 'churn.zones names "x"'),
        (Churn(join={"a": -1}), "would join in round -1"),
        (Churn(join={"a": 5}), "would join in round 5; the rounds are 0 to 4"),
        (Churn(leave={"a": 0}), "before it has joined"),
        (Churn(absent={"a": [0, 1, 2]}, leave={"a": 3}), '"a" would miss every round'),
        (Churn(probability=1.0), "churn.probability is 1.0"),
        (Churn(period=-1), "churn.period is -1"),
    ],
)
def test_what_makes_no_sense_is_refused(churn: Churn, said: str) -> None:
    with pytest.raises(StudyError, match=said.replace(".", r"\.")):
        churn.check(SITES, 5)
    Churn(absent={"a": [0, 1, 2, 3]}, probability=0.9).check(SITES, 5)
