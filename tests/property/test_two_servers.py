"""Distances by way of two servers are the plain ones up to rounding, and short enough vectors never wrap around."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from confrere.exchange.secure.masking import from_ring
from confrere.exchange.secure.two_servers import BITS, LONGEST, longest_input, shortened, to_fixed_point
from tests.two_server_world import Round

ROUNDING = 2.0**-21
"""The largest error of one number in fixed point."""


def vector(draw: np.random.Generator, size: int, length: float) -> NDArray[np.float64]:
    """A vector of this length: all in one number, or spread over all of them."""
    found = (
        draw.standard_normal(size)
        if draw.random() < 0.7
        else np.eye(size)[draw.integers(size)] * draw.choice([-1, 1])
    )
    return found / np.linalg.norm(found) * length


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.lists(st.floats(0, 4 * LONGEST), min_size=2, max_size=6),
)
def test_distances_are_the_plain_ones_up_to_rounding(seed: int, size: int, lengths: list[float]) -> None:
    draw = np.random.default_rng(seed)
    given_vectors = {
        name: vector(draw, size, length) for name, length in zip("uvwxyz", lengths, strict=False)
    }
    short = {name: shortened(v)[0] for name, v in given_vectors.items()}
    found = Round(
        {n: to_fixed_point(v) for n, v in given_vectors.items()}, seeds=random.Random(seed).randbytes
    )
    for name, squared in found.squared.items():
        plain = float(np.linalg.norm(short[name] - short["u"]))
        assert abs(math.sqrt(squared) - plain) <= 2 * math.sqrt(size) * ROUNDING + 1e-9 * (1 + plain)
        assert squared < 2**23


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 200),
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6),
)
def test_the_opened_mean_is_the_plain_one_up_to_rounding(seed: int, size: int, weights: list[float]) -> None:
    draw = np.random.default_rng(seed)
    names = "uvwxyz"[: len(weights)]
    vectors = {name: vector(draw, size, draw.uniform(0, LONGEST * 0.99)) for name in names}
    found = Round({n: to_fixed_point(v) for n, v in vectors.items()}, seeds=random.Random(seed).randbytes)
    shares = dict(zip(names, weights, strict=True))
    plain = sum(w * shortened(vectors[n])[0] for n, w in shares.items()) / math.fsum(weights)
    rounded_weights = len(weights) * 2.0**-31 * LONGEST
    assert np.abs(found.mean(shares) - plain).max() <= ROUNDING + rounded_weights + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5000), st.floats(0, 1e9))
def test_a_vector_of_any_length_is_short_enough_after_rounding(seed: int, size: int, length: float) -> None:
    rounded = from_ring(to_fixed_point(vector(np.random.default_rng(seed), size, length)), BITS)
    assert math.sqrt(sum(int(x) ** 2 for x in rounded)) < LONGEST * 2**20
    assert (
        sum((2 * int(x)) ** 2 for x in rounded) < 2**63
    )  # twice as far is the largest distance: it does not wrap


def test_without_the_margin_rounding_would_make_a_vector_too_long() -> None:
    size, limit = 1 << 16, LONGEST * 2**20
    steps = np.full(
        size, math.floor(limit / math.sqrt(size)) + 0.55
    )  # a little below the limit, and rounded up
    assert np.linalg.norm(steps) < limit < np.linalg.norm(np.rint(steps))
    assert longest_input(size) * 2**20 < np.linalg.norm(steps)
    assert np.linalg.norm(from_ring(to_fixed_point(steps / 2**20), BITS).astype(float)) < limit
