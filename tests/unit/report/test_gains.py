"""The gains of a comparison: paired, and as the comparison states them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from federation import stated

from confrere.core.results import ComparisonResult, Gap, MeanGain, Measured, Metrics
from confrere.report import words
from confrere.report.gains import gap_closed, mean_gain, not_worth_it, site_gain
from confrere.statistics.verdict import EARLIER


def comparison(metric: str = "auc", **strategies: dict[str, list[float | None]]) -> ComparisonResult:
    """{strategy: {site: values per seed}} as a comparison."""

    def row(sites: dict[str, list[float | None]]) -> dict[str, Any]:
        measured = {s: {metric: {"mean": 0.5, "std": 0.1, "values": v}} for s, v in sites.items()}
        gained = {s: {metric: stated_gain(v, strategies["local"][s], metric)} for s, v in sites.items()}
        found = {s: {"records": 10, "metrics": m, "gain": gained[s]} for s, m in measured.items()}
        pairs = [d["values"] for s in sites if (d := gained[s][metric]) and len(d["values"]) == len(sites[s])]
        means = [sum(column) / len(column) for column in zip(*pairs, strict=False)]
        return {"sites": found, "mean": {}, "gain_over_alone": {metric: stated(means)} if means else {}}

    return ComparisonResult.from_json(
        {
            "strategies": {n: row(s) for n, s in strategies.items()},
            "seeds": [0, 1, 2],
            "primary": metric,
        }
    )


def stated_gain(
    together: list[float | None], alone: list[float | None], metric: str
) -> dict[str, Any] | None:
    """The gain of a site as a comparison states it, over the seeds that have both."""
    sign = -1 if metric == "log_loss" else 1
    both = [sign * (t - a) for t, a in zip(together, alone, strict=True) if t is not None and a is not None]
    return stated(both) if both else None


def test_pairs_are_judged_not_means() -> None:
    """Seeds differ far more than the gain; in pairs it is clear all the same."""
    c = comparison(local={"A": [0.7, 0.8, 0.9]}, proxyfl={"A": [0.71, 0.811, 0.909]})
    judged = site_gain(c, "A", "auc")
    assert judged is not None
    assert judged.word == "better"


def test_a_lower_loss_is_a_gain() -> None:
    c = comparison("log_loss", local={"A": [0.5, 0.5, 0.6]}, proxyfl={"A": [0.4, 0.41, 0.5]})
    judged = site_gain(c, "A", "log_loss")
    assert judged is not None
    assert judged.mean == pytest.approx(0.29 / 3)
    assert judged.word == "better"


def test_a_seed_that_could_not_be_measured_makes_no_pair() -> None:
    c = comparison(local={"A": [0.7, None, 0.9]}, proxyfl={"A": [0.8, 0.9, 1.0]})
    judged = site_gain(c, "A", "auc")
    assert judged is not None
    assert judged.pairs == 2


def test_gains_that_the_comparison_states_are_taken_as_they_are() -> None:
    c = ComparisonResult.from_json(
        {
            "strategies": {
                "local": {"sites": {"A": {"metrics": {"auc": {"mean": 0.5, "values": [0.5, 0.5]}}}}},
                "proxyfl": {
                    "sites": {
                        "A": {
                            "metrics": {"auc": {"mean": 0.6, "values": [0.6]}},  # one seed had no AUC
                            "gain": {"auc": {"mean": 0.1, "std": None, "values": [0.1]}},
                        }
                    }
                },
            },
            "seeds": [0, 1],
            "primary": "auc",
        }
    )
    judged = site_gain(c, "A", "auc")
    assert judged is not None
    assert (judged.mean, judged.word) == (0.1, "too few to judge")


def test_every_site_counts_the_same_in_the_mean() -> None:
    c = comparison(
        local={"A": [0.5, 0.5, 0.5], "B": [0.5, 0.5, 0.5]},
        proxyfl={"A": [0.7, 0.7, 0.7], "B": [0.5, 0.5, 0.5]},
    )
    judged = mean_gain(c, "auc")
    assert judged is not None
    assert judged.mean == pytest.approx(0.1)


def test_the_share_of_the_gap_is_what_was_gained_over_what_pooling_gains() -> None:
    c = comparison(
        local={"A": [0.5, 0.5, 0.5]}, proxyfl={"A": [0.56, 0.55, 0.54]}, pooled={"A": [0.6, 0.6, 0.6]}
    )
    clear = {"auc": MeanGain(0.1, 0.01, (0.1, 0.1, 0.1), (0.05, 0.15), "better")}
    pooled = replace(c.strategies["pooled"], gains=Metrics(clear))
    c = replace(c, strategies={**c.strategies, "pooled": pooled})
    known = Gap(0.5, 0.6, clear["auc"], {"proxyfl": 0.5}, {"proxyfl": (0.31, 0.74)})
    closed = gap_closed(replace(c, gap={"auc": known}), "auc")
    assert closed is not None
    assert words.share_closed(closed) == "50 % (95 % interval 31 to 74 %)"
    unknown = replace(known, closed={"proxyfl": None}, intervals={})
    closed = gap_closed(replace(c, gap={"auc": unknown}), "auc")
    assert closed is not None
    assert words.share_closed(closed) == "too uncertain to state"


def test_without_a_clear_gap_no_share_is_claimed() -> None:
    c = comparison(
        local={"A": [0.5, 0.5, 0.5]}, proxyfl={"A": [0.6, 0.6, 0.6]}, pooled={"A": [0.6, 0.4, 0.51]}
    )
    closed = gap_closed(c, "auc")
    assert closed is not None
    assert closed.share is None


def test_sites_that_were_never_measured_in_the_same_seed_claim_no_share() -> None:
    """The comparison states the mean over sites, but no seed has all of them."""
    sites: dict[str, list[float | None]] = {"A": [0.5, None, None], "B": [None, 0.5, 0.6]}
    found = comparison(local=sites, proxyfl=sites, pooled=sites)
    clear = {"auc": Measured(0.1, 0.01, (0.1, 0.1, 0.1), (0.05, 0.15), "better")}
    stated = {n: replace(s, gains=clear) for n, s in found.strategies.items()}
    closed = gap_closed(replace(found, strategies=stated), "auc")
    assert closed is not None
    assert closed.share is None


def test_without_pooled_there_is_no_gap() -> None:
    assert gap_closed(comparison(local={"A": [0.5]}, proxyfl={"A": [0.6]}), "auc") is None


def with_interval(low: float, high: float, privacy: bool = True, metric: str = "auc") -> ComparisonResult:
    """A gain of 0.01 in three seeds, with the interval and the word that the comparison states."""
    word = "better" if low > 0 else "worse" if high < 0 else "no clear difference"
    values = [0.009, 0.01, 0.011]
    gained = {metric: {"mean": 0.01, "std": 0.001, "values": values, "interval": [low, high], "word": word}}
    alone = {metric: {"mean": 0.7, "values": [0.7, 0.7, 0.7]}}
    spent = {"epsilon": 3.0, "delta": 1e-5, "proven": True, "unit": "record"} if privacy else None
    return ComparisonResult.from_json(
        {
            "strategies": {
                "local": {"sites": {"A": {"metrics": alone}}, "mean": alone},
                "proxyfl": {
                    "sites": {"A": {"metrics": alone, "gain": gained}},
                    "mean": alone,
                    "gain_over_alone": gained,
                    "privacy": spent,
                },
            },
            "seeds": [0, 1, 2],
            "primary": metric,
        }
    )


def test_what_the_records_say_is_believed_before_what_the_seeds_say() -> None:
    """Three seeds agree closely, but the test records are few: the word follows the records."""
    judged = site_gain(with_interval(-0.02, 0.04), "A", "auc")
    assert judged is not None
    assert (judged.low, judged.high, judged.word) == (-0.02, 0.04, "no clear difference")
    overall = mean_gain(with_interval(0.002, 0.02), "auc")
    assert overall is not None
    assert overall.word == "better"


def test_privacy_that_bought_nothing_is_called_not_worth_it() -> None:
    assert not_worth_it(with_interval(-0.02, 0.0004)) == words.NOT_WORTH_IT
    assert not_worth_it(with_interval(-0.02, -0.01)) == words.LOST
    assert not not_worth_it(with_interval(0.002, 0.02))
    assert not not_worth_it(with_interval(-0.02, 0.04)), "the interval is merely wide"
    assert not not_worth_it(with_interval(-0.02, 0.0004, privacy=False)), "nothing was spent"


def test_a_file_of_an_earlier_version_is_not_judged() -> None:
    """Its interval was found by another rule: neither the interval nor a word is shown."""
    found = with_interval(0.002, 0.02)
    earlier = ComparisonResult.from_json({k: v for k, v in found.as_json().items() if k != "primary"})
    assert not earlier.judged
    for gain in (site_gain(earlier, "A", "auc"), mean_gain(earlier, "auc")):
        assert gain is not None
        assert (gain.low, gain.word) == (None, EARLIER)
        assert words.gained("auc", gain) == "+0.010"
    assert not not_worth_it(replace(with_interval(-0.02, -0.01), judged=False))
