"""Discrete Gaussian noise has exactly its distribution, in double precision and where that does not decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from confrere.core.errors import PrivacyError
from confrere.privacy import discrete_gaussian as sampler
from confrere.privacy.discrete_gaussian import LazyUniform, discrete_gaussian
from confrere.privacy.noise import Secure, Seeded

RARE = 1e-7
SIZE = 200_000


def has_the_distribution(drawn: NDArray[np.int64], scale: float) -> bool:
    """A chi-square test of all values that are expected at least ten times."""
    reach = math.ceil(12 * scale) + 2
    places = np.arange(-reach, reach + 1)
    chances = np.exp(-(places**2) / (2 * scale**2))
    expected = len(drawn) * chances / chances.sum()
    counts = np.array([(drawn == place).sum() for place in places], dtype=np.float64)
    common = expected >= 10
    rest = [counts[~common].sum() + (np.abs(drawn) > reach).sum()], [expected[~common].sum()]
    found = np.concatenate((counts[common], rest[0])), np.concatenate((expected[common], rest[1]))
    statistic = float(((found[0] - found[1]) ** 2 / np.maximum(found[1], 1.0)).sum())
    return bool(stats.chi2.sf(statistic, len(found[0]) - 1) > RARE)


@pytest.mark.parametrize("source", [lambda: Seeded(5), Secure], ids=["seeded", "secure"])
@pytest.mark.parametrize("scale", [0.3, 0.8, 1.0, 1.7, 5.0, 23.0])
def test_the_noise_is_a_discrete_gaussian(source: Callable[[], Seeded | Secure], scale: float) -> None:
    assert has_the_distribution(discrete_gaussian(SIZE, scale, source().words), scale)


def test_rounded_noise_is_noticed() -> None:
    rounded = np.rint(np.random.default_rng(0).normal(size=SIZE) * 0.8).astype(np.int64)
    assert not has_the_distribution(rounded, 0.8)


@pytest.mark.parametrize("wrong", [0.98, 1.02])
def test_a_wrong_variance_is_noticed(wrong: float) -> None:
    assert not has_the_distribution(discrete_gaussian(SIZE, 5 * wrong, Seeded(5).words), 5)


@pytest.mark.parametrize("scale", [2.0**12, 3.3e5, 2.0**39])
def test_wide_noise_has_its_variance_and_shape(scale: float) -> None:
    drawn = discrete_gaussian(SIZE, scale, Seeded(7).words) / scale
    value = float((drawn**2).sum())
    assert min(stats.chi2.cdf(value, SIZE), stats.chi2.sf(value, SIZE)) > RARE / 2
    assert stats.kstest(drawn, "norm").pvalue > RARE


def test_decisions_that_are_left_open_are_taken_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "ERROR", 1.0)  # all of them are
    assert has_the_distribution(discrete_gaussian(3000, 1.7, Seeded(3).words), 1.7)


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(7, 2), Fraction(50), Fraction(1, 10**12)])
def test_a_uniform_number_is_compared_exactly(x: Fraction) -> None:
    """Around e^−x in 64 bits; where the bits are the same, the next ones decide."""
    at = int(Fraction(math.exp(-x)) * 2**64)
    slack = 2**14
    assert LazyUniform(max(at - slack, 0), lambda n: np.zeros(n, np.uint64)).below_exp(x) or at < slack
    assert (
        not LazyUniform(min(at + slack, 2**64 - 1), lambda n: np.zeros(n, np.uint64)).below_exp(x) or x < 1e-9
    )

    def bound(word: int) -> bool:
        return LazyUniform(word, lambda n: np.zeros(n, np.uint64)).below_exp(x)

    low, high = 0, 2**64 - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bound(middle) else (low, middle)
    full = LazyUniform(low, lambda n: np.full(n, 2**64 - 1, np.uint64))
    assert bound(low)
    assert not full.below_exp(x) or low + 1 == 2**64 - 1


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), 2.0**41])
def test_noise_that_cannot_be_drawn_is_refused(scale: float) -> None:
    with pytest.raises(PrivacyError):
        discrete_gaussian(3, scale, Seeded(0).words)


def test_the_numbers_of_the_secure_source_are_not_repeated() -> None:
    assert (
        discrete_gaussian(1000, 1e6, Secure().words) != discrete_gaussian(1000, 1e6, Secure().words)
    ).any()
    first, second = (discrete_gaussian(1000, 1e6, Seeded(1).words) for _ in range(2))
    assert (first == second).all()
