"""The noise is what the accountant was told: its variance, its shape, its independence.

Each check is strict enough to notice a small fault; that it does is tested with noise that has the fault.
A check fails by chance about once in 10⁷ runs for the secure source, never for the seeded one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from confrere.core.sum_terms import SumTerms
from confrere.privacy.masked_release import MARGIN, MaskedRelease
from confrere.privacy.noise import Randomness, Secure, Seeded

SIZE = 400_000
RARE = 1e-7
Draw = Callable[[Randomness], Tensor]

SOURCES = [lambda: Seeded(11), Secure]
DRAWS: dict[str, Draw] = {
    "normal": lambda r: r.normal(SIZE, 1.4),
    "perturb": lambda r: r.perturb(torch.zeros(SIZE), 1.4, 1.0),
}


def variance_is(noise: Tensor, std: float) -> bool:
    """A two-sided chi-square test of the variance."""
    value = float(noise.double().square().sum()) / std**2
    return bool(min(stats.chi2.cdf(value, noise.numel()), stats.chi2.sf(value, noise.numel())) > RARE / 2)


def is_normal(noise: Tensor, std: float) -> bool:
    """Kolmogorov and Smirnov's test of the shape, and a count of the tails."""
    scaled = noise.double() / std
    shape = stats.kstest(scaled.numpy(), "norm").pvalue > RARE
    beyond = int((scaled.abs() > 3.5).sum())
    tails = stats.binomtest(beyond, scaled.numel(), 2 * stats.norm.sf(3.5)).pvalue > RARE
    return bool(shape and tails)


def are_independent(one: Tensor, other: Tensor) -> bool:
    """No correlation of the numbers, nor of their squares."""
    for a, b in ((one, other), (one.square(), other.square())):
        a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
        correlation = float((a * b).sum() / (a.norm() * b.norm()))
        if abs(correlation) * math.sqrt(a.numel()) > stats.norm.isf(RARE / 2):
            return False
    return True


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure"])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_noise_has_its_variance_and_its_shape(source: Callable[[], Randomness], draw: Draw) -> None:
    noise = draw(source())
    assert variance_is(noise, 1.4)
    assert is_normal(noise, 1.4)


@pytest.mark.parametrize("wrong", [0.98, 1.02])
def test_a_wrong_variance_is_noticed(wrong: float) -> None:
    assert not variance_is(Seeded(1).normal(SIZE, 1.4 * wrong), 1.4)


def test_a_wrong_shape_is_noticed() -> None:
    uniform = (Seeded(1).uniform(SIZE) - 0.5) * math.sqrt(12)
    assert not is_normal(uniform, 1.0)
    heavy = Seeded(1).normal(SIZE, 1.0)
    heavy[:200] *= 5  # one number in 2000
    assert not is_normal(heavy, 1.0)
    cut = Seeded(1).normal(SIZE, 1.0).clamp(-3.4, 3.4)
    assert not is_normal(cut, 1.0)


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "secure"])
def test_streams_neighbours_and_pairs_are_independent(source: Callable[[], Randomness]) -> None:
    randomness = source()
    one, other = randomness.normal(SIZE, 1.0), randomness.normal(SIZE, 1.0)
    assert are_independent(one, other)
    assert are_independent(one[:-1], one[1:])
    half = 1 << 14  # the two halves of a block of pairs share their radius and angle
    assert are_independent(one[:half], one[half : 2 * half])


def test_different_seeds_are_independent_and_equal_ones_are_noticed() -> None:
    one = Seeded(1).normal(SIZE, 1.0)
    assert are_independent(one, Seeded(2).normal(SIZE, 1.0))
    assert not are_independent(one, one + Seeded(3).normal(SIZE, 30.0))
    assert not are_independent(one, -one)


def test_the_exact_rounding_follows_the_rounded_gaussian_cell_by_cell() -> None:
    """Coarse cells, so that each probability is known: a chi-square test over all of them."""
    scale = 2.5
    drawn = Secure().gridded(SIZE, scale)
    cells = range(-7, 8)
    expected = [stats.norm.cdf((k + 0.5) / scale) - stats.norm.cdf((k - 0.5) / scale) for k in cells]
    counts = [int((drawn == k).sum()) for k in cells]
    rest = 1 - sum(expected)
    observed = [*counts, SIZE - sum(counts)]
    assert stats.chisquare(observed, [SIZE * p for p in [*expected, rest]]).pvalue > RARE
    shifted = [int((drawn == k + 1).sum()) for k in cells]
    observed = [*shifted, SIZE - sum(shifted)]
    assert stats.chisquare(observed, [SIZE * p for p in [*expected, rest]]).pvalue < RARE


def opened(h: int, in_it: int, std: float = 1.4) -> Tensor:
    """The noise of a masked sum in which this number of honest members are, of whom `h` are certain."""
    terms = SumTerms(members=h + 1, colluding=1, dropouts=0, noise_std=std, clip=1.0, size=SIZE)
    nothing = torch.zeros(SIZE, dtype=torch.float64)
    shares = [
        MaskedRelease("proxy", terms, 10, Seeded(k), simulated=True).release(nothing) for k in range(in_it)
    ]
    return torch.from_numpy(np.sum(shares, axis=0) * terms.grid)


def test_the_shares_of_honest_members_add_up_to_the_noise_of_one() -> None:
    noise = opened(4, 4)
    assert variance_is(noise, 1.4 * MARGIN)
    assert is_normal(noise, 1.4 * MARGIN)


def test_a_member_that_is_missing_or_too_many_is_noticed_in_the_noise_of_a_sum() -> None:
    assert not variance_is(opened(4, 3), 1.4)
    assert not variance_is(opened(4, 5), 1.4)
    assert variance_is(opened(4, 5), 1.4 * MARGIN * math.sqrt(5 / 4))


def test_a_share_that_counts_less_adds_as_much_noise() -> None:
    """The noise belongs to the sum: a small weight lowers what is charged, not what is added."""
    terms = SumTerms(members=3, colluding=1, dropouts=0, noise_std=1.4, clip=1.0, size=SIZE)
    nothing = torch.zeros(SIZE, dtype=torch.float64)
    shares = [
        MaskedRelease("model", terms, 10, Seeded(k), weight, simulated=True).release(nothing)
        for k, weight in enumerate((1.0, 0.01))
    ]
    assert variance_is(torch.from_numpy(np.sum(shares, axis=0) * terms.grid), 1.4 * MARGIN)
