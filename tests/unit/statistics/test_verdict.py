"""Better, worse, or no clear difference: one rule, against the spread of pairs."""

from __future__ import annotations

import pytest

from confrere.statistics.verdict import judge


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.02, 0.021, 0.019], "better"),
        ([-0.02, -0.021, -0.019], "worse"),
        ([0.02, -0.02, 0.01], "no clear difference"),
        ([0.05, 0.001, 0.002], "no clear difference"),
        ([0.0, 0.0, 0.0], "no clear difference"),
        ([0.02], "one seed only"),
    ],
)
def test_a_word_is_earned_against_the_spread(differences: list[float], word: str) -> None:
    judged = judge(differences)
    assert judged is not None
    assert judged.word == word


def test_the_interval_is_students_t() -> None:
    judged = judge([1.0, 2.0, 3.0, 4.0, 5.0])
    assert judged is not None
    assert judged.low is not None
    assert judged.mean - judged.low == pytest.approx(2.776445 * (2.5**0.5) / 5**0.5, rel=1e-5)


def test_what_could_not_be_measured_makes_no_pair() -> None:
    judged = judge([0.02, None, 0.021])
    assert judged is not None
    assert judged.pairs == 2
    assert judge([None]) is None
