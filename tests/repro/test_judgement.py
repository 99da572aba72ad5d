"""Claims of a source are judged by what was measured, in pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from confrere.core.results import Metrics, PrivacySpent, RunResult, SiteResult
from confrere.simulation.finished_run import Run
from confrere.site.predictions import RecordPredictions, SelectedPredictions
from confrere.statistics.intervals import MeanDifference
from confrere.study import Study
from repro.experiment import _keep, _read
from repro.judgement import NOT_KEPT, beside, paired_p, rejudged
from repro.reported import Claim, Reported
from repro.table import sides

SITES = ("a", "b", "c")


@dataclass
class Ran:
    """As much of a run as is looked at."""

    study: Study
    sites: dict[str, SiteResult[float]]
    predictions: dict[str, SelectedPredictions] = field(default_factory=dict)


def ran(seed: int, values: tuple[float, ...], proxy: tuple[float, ...] = ()) -> Ran:
    sites = {}
    for at, (site, value) in enumerate(zip(SITES, values, strict=False)):
        sites[site] = SiteResult(
            site,
            metrics=Metrics({"accuracy": value}),
            proxy_metrics=Metrics({"accuracy": proxy[at]}) if proxy else None,
            privacy=PrivacySpent(2.0 + at, 1e-5, "record", False, "pld"),
        )
    return Ran(Study(name="x", seed=seed, strategy="fedavg"), sites)


GOOD = [ran(0, (0.8, 0.9, 0.7), (0.5, 0.5, 0.5)), ran(1, (0.82, 0.88, 0.75)), ran(2, (0.81, 0.9, 0.72))]
POOR = [ran(0, (0.6, 0.7, 0.6)), ran(1, (0.61, 0.66, 0.63)), ran(2, (0.6, 0.71, 0.58))]


def judged(claim: Claim, runs: Any) -> dict[str, Any]:
    (found,) = beside(Reported("x", claims=[claim]), runs)["claims"]
    return dict(found)


def test_a_clear_difference_holds_and_its_opposite_is_called_so() -> None:
    runs = {"one": GOOD, "two": POOR}
    assert judged(Claim("one", "two"), runs)["verdict"] == "holds here"
    assert judged(Claim("two", "one"), runs)["verdict"] == "the opposite holds here"
    assert judged(Claim("two", "one", about="as good"), runs)["verdict"] == "one is clearly better"


def test_what_was_not_run_is_said_to_be_so() -> None:
    assert judged(Claim("one", "three"), {"one": GOOD})["verdict"] == "not run"


def test_one_seed_settles_nothing() -> None:
    found = judged(Claim("one", "two"), {"one": GOOD[:1], "two": POOR[:1]})
    assert found["verdict"] == "too few to judge"
    assert found["p_seeds"] is None


def test_the_p_values_are_those_of_the_paired_test() -> None:
    found = judged(Claim("one", "two"), {"one": GOOD, "two": POOR})
    flat = [[r.sites[s].metrics.accuracy for r in runs for s in SITES] for runs in (GOOD, POOR)]
    means = [[sum(r.sites[s].metrics.accuracy for s in SITES) / 3 for r in runs] for runs in (GOOD, POOR)]
    assert found["p_sites"] == pytest.approx(stats.ttest_rel(*flat).pvalue)
    assert found["p_seeds"] == pytest.approx(stats.ttest_rel(*means).pvalue)


def test_the_proxy_of_an_arm_and_epsilon_are_measured_too() -> None:
    measured = beside(Reported("x"), {"one": GOOD[:1]})["measured"]
    assert measured["one/proxy"]["accuracy"]["mean"] == 0.5
    assert measured["one"]["epsilon"]["mean"] == 4.0  # of the site that spent most
    assert "epsilon" not in measured["one/proxy"]


def test_an_epsilon_is_shown_only_with_what_it_says_nothing_without() -> None:
    claim = Claim("one", "two", metric="epsilon")
    told = sides(beside(Reported("x", claims=[claim]), {"one": GOOD, "two": POOR}))
    (shown,) = [s.measured for s in told if s.arm == "one" and s.measure == "ε"]
    for words in ("δ = 1e-5", "per record", "pld", "not proven"):
        assert words in shown


def test_lower_is_better_for_a_loss_and_for_epsilon() -> None:
    dear = [
        Ran(r.study, {"a": SiteResult("a", privacy=PrivacySpent(9.0 + r.study.seed, 1e-5, "record", False))})
        for r in GOOD
    ]
    cheap = [
        Ran(r.study, {"a": SiteResult("a", privacy=PrivacySpent(1.0, 1e-5, "record", False))}) for r in GOOD
    ]
    found = judged(Claim("cheap", "dear", metric="epsilon"), {"cheap": cheap, "dear": dear})
    assert found["verdict"] == "holds here"


def test_equal_differences_need_no_test() -> None:
    assert paired_p([0.0, 0.0]) == 1.0
    assert paired_p([0.1, 0.1]) == 0.0
    assert paired_p([0.1]) is None


def predicted(seed: int, right: np.ndarray) -> Ran:
    """A run whose model is right about these patients; half of them have the condition."""
    truth = np.arange(len(right)) % 2
    said = np.where(right, truth, 1 - truth)
    outputs = np.stack([1 - said, said], axis=1).astype(np.float32) * 4
    kept = RecordPredictions(outputs, truth, np.array([f"a/{n}" for n in range(len(right))]))
    run = ran(seed, (float(right.mean()),))
    run.predictions["a"] = SelectedPredictions(parts={"test": kept})
    return run


def test_seeds_that_agree_about_few_patients_prove_nothing() -> None:
    """Three seeds that test the same 24 patients and agree exactly: over seeds alone the difference would be certain."""
    better, worse = np.ones(24, dtype=bool), np.arange(24) > 1
    runs = {
        n: [predicted(seed, right) for seed in range(3)] for n, right in (("one", better), ("two", worse))
    }
    found = judged(Claim("one", "two"), runs)
    assert (found["basis"], found["verdict"]) == ("patients and seeds", "same direction, not clear")
    assert found["p_seeds"] == 0.0
    for run in (*runs["one"], *runs["two"]):
        run.predictions.clear()
    alone = judged(Claim("one", "two"), runs)
    assert (alone["basis"], alone["verdict"]) == ("seeds", "holds here")


def test_the_claims_of_a_source_are_corrected_together() -> None:
    rng = np.random.default_rng(0)
    close = [ran(s, tuple(v - 0.02 - 0.006 * rng.normal() for v in (0.8, 0.9, 0.7))) for s in range(5)]
    good = [ran(s, (0.8, 0.9, 0.7)) for s in range(5)]
    single = Claim("one", "two")
    assert judged(single, {"one": good, "two": close})["verdict"] == "holds here"
    p = judged(single, {"one": good, "two": close})["p_seeds"]
    others = [ran(s, tuple(v + 0.02 * rng.normal() for v in (0.8, 0.9, 0.7))) for s in range(5)]
    many = [single, *[Claim("one", "three")] * int(0.05 / p + 1)]
    found = beside(Reported("x", claims=many), {"one": good, "two": close, "three": others})["claims"]
    assert found[0]["verdict"] == "same direction, not clear"


def test_kept_runs_keep_their_predictions(tmp_path: Path) -> None:
    run = predicted(0, np.arange(24) > 1)
    _keep(tmp_path / "kept.json", Run(run.study, RunResult(sites=run.sites), predictions=run.predictions))
    found = _read(tmp_path / "kept.json", run.study).predictions["a"].parts["test"]
    expected = run.predictions["a"].parts["test"]
    assert (found.outputs == expected.outputs).all()
    assert (found.marks == expected.marks).all()
    assert found.spread == expected.spread


def recorded(mean: float, std: float, seeds: int, **other: str) -> dict[str, Any]:
    """A claim as earlier versions recorded it."""
    return {
        "better": "one", "than": "two", "metric": "accuracy", "about": "more", "verdict": "holds here",
        "difference": {"mean": mean, "over_seeds": std, "seeds": seeds}, **other,
    }  # fmt: skip


def test_a_claim_of_an_earlier_version_is_judged_as_far_as_its_record_allows() -> None:
    clear, unclear, few = recorded(0.1, 0.001, 5), recorded(0.1, 0.1, 5), recorded(0.1, 0.001, 2)
    proxy = recorded(-0.1, 0.001, 5, better="one/proxy")
    found = [c["verdict"] for c in rejudged([clear, unclear, few, proxy])]
    assert found == [NOT_KEPT, "same direction, not clear", "too few to judge", "the opposite holds here"]


def test_a_claim_that_patients_could_make_clear_is_not_called_unclear() -> None:
    """With three seeds and many claims, the critical value falls as patients add to the variance."""
    claims = [recorded(0.1, 0.1 * 3**0.5 / 11.5, 3), *(recorded(0.0, 0.1, 3) for _ in range(7))]
    between = (0.1 / 11.5) ** 2
    few, many = (MeanDifference(0.1, between, added, 3, 10**6).p() for added in (0.0, 2 * between))
    assert few > 0.05 / 8 > many
    assert rejudged(claims)[0]["verdict"] == NOT_KEPT


def test_a_claim_that_was_judged_by_the_rule_is_left_as_it_is() -> None:
    known = recorded(0.1, 0.001, 5, basis="patients and seeds")
    assert rejudged([known]) == [known]
