"""Units that are the same are found, whatever their order, and units that are like no others are kept."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.exchange.matching import Prior, _assigned, match


def units(count: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shuffled(rows: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order], order


def test_the_same_units_in_another_order_are_recognised() -> None:
    true = units(7, 12)
    seen = [shuffled(true + 0.01 * units(7, 12, 10 + k), k) for k in range(4)]
    found = match([rows for rows, _ in seen], [1.0] * 4, 14, Prior(spread=0.1))
    assert len(found.units) == 7
    homes = [
        dict(zip(order.tolist(), places.tolist(), strict=True))
        for (_, order), places in zip(seen, found.places, strict=True)
    ]
    assert all(home == homes[0] for home in homes)
    for unit, place in homes[0].items():
        torch.testing.assert_close(found.units[place], true[unit], atol=0.05, rtol=0)


def test_units_that_are_like_no_others_become_new_ones_up_to_the_limit() -> None:
    ours, theirs = units(4, 20, 1), units(4, 20, 2) * 3
    apart = match([ours, theirs], [1.0, 1.0], 8, Prior(spread=0.1))
    assert len(apart.units) == 8
    for limit in (4, 5, 6):
        assert len(match([ours, theirs], [1.0, 1.0], limit, Prior(spread=0.1)).units) == limit
    assert len(match([ours, theirs], [1.0, 1.0], 8, Prior(spread=100.0)).units) == 4


def test_two_units_of_one_site_never_become_one() -> None:
    twins = units(1, 6).repeat(3, 1)
    found = match([twins, twins], [1.0, 1.0], 6, Prior())
    assert all(len(torch.unique(p)) == 3 for p in found.places)


def test_a_common_unit_is_the_posterior_mean_weighted_by_the_sites() -> None:
    a, b = units(1, 3, 1), units(1, 3, 2)
    prior = Prior(spread=2.0, scale=3.0)
    found = match([a, b], [0.5, 1.5], 1, prior)
    p = [0.5 / 4, 1.5 / 4]
    torch.testing.assert_close(found.units, (p[0] * a + p[1] * b) / (sum(p) + 1 / 9))


def test_a_site_is_assigned_by_the_published_gain() -> None:
    """The best of all assignments, by the formula written out, for one site against two others."""
    prior, sites = Prior(spread=0.7, scale=2.0, mass=1.5), 3
    rows = [units(2, 4, 1), units(2, 4, 2), units(2, 4, 3)]
    places = [torch.tensor([0, 1]), torch.tensor([2, 0])]
    p, floor, most = 1 / prior.spread**2, 1 / prior.scale**2, 5
    members = {0: [rows[0][0], rows[1][1]], 1: [rows[0][1]], 2: [rows[1][0]]}

    def gain(v: Tensor, column: int) -> float:
        if column < 3:
            total, q = sum(p * m for m in members[column]), floor + p * len(members[column])
            odds = len(members[column]) / (sites - len(members[column]))
            fit = (total + p * v).square().sum() / (q + p) - torch.as_tensor(total).square().sum() / q
            return float(fit) + 2 * math.log(odds)
        return (
            float((p * v).square().sum() / (floor + p))
            + 2 * math.log(prior.mass / sites)
            - 2 * math.log(column - 2)
        )

    best = max(
        itertools.permutations(range(most), 2),
        key=lambda columns: sum(gain(rows[2][k], c) for k, c in enumerate(columns)),
    )
    found = _assigned(2, rows, [*places, torch.zeros(0, dtype=torch.long)], [p] * sites, most, prior)
    assert tuple(found.tolist()) == best


def test_one_site_alone_keeps_its_units() -> None:
    alone = units(3, 5)
    found = match([alone], [1.0], 5, Prior(scale=1e6))
    torch.testing.assert_close(found.units, alone)
    assert found.places[0].tolist() == [0, 1, 2]


def test_a_prior_that_means_nothing_is_refused() -> None:
    for bad in ({"spread": 0.0}, {"scale": -1.0}, {"mass": math.inf}, {"passes": -1}):
        with pytest.raises(StudyError, match=next(iter(bad))):
            Prior(**bad)  # type: ignore[arg-type]
