"""Vectors modulo 2^m, streams, shares of secrets, and messages."""

from __future__ import annotations

import os
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from confrere.core.errors import BadParcel, PeerError, PrivacyError
from confrere.exchange.secure import masking, sharing
from confrere.exchange.secure.messages import GivenUp, KeyAnnouncement, KeyList, OpenedShares, decode, encode


@given(st.lists(st.integers(-(2**39), 2**39 - 1), min_size=1), st.integers(40, 64))
def test_a_vector_survives_the_ring_and_its_bytes(steps: list[int], bits: int) -> None:
    vector = masking.to_ring(np.array(steps, dtype=np.int64), bits)
    again = masking.unpacked(masking.packed(vector, bits), len(steps), bits)
    assert masking.from_ring(again, bits).tolist() == steps


@pytest.mark.parametrize(("data", "bits"), [(b"\xff\xff", 12), (b"\0\x10", 12), (b"\0", 12), (b"\0\0\0", 16)])
def test_bytes_that_are_no_packed_vector_are_refused(data: bytes, bits: int) -> None:
    with pytest.raises(BadParcel):
        masking.unpacked(data, 1, bits)


def test_only_whole_steps_are_masked() -> None:
    with pytest.raises(PrivacyError, match="whole grid steps"):
        masking.to_ring(np.zeros(3), 64)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [33, 64])
@pytest.mark.parametrize("size", [1, 5, masking.BLOCK, masking.BLOCK + 3])
def test_a_stream_that_is_added_and_subtracted_leaves_nothing(bits: int, size: int) -> None:
    vector = np.zeros(size, dtype=np.uint64)
    masking.add_stream(vector, bytes(range(32)), bits)
    assert len(set(vector.tolist())) > size * 0.9
    assert int(vector.max()) < 2**bits
    masking.add_stream(vector, bytes(range(32)), bits, subtract=True)
    assert not vector.any()


def test_every_use_has_a_stream_of_its_own() -> None:
    keys = [
        masking.derived(b"s" * 32, b"c" * 32, "pair mask", "a", "b"),
        masking.derived(b"s" * 32, b"c" * 32, "pair mask", "b", "a"),
        masking.derived(b"s" * 32, b"c" * 32, "pair mask", "ab", ""),
        masking.derived(b"s" * 32, b"c" * 32, "shares", "a", "b"),
        masking.derived(b"s" * 32, b"d" * 32, "pair mask", "a", "b"),
        masking.derived(b"t" * 32, b"c" * 32, "pair mask", "a", "b"),
    ]
    assert len(set(keys)) == len(keys)
    one = masking.pair_key(b"s" * 32, b"c", "a", "b")
    assert one == masking.pair_key(b"s" * 32, b"c", "b", "a")


def test_a_masked_vector_is_uniform() -> None:
    vector = masking.to_ring(np.full(1 << 16, 7, dtype=np.int64), 64)
    masking.add_stream(vector, os.urandom(32), 64)
    counts = np.bincount((vector >> np.uint64(56)).astype(np.int64), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-7


@given(st.binary(min_size=32, max_size=32), st.integers(2, 7), st.integers(0, 4))
def test_a_threshold_of_shares_restores_a_secret_and_fewer_are_refused(
    secret: bytes, needed: int, more: int
) -> None:
    shares = sharing.divide(secret, range(1, needed + more + 1), needed)
    for chosen in list(combinations(shares, needed))[:10]:
        assert sharing.restore({x: shares[x] for x in chosen}, needed) == secret
    with pytest.raises(PeerError):
        sharing.restore({x: shares[x] for x in list(shares)[: needed - 1]}, needed)


def test_the_field_is_that_of_a_prime() -> None:
    assert all(pow(base, sharing.PRIME - 1, sharing.PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))


def test_fewer_shares_than_the_threshold_are_uniform_whatever_the_secret() -> None:
    """The first byte below the top of two shares out of three, for two secrets."""
    for secret in (bytes(32), b"\xff" * 32):
        pairs = [sharing.divide(secret, (1, 2, 3), 3) for _ in range(4000)]
        for at in (1, 2):
            counts = Counter(shares[at][1] >> 4 for shares in pairs)
            assert stats.chisquare([counts[k] for k in range(16)]).pvalue > 1e-7
        joint = Counter((shares[1][1] >> 6, shares[2][1] >> 6) for shares in pairs)
        assert stats.chisquare([joint[a, b] for a in range(4) for b in range(4)]).pvalue > 1e-7


def test_for_any_fewer_shares_every_secret_is_possible() -> None:
    """Given two of three shares, one polynomial of degree two fits each secret: they say nothing."""
    shares = sharing.divide(os.urandom(32), (1, 2, 3), 3)
    for other in (bytes(32), os.urandom(32)):
        points = {0: int.from_bytes(other, "big"), **{x: int.from_bytes(shares[x], "big") for x in (1, 2)}}
        third = 0
        for x, value in points.items():
            above = below = 1
            for y in points:
                if y != x:
                    above, below = above * (3 - y), below * (x - y)
            third += value * above * pow(below, -1, sharing.PRIME)
        fitting = {x: shares[x] for x in (1, 2)} | {3: (third % sharing.PRIME).to_bytes(33, "big")}
        assert sharing.restore(fitting, 3) == other


def test_shares_that_were_changed_on_the_way_are_refused() -> None:
    one, other = b"\0" + b"k" * 32, b"\0" + b"s" * 32
    sealed = sharing.seal(bytes(32), one, other, b"context")
    assert sharing.unseal(bytes(32), sealed, b"context") == (one, other)
    for key, data, context in (
        (b"1" * 32, sealed, b"context"),
        (bytes(32), sealed[:-1] + bytes([sealed[-1] ^ 1]), b"context"),
        (bytes(32), sealed, b"other"),
        (bytes(32), b"", b"context"),
        (bytes(32), sharing.seal(bytes(32), one, other[:-1], b"context"), b"context"),
        (bytes(32), sharing.seal(bytes(32), one, b"\1" + b"\xff" * 32, b"context"), b"context"),
    ):
        with pytest.raises(BadParcel):
            sharing.unseal(key, data, context)


MESSAGES = [
    GivenUp(b"c" * 32, "a", "reason", b"signature"),
    KeyList(b"c", (KeyAnnouncement(b"c", "a", b"1", b"2", b"3", b"4"), KeyAnnouncement(b"c", "b", b"", b"", b"", b""))),
    OpenedShares(b"c", "a", b"s", {"b": b"1"}, {"c": b"22"}),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_survive_their_bytes(message: GivenUp | KeyList | OpenedShares) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(BadParcel):
        decode(data)


@given(st.data())
def test_a_broken_message_is_refused_or_read_as_a_message(data: st.DataObject) -> None:
    whole = bytearray(encode(MESSAGES[1]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(whole))
    except BadParcel:
        return
