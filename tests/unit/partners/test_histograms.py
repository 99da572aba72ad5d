"""Histograms in public bins: what one record moves, what the divergences are, and that chance is taken out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from confrere.data.records import Records
from confrere.partners.histograms import (
    COLUMNS,
    Histogram,
    columns_of,
    histogram,
    histogram_rankings,
    histogram_sum,
    jensen_shannon,
    symmetric_renyi,
)
from confrere.partners.ranking import Criteria
from tests.unit.partners.test_methods import records


def counted(found: Records, noise: float = 0.0, seed: int = 0) -> Histogram:
    total, rows = histogram_sum(found, 2, 0)
    total = total + noise * torch.randn(len(total), generator=torch.Generator().manual_seed(seed))
    return histogram(total, rows, 4, noise)


@pytest.mark.parametrize(
    "targets",
    [torch.arange(30) % 3, torch.linspace(-2, 2, 30), (torch.rand(30, 2) > 0.5).float(), torch.ones(30, 9)],
    ids=["classes", "values", "two labels", "nine labels"],
)
@pytest.mark.parametrize("width", [4, COLUMNS + 1], ids=["as they are", "mixed"])
def test_one_record_moves_the_sum_by_one(targets: torch.Tensor, width: int) -> None:
    whole = Records(3 * torch.randn(30, width), targets)
    total, rows = histogram_sum(whole, 3, 0)
    assert rows == 30
    assert len(total) % columns_of((width,)) == 0
    for left_out in range(30):
        others = whole.select(torch.tensor([k for k in range(30) if k != left_out]))
        assert float((total - histogram_sum(others, 3, 0)[0]).norm()) == pytest.approx(1.0)


def test_one_patient_moves_the_sum_by_one_at_most_however_many_records_it_has() -> None:
    whole = Records(torch.randn(30, 4), torch.arange(30) % 2, torch.arange(30) // 10)
    total, rows = histogram_sum(whole, 2, 0)
    assert rows == 3
    for left_out in range(3):
        others = whole.select((torch.arange(30) // 10 != left_out).nonzero()[:, 0])
        assert float((total - histogram_sum(others, 2, 0)[0]).norm()) <= 1 + 1e-12


def test_how_many_patients_there_are_is_read_off_the_sum_where_only_records_are_declared() -> None:
    found = Records(torch.randn(400, 4), torch.arange(400) % 2, torch.arange(400) // 20)
    total, rows = histogram_sum(found, 2, 0)
    assert histogram(total, 0.0, 4).total == pytest.approx(rows)
    noisy = histogram(
        total + 3 * torch.randn(len(total), generator=torch.Generator().manual_seed(0)), 0.0, 4, 3.0
    )
    assert (
        noisy.effective_records < 20
    )  # twenty patients under such noise tell nothing, whatever number of records they have


def test_the_divergences_are_what_the_textbook_says() -> None:
    one, two = np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]])
    middle = (one + two) / 2
    by_hand = 0.5 * sum(float((p * np.log2(p / middle)).sum()) for p in (one, two))
    assert jensen_shannon(one, two) == pytest.approx(by_hand)
    affinity = float(np.sqrt(one * two).sum())
    assert symmetric_renyi(one, two) == pytest.approx(-2 * math.log(affinity))
    assert symmetric_renyi(one, two, 2.0) == pytest.approx(
        (math.log(float((one**2 / two).sum())) + math.log(float((two**2 / one).sum()))) / 2
    )
    for measure in (jensen_shannon, symmetric_renyi):
        assert measure(one, one) == pytest.approx(0.0)
        assert measure(one, two) == pytest.approx(measure(two, one))
    assert jensen_shannon(np.array([[1 - 1e-12, 1e-12]]), np.array([[1e-12, 1 - 1e-12]])) == pytest.approx(1)


def test_other_outcomes_of_like_patients_are_noticed_and_named() -> None:
    own, there = counted(records(400, 30)), {"like": records(300, 31), "unlike": records(300, 32, -1.0)}
    names = ["age", "b", "c", "d"]
    for found in histogram_rankings(
        own, {n: counted(r) for n, r in there.items()}, names, 0, Criteria("user")
    ):
        assert found.chosen == ["like"], found.method
        assert found.scores[-1].peer == "unlike"
        assert "most in age" in found.scores[-1].sentence  # the column that the rule leans on most
        assert found.simulation_only


def test_an_outcome_that_is_commoner_elsewhere_is_said_to_be() -> None:
    inputs = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
    mostly = Records(inputs, (torch.arange(400) % 20 == 0).long())
    found = histogram_rankings(
        counted(records(400, 30)), {"rare": counted(mostly)}, ["a", "b", "c", "d"], 0, Criteria("user")
    )  # fmt: skip
    assert all("how often each outcome occurs" in r.scores[0].sentence for r in found)


@pytest.mark.parametrize("noise", [0.0, 8.0])
def test_what_noise_and_luck_do_to_equal_sites_is_taken_out(noise: float) -> None:
    values = []
    for seed in range(25):
        own, there = counted(records(200, 100 + seed)), counted(records(300, 200 + seed), noise, seed)
        found = histogram_rankings(own, {"like": there}, [], seed, Criteria("user", released=True))
        values.append([(r.scores[0].value, r.scores[0].error) for r in found])
    for method in range(2):
        value, error = np.array(values)[:, method].T
        assert abs(value.mean()) < 4 * value.std() / 5 + 0.002
        assert value.std() == pytest.approx(error.mean(), rel=0.6)


def test_too_much_noise_chooses_nobody_and_says_why() -> None:
    own, there = counted(records(200, 30)), {"like": counted(records(100, 31), 8.0)}
    for found in histogram_rankings(own, there, [], 0, Criteria("user", released=True)):
        assert found.chosen == []
        assert found.scores[0].sentence.startswith("Noise hides")


def test_noise_is_worth_so_many_records_less() -> None:
    plain, noisy = counted(records(300, 31)), counted(records(300, 31), 8.0)
    assert plain.effective_records == pytest.approx(300)
    off = [
        ((h.counts - plain.counts) / 300) ** 2
        for h in (counted(records(300, 31), 8.0, s) for s in range(200))
    ]
    assert noisy.effective_records == pytest.approx(
        1 / (1 / 300 + np.mean(off) * plain.counts.shape[-1]), rel=0.05
    )
