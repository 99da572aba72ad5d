"""Options of strategies that make no sense are refused when the study is read."""

from __future__ import annotations

from typing import Any

import pytest

from confrere.core.errors import StudyError
from confrere.study import Study


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "proxyfl", "alpha": 7.0},
        {"name": "proxyfl", "beta": -0.1},
        {"name": "fml", "alpha": -1.0},
        {"name": "fedprox", "pull": -2.0},
    ],
    ids=str,
)
def test_a_share_outside_of_nought_to_one_is_refused(strategy: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="from 0 to 1|at least 0"):
        Study(strategy=strategy)


def test_auto_and_the_ends_are_allowed() -> None:
    Study(strategy={"name": "proxyfl", "alpha": "auto", "beta": 1.0})
    assert Study(strategy={"name": "fml", "alpha": 0.0}).strategy_name == "fml"
