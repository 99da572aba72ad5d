"""Better, worse, no clear difference, or too few to judge: one rule."""

from __future__ import annotations

import numpy as np
import pytest

from confrere.statistics.verdict import (
    LEAST_RARER,
    Effect,
    Gain,
    judge_all,
    shown,
    stated,
)


def over_seeds(values: list[float]) -> Gain:
    """A gain in which only the luck of the runs plays a part."""
    between = float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else 0.0
    return judge_all({0: Effect(tuple(values), between, 0.0, LEAST_RARER)})[0]


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.02, 0.021, 0.019], "better"),
        ([-0.02, -0.021, -0.019], "worse"),
        ([0.02, -0.02, 0.01], "no clear difference"),
        ([0.05, 0.001, 0.002], "no clear difference"),
        ([0.0, 0.0, 0.0], "no clear difference"),
        ([0.02, 0.02], "too few to judge"),
        ([0.02], "too few to judge"),
    ],
)
def test_a_word_is_earned_against_the_spread(differences: list[float], word: str) -> None:
    assert over_seeds(differences).word == word


def test_without_a_share_of_the_patients_the_interval_is_students_t() -> None:
    judged = over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    assert judged.low is not None
    assert judged.mean - judged.low == pytest.approx(2.776445 * (2.5**0.5) / 5**0.5, rel=1e-5)


def test_what_could_not_be_measured_makes_no_pair() -> None:
    found = stated([0.02, None, 0.021], (0.01, 0.03), "better")
    assert found is not None
    assert (found.pairs, found.low, found.word) == (2, 0.01, "better")
    assert stated([None]) is None


def test_what_is_read_from_a_file_is_not_judged_anew() -> None:
    """Seeds that agree closely say nothing about patients: without a stated interval there is no word."""
    found = stated([0.02, 0.021, 0.019])
    assert found is not None
    assert (found.low, found.word) == (None, "too few to judge")


def effect(mean: float, variance: float = 1.0, rarer: int = 30, seeds: int = 5) -> Effect:
    return Effect((mean,) * seeds, variance / 2, variance / 2, rarer)


def test_a_word_that_is_clear_by_itself_need_not_be_clear_among_many() -> None:
    assert judge_all({"a": effect(3.0)})["a"].word == "better"
    many = judge_all({"a": effect(3.0), **{n: effect(0.0) for n in range(9)}})
    assert many["a"].word == "no clear difference"


def test_the_interval_beside_a_word_agrees_with_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        judged = judge_all({n: effect(float(rng.normal(0, 3))) for n in range(6)})
        for gain in judged.values():
            assert gain.low is not None
            assert gain.high is not None
            assert gain.word == (
                "better" if gain.low > 0 else "worse" if gain.high < 0 else "no clear difference"
            )


def test_too_few_seeds_or_patients_have_no_interval_and_do_not_count_in_the_correction() -> None:
    found = judge_all({"a": effect(3.0), "few": effect(9.0, rarer=9), "seeds": effect(9.0, seeds=2)})
    assert found["few"].word == found["seeds"].word == "too few to judge"
    assert found["few"].low is None
    assert found["a"] == judge_all({"a": effect(3.0)})["a"]


def test_an_interval_alone_makes_no_word() -> None:
    found = shown(effect(9.0))
    assert found.low is not None
    assert found.low > 0
    assert (found.word, found.judged, found.clear) == ("not judged", False, False)
