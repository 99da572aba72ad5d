"""Masked sums: what is opened is the sum to the bit, it never wraps, and sparse masks protect whatever list is named."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.errors import PeerError, PrivacyError
from confrere.core.sum_terms import SumTerms, grid_for
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.in_process import GivenVector, open_sum, plain_sum, simulated_members
from confrere.exchange.secure.mask_graph import sparse, sparse_graph
from confrere.exchange.secure.masking import from_ring, to_ring
from confrere.exchange.secure.messages import AttemptId
from tests.masked_world import AGREED

ID = AttemptId("run", 1, "proxy", 2, 0)
FEDERATIONS = [(3, 1, 0), (4, 1, 1), (5, 2, 1), (7, 1, 2), (8, 2, 2)]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(FEDERATIONS),
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.sampled_from([40, 57, 64]),
    st.data(),
)
def test_an_opened_sum_is_the_sum_of_the_survivors_to_the_bit(
    numbers: tuple[int, int, int], seed: int, size: int, bits: int, data: st.DataObject
) -> None:
    n, t, d = numbers
    terms = SumTerms(n, t, d, noise_std=1.5, clip=1.0, size=size, bits=bits)
    agreement = Agreement(AGREED[n][0], terms, epoch=seed)
    draw = np.random.default_rng(seed)
    vectors = {name: draw.integers(-(2**30), 2**30, size) for name in agreement.names}
    missing = data.draw(st.sets(st.sampled_from(agreement.names), max_size=d))
    absent = data.draw(st.sets(st.sampled_from(sorted(missing)))) if missing else set()
    sources = {name: GivenVector(v) for name, v in vectors.items() if name not in absent}
    found = open_sum(agreement, replace(ID, turn=seed), sources, AGREED[n][1], silent=missing)
    expected = {name: v for name, v in vectors.items() if name not in missing}
    assert found.survivors == tuple(sorted(expected))
    assert (found.steps == sum(expected.values())).all()
    assert (found.steps == plain_sum(agreement, expected).steps).all()
    assert (found.values == found.steps * agreement.terms.grid).all()


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([(3, 1, 0), (5, 2, 1), (8, 2, 2)]), st.integers(0, 1000))
def test_one_dropout_too_many_opens_nothing(numbers: tuple[int, int, int], seed: int) -> None:
    n, t, d = numbers
    agreement = Agreement(AGREED[n][0], SumTerms(n, t, d, noise_std=1.5, clip=1.0, size=2))
    missing = random.Random(seed).sample(agreement.names, d + 1)
    sources = {name: GivenVector(np.zeros(2, dtype=np.int64)) for name in agreement.names}
    with pytest.raises(PeerError, match="given up"):
        open_sum(agreement, ID, sources, AGREED[n][1], silent=missing)


@given(
    st.floats(1e-3, 1e3), st.floats(0.5, 50), st.integers(1, 10**7), st.lists(st.integers(1, 10**6), min_size=3, max_size=8),
    st.integers(20, 64),
)  # fmt: skip
def test_bounded_inputs_never_wrap(
    clip: float, noise: float, size: int, declared: list[int], bits: int
) -> None:
    """The largest coordinate that members can add up to, with noise twelve standard deviations out, comes back as it is."""
    try:
        terms = SumTerms(len(declared), 1, 0, noise_std=noise * clip, clip=clip, size=size, bits=bits)
        terms.check_sum(sum(declared))
    except PrivacyError:  # it could
        assert clip * sum(declared) / grid_for(clip, size) > 2 ** (bits - 1) / 1.5 - 1e6 * noise
        return
    far = 12 * terms.share_scale
    steps = [round(clip * k / terms.grid + far / len(declared) ** 0.5) for k in declared]
    for sign in (1, -1):
        total = sum(to_ring(np.array([sign * s], dtype=np.int64), bits) for s in steps)
        assert from_ring(total & np.uint64(2**bits - 1), bits)[0] == sign * sum(steps)


@pytest.mark.parametrize(("n", "t", "d"), [(65, 6, 6), (100, 10, 10), (200, 5, 5)])
def test_honest_survivors_of_a_sparse_graph_stay_connected_whatever_list_is_named(
    n: int, t: int, d: int
) -> None:
    names = [f"site-{k:04}" for k in range(n)]
    chance = random.Random(7)
    for trial in range(20):
        graph = sparse_graph(names, t, d, bytes([trial]) * 32)
        colluding = set(chance.sample(names, t))
        # a hostile summing site leaves out members that are next to each other, as many as it may
        start = chance.randrange(n)
        gone = {graph.order[(start + k) % n] for k in range(d)}
        survivors = set(names) - gone
        try:
            graph.check(survivors)
        except PrivacyError:
            continue
        honest = survivors - colluding
        reached, waiting = set(), [min(honest)]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += [other for other in graph.neighbours(name) if other in honest]
        assert reached == honest


def test_a_list_that_isolates_a_member_of_a_sparse_graph_is_refused() -> None:
    names = [f"site-{k:04}" for k in range(200)]
    graph = sparse_graph(names, 5, 30, bytes(32))
    alone = graph.order[50]
    with pytest.raises(PrivacyError, match="neighbouring members"):
        graph.check(set(names) - set(graph.neighbours(alone)))
    graph.check(names)


@pytest.mark.parametrize(
    ("n", "share", "degree"), [(65, 10, 30), (128, 10, 50), (1000, 10, 100), (1000, 1000, 10)]
)
def test_the_degree_grows_slowly_with_the_number_of_members(n: int, share: int, degree: int) -> None:
    found, threshold, corrupt = sparse(n, n // share, n // share)
    assert found <= degree
    assert 2 * threshold > found + 1 + min(corrupt, n // share)
    assert threshold <= found + 1


def test_a_sum_over_a_sparse_graph_is_the_sum() -> None:
    members, keys = simulated_members({f"site-{k:03}": 10 for k in range(66)})
    agreement = Agreement(members, SumTerms(66, 1, 2, noise_std=1.5, clip=1.0, size=3), seed=b"s" * 32)
    assert len(agreement.graph.neighbours("site-000")) < 10
    vectors = {name: np.full(3, k, dtype=np.int64) for k, name in enumerate(agreement.names)}
    sources = {name: GivenVector(v) for name, v in vectors.items()}
    found = open_sum(agreement, ID, sources, keys, silent=["site-010"])
    assert (found.steps == sum(range(66)) - 10).all()
