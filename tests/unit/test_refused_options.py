"""Numbers that mean nothing are refused when a study is read, in words."""

from __future__ import annotations

from typing import Any

import pytest

from confrere.core.errors import ConfrereError
from confrere.study import parse

NAN, INF = float("nan"), float("inf")


def proxyfl(**options: Any) -> dict[str, Any]:
    return {"strategy": {"name": "proxyfl", **options}}


def adaclip(**options: Any) -> dict[str, Any]:
    return {"privacy": {"epsilon": 3.0, "clipping": {"name": "adaclip", **options}}}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (proxyfl(alpha=7.0), "alpha"),
        (proxyfl(alpha=NAN), "alpha"),
        (proxyfl(beta=-3.0), "beta"),
        ({"strategy": {"name": "fml", "beta": 2.0}}, "beta"),
        ({"strategy": {"name": "fedprox", "pull": -5.0}}, "pull"),
        ({"strategy": {"name": "fedprox", "pull": NAN}}, "pull"),
        ({"training": {"tune_priors": []}}, "tune_priors"),
        ({"training": {"tune_priors": [NAN]}}, "tune_priors"),
        ({"training": {"tune_alone": [0.0, 0.7]}}, "tune_alone"),
        ({"training": {"tune_alone": [5.0]}}, "tune_alone"),
        ({"training": {"tune_own": [5.0, 0.0]}}, "tune_own"),
        ({"training": {"tune_on_proxy": [NAN, 2.0]}}, "tune_on_proxy"),
        ({"training": {"tune_trust": 1.0}}, "tune_trust"),
        ({"training": {"tune_trust": NAN}}, "tune_trust"),
        ({"training": {"tune_lengths": []}}, "tune_lengths"),
        ({"training": {"tune_lengths": [0]}}, "tune_lengths"),
        ({"training": {"tune_lengths": [100, 10]}}, "tune_lengths"),
        ({"privacy": {"noise_multiplier": 1e300}}, "noise_multiplier"),
        (adaclip(low=-1.0), "low"),
        (adaclip(low=0.0), "low"),
        (adaclip(high=INF), "high"),
        (adaclip(low=2.0, high=1.0), "low and high"),
    ],
)
def test_a_number_that_means_nothing_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfrereError, match=said):
        parse(table)


def test_shares_at_both_ends_and_auto_are_taken() -> None:
    for alpha in (0.0, 1.0, "auto"):
        assert parse(proxyfl(alpha=alpha, beta=1.0)).strategy_name == "proxyfl"
