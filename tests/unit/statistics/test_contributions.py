"""Paired effects: what each patient contributes, and how sure a gain is when seeds share patients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from confrere.data.records import Records
from confrere.site.predictions import RecordPredictions, marks_of
from confrere.statistics.contributions import _Blocks, effects, patients_of
from confrere.statistics.verdict import judge_all


def said(logits: np.ndarray, labels: np.ndarray, first: int = 0, place: str = "a") -> RecordPredictions:
    marks = np.array([f"{place}/{first + n:05}" for n in range(len(labels))])
    return RecordPredictions(
        logits.astype(np.float32).reshape(len(labels), -1), labels.astype(np.int64), marks
    )


def site(seed: int, records: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=records)
    return logits, (rng.random(records) < 1 / (1 + np.exp(-2 * logits))).astype(int)


def test_a_large_gain_is_seen_and_a_difference_of_nothing_is_not() -> None:
    logits, labels = site(0)
    noise = np.random.default_rng(1).normal(size=(3, 300))
    tiny = 1e-3 * np.random.default_rng(2).normal(size=(3, 300))
    ways = {
        "local": [{"a": said(logits + 2 * n, labels)} for n in noise],
        "good": [{"a": said(2 * logits, labels)} for n in noise],
        "same": [{"a": said(logits + 2 * n + t, labels)} for n, t in zip(noise, tiny, strict=True)],
    }
    found = effects(ways, "local")
    assert judge_all({0: found["good"].groups["all"]["log_loss"]})[0].word == "better"
    assert judge_all({0: found["good"].sites["a"]["auc"]})[0].word == "better"
    assert judge_all({0: found["same"].groups["all"]["log_loss"]})[0].word == "no clear difference"


@pytest.mark.parametrize("seeds", [4, 5])
def test_a_share_of_the_gap_is_stated_from_five_seeds_on_and_contains_what_was_measured(seeds: int) -> None:
    logits, labels = site(0)
    noise = np.random.default_rng(1).normal(size=(seeds, 300))
    ways = {
        name: [{"a": said(2 * logits + size * n, labels)} for n in noise]
        for name, size in (("local", 4), ("good", 1.5), ("pooled", 0.1))
    }
    found = effects(ways, "local", whole="pooled")
    assert not found["pooled"].shares
    if seeds < 5:
        assert not found["good"].shares
        return
    gained, gap = (found[name].groups["all"]["log_loss"].mean for name in ("good", "pooled"))
    low, high = found["good"].shares["log_loss"]
    assert low < gained / gap < high


def test_the_contributions_to_an_auc_are_its_placement_values() -> None:
    """DeLong et al. (1988): a patient's place among the patients of the other class."""
    logits, labels = site(3, 80)
    run = said(logits, labels)
    value, found = _Blocks.of([run]).contributions(0, run)["auc"]
    order = np.empty(80)
    blocks = np.random.default_rng(0).permutation(80)
    order = found[blocks]
    ill, well = logits[labels == 1], logits[labels == 0]
    expected = np.empty(80)
    expected[labels == 1] = ((ill[:, None] > well).mean(axis=1) - value) / len(ill)
    expected[labels == 0] = ((ill > well[:, None]).mean(axis=1) - value) / len(well)
    np.testing.assert_allclose(order, expected * np.sqrt(80 / 79), atol=2e-4)


def test_the_contributions_to_a_mean_are_the_distances_from_it() -> None:
    logits, labels = site(4, 50)
    run = said(logits, labels)
    value, found = _Blocks.of([run]).contributions(0, run)["log_loss"]
    losses = np.log1p(np.exp(np.where(labels == 1, -logits, logits)))
    assert value == pytest.approx(losses.mean(), abs=1e-6)
    assert np.square(found).sum() == pytest.approx(losses.var(ddof=1) / 50, rel=0.01)


def test_the_same_patients_in_five_seeds_are_no_more_patients() -> None:
    """Treating the patients of every seed as new ones would be surer than the records allow."""
    logits, labels = site(0)
    noisy = logits + np.random.default_rng(1).normal(size=300)

    def width(first: list[int]) -> float:
        ways = {
            "local": [{"a": said(noisy, labels, n)} for n in first],
            "x": [{"a": said(logits, labels, n)} for n in first],
        }
        low, high = effects(ways, "local")["x"].sites["a"]["log_loss"].interval() or (0.0, 0.0)
        return high - low

    same, other = width([0] * 5), width([0, 1000, 2000, 3000, 4000])
    assert other < 0.6 * same


def test_a_common_test_set_is_counted_once_in_the_mean_over_sites() -> None:
    logits, labels = site(0)
    noise = np.random.default_rng(1).normal(size=(4, 300))

    def ways(places: tuple[str, str]) -> dict[str, list[dict[str, RecordPredictions]]]:
        return {
            "local": [
                {s: said(logits + n, labels, 0, p) for s, p in zip("ab", places, strict=True)} for n in noise
            ],
            "x": [{s: said(logits, labels, 0, p) for s, p in zip("ab", places, strict=True)} for n in noise],
        }

    common = effects(ways(("", "")), "local")["x"].groups["all"]["log_loss"]
    own = effects(ways(("a", "b")), "local")["x"].groups["all"]["log_loss"]
    assert common.rarer * 2 == own.rarer
    assert common.shared + common.between > own.shared + own.between


def test_other_records_make_no_pairs() -> None:
    logits, labels = site(0)
    ways = {"local": [{"a": said(logits, labels)}], "x": [{"a": said(logits, labels, first=7)}]}
    assert effects(ways, "local") == {}


def test_patients_are_counted_once_however_many_seeds_test_them() -> None:
    logits, labels = site(0, 40)
    found = patients_of([{"a": said(logits, labels)}, {"a": said(logits, labels)}])["a"]
    assert (found.patients, found.rarer) == (40, int(min(labels.sum(), 40 - labels.sum())))
    numbers = RecordPredictions(
        np.zeros((5, 1), np.float32), np.zeros(5, np.float32), np.array(list("abcde"))
    )
    assert patients_of([{"a": numbers}])["a"].rarer == 5


def test_many_patients_are_weighted_in_blocks_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = site(0, 2000)
    noise = np.random.default_rng(1).normal(size=(3, 2000))
    ways = {
        "local": [{"a": said(logits + n, labels)} for n in noise],
        "x": [{"a": said(logits, labels)} for n in noise],
    }
    blocks = effects(ways, "local")["x"].sites["a"]["auc"]
    monkeypatch.setattr("confrere.statistics.contributions.BLOCKS", 2000)
    single = effects(ways, "local")["x"].sites["a"]["auc"]
    assert blocks.mean == single.mean
    assert blocks.shared == pytest.approx(single.shared, rel=0.3)


def test_the_records_of_a_patient_share_one_name() -> None:
    records = Records(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), torch.tensor([5, 5, 7, 7]))
    assert marks_of(records, "a").tolist() == ["a/5", "a/5", "a/7", "a/7"]
    alone = marks_of(Records(torch.eye(3), torch.tensor([0, 1, 0])), "a")
    assert len(set(alone)) == 3


def unequal(sizes: list[int]) -> dict[str, list[dict[str, RecordPredictions]]]:
    """Two ways over five seeds on the same patients; half of those of each site are ill."""
    rng = np.random.default_rng(6)
    ways: dict[str, list[dict[str, RecordPredictions]]] = {"local": [], "other": []}
    for runs in ways.values():
        for _ in range(5):
            runs.append(
                {
                    f"s{n}": said(rng.normal(size=k), np.arange(k) % 2, place=str(n))
                    for n, k in enumerate(sizes)
                }
            )
    return ways


@pytest.mark.parametrize(
    ("sizes", "degrees"),
    [([40], 19.0), ([40, 40, 40], 57.0), ([6] * 24, 48.0), ([400, 4], 1.02)],
)
def test_the_degrees_of_a_mean_add_up_over_equal_sites_and_are_those_of_a_tiny_site(
    sizes: list[int], degrees: float
) -> None:
    found = effects(unequal(sizes), "local", only="log_loss")["other"].groups["all"]["log_loss"]
    assert found.degrees == pytest.approx(degrees, rel=1e-3)
    assert found.enough


def test_a_mean_that_includes_a_site_with_one_test_patient_is_not_judged() -> None:
    """The variance of a single patient is unknown. The site has no AUC, so the mean AUC does not include it."""
    ways = unequal([60, 60, 1])
    found = effects(ways, "local", {"large": ["s0", "s1"]}, whole="other")["other"]
    assert found.sites["s0"]["log_loss"].enough
    assert found.groups["large"]["log_loss"].enough
    assert found.groups["all"]["log_loss"].interval() is None
    assert found.groups["all"]["auc"].degrees == pytest.approx(58.0)
    more = {**ways, "third": unequal([60, 60, 1])["local"]}
    assert "log_loss" not in effects(more, "local", whole="third")["other"].shares
