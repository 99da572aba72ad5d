"""Seeded noise repeats, secure noise never does, and what it releases lies on a public grid."""

from __future__ import annotations

import math
import os
import pickle
from fractions import Fraction

import pytest
import torch

from confrere.core.errors import PrivacyError
from confrere.privacy import noise
from confrere.privacy.noise import FINENESS, Randomness, Secure, Seeded, exact_pair, grid

SOURCES = [lambda: Seeded(7), Secure]


def test_seeded_randomness_repeats_and_differs_between_seeds() -> None:
    assert torch.equal(Seeded(1).normal(100, 2.0), Seeded(1).normal(100, 2.0))
    assert not torch.equal(Seeded(1).normal(100, 2.0), Seeded(2).normal(100, 2.0))
    assert torch.equal(Seeded(1).bernoulli(100, 0.3), Seeded(1).bernoulli(100, 0.3))
    assert not Seeded(1).secure


def test_secure_randomness_never_repeats() -> None:
    assert Secure().secure
    assert not torch.equal(Secure().normal(100, 1.0), Secure().normal(100, 1.0))
    one = Secure()
    assert not torch.equal(one.normal(100, 1.0), one.normal(100, 1.0))
    assert not torch.equal(one.uniform(50), pickle.loads(pickle.dumps(one)).uniform(50))


def test_a_forked_child_does_not_repeat_its_parents_noise() -> None:
    source = Secure()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, source.words(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 32) != source.words(4).tobytes()


@pytest.mark.parametrize("source", SOURCES)
def test_both_sources_keep_one_protocol(source) -> None:  # type: ignore[no-untyped-def]
    randomness: Randomness = source()
    assert randomness.uniform(10).dtype == torch.float64
    assert 0 <= float(randomness.uniform(1000).min()) <= float(randomness.uniform(1000).max()) < 1
    assert randomness.bernoulli(10, Fraction(1, 3)).dtype == torch.bool
    assert randomness.bernoulli(10, 1).all()
    assert randomness.normal(7, 1.0).shape == (7,)
    assert torch.equal(randomness.normal(3, 0.0), torch.zeros(3))
    sums = torch.arange(6.0).reshape(2, 3)
    released = randomness.perturb(sums, 0.5, 1.0)
    assert (released.shape, released.dtype) == (sums.shape, sums.dtype)
    assert torch.equal(sums, torch.arange(6.0).reshape(2, 3))
    assert torch.equal(randomness.perturb(sums, 0.0, 1.0), sums)
    for odd in (0, 1, 5):
        assert randomness.normal(odd, 1.0).shape == (odd,)


@pytest.mark.parametrize("source", SOURCES)
def test_a_sum_that_is_not_finite_is_never_released(source) -> None:  # type: ignore[no-untyped-def]
    for bad in (math.nan, math.inf):
        with pytest.raises(PrivacyError, match="not finite"):
            source().perturb(torch.tensor([1.0, bad]), 1.0, 1.0)
    for std in (-1.0, math.nan, math.inf):
        with pytest.raises(PrivacyError):
            source().normal(3, std)


def test_every_secure_release_lies_on_the_public_grid() -> None:
    value = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    width = grid(1.0, 1000)
    steps = Secure().perturb(value, 1.0, 1.0) / width
    assert torch.equal(steps, steps.round())
    assert math.log2(width).is_integer()
    assert FINENESS / 2 < width * math.sqrt(1000) <= FINENESS


def test_secure_normals_added_to_a_count_stay_on_their_grid() -> None:
    drawn = Secure().normal(100_000, 3.0).double()
    steps = drawn / 2.0**-18  # the greatest power of two below 3·2^-19
    assert torch.equal(steps, steps.round())


def test_the_noise_is_scaled_up_for_what_rounding_adds_to_the_sensitivity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def remember(self: noise.Secure, size: int, scale: float) -> torch.Tensor:
        asked.append(scale)
        return torch.zeros(size, dtype=torch.float64)

    monkeypatch.setattr(noise.Secure, "gridded", remember)
    Secure().perturb(torch.zeros(400), 1.4 * 0.7, 0.7)
    width = grid(0.7, 400)
    assert asked[0] * width == pytest.approx(1.4 * (0.7 + width * math.sqrt(400)), rel=1e-12)


def test_the_rounding_of_neighbouring_sums_stays_within_the_charged_sensitivity() -> None:
    generator = torch.Generator().manual_seed(1)
    width = grid(1.0, 50)
    for _ in range(200):
        one = torch.randn(50, dtype=torch.float64, generator=generator)
        step = torch.randn(50, dtype=torch.float64, generator=generator)
        other = one + step / step.norm()
        moved = ((one / width).round() - (other / width).round()) * width
        assert float(moved.norm()) <= 1.0 + width * math.sqrt(50)


def test_the_exact_path_agrees_with_double_precision() -> None:
    words = Secure().words(400)
    for u, v in zip(words[::2].tolist(), words[1::2].tolist(), strict=True):
        u, v = u >> 1, v - 2**63
        radius = math.sqrt(-2 * math.log((u + 0.5) / 2**63)) * 1000
        expected = radius * math.cos(math.pi * v / 2**63), radius * math.sin(math.pi * v / 2**63)
        drawn = exact_pair(u << 128, v << 128, 1000.0)
        assert all(abs(d - e) <= 0.5 + 1e-6 for d, e in zip(drawn, expected, strict=True))


def test_doubtful_roundings_are_settled_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error bound blown up every draw is doubtful: all of them then come from the exact path."""
    settled: list[int] = []

    def count(u: int, v: int, scale: float) -> tuple[float, float]:
        settled.append(1)
        return exact_pair(u, v, scale)

    monkeypatch.setattr(noise, "exact_pair", count)
    Secure().gridded(2000, 1000.0)
    usual = len(settled)
    Secure().gridded(2000, 2.0**39)
    assert usual <= 3
    assert len(settled) - usual > 50


def test_noise_that_cannot_be_drawn_exactly_is_refused() -> None:
    with pytest.raises(PrivacyError, match="exactly"):
        Secure().perturb(torch.zeros(4), 1e-9, 1.0)
    with pytest.raises(PrivacyError):
        grid(0.0, 4)
    with pytest.raises(PrivacyError):
        Secure().bernoulli(3, 1.5)
