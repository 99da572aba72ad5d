"""What two servers, and a dealer, see of the vectors whose distances they compute: nothing but the distances."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from confrere.core.errors import BadParcel
from confrere.exchange.secure.masking import Ring, add_stream, unpacked
from confrere.exchange.secure.messages import decode, encode
from confrere.exchange.secure.two_servers import (
    KINDS,
    LONGEST,
    MODULUS,
    MaskedDifferences,
    Masks,
    deal,
    inner,
    mean_of_halves,
    part_of_seed,
    squared_distance,
    to_fixed_point,
)
from tests.two_server_world import Round, View

SIZE = 64


def vectors(seed: int, scale: float = 1.0, size: int = SIZE) -> dict[str, Ring]:
    draw = np.random.default_rng(seed)
    return {name: to_fixed_point(scale * draw.standard_normal(size)) for name in ("u", "v", "w")}


def bytes_seen(view: View) -> bytes:
    parts = [*view.parts.values(), *view.received.values()]
    return b"".join(part.tobytes() for part in parts)


def deviation(data: bytes) -> float:
    """Pearson's statistic of the bytes, in standard deviations from what uniform ones would have on average."""
    counts, expected = Counter(data), len(data) / 256
    statistic = sum((counts[value] - expected) ** 2 / expected for value in range(256))
    return (statistic - 255) / (2 * 255) ** 0.5


@pytest.mark.parametrize("server", ["a", "b"])
def test_what_a_server_sees_is_uniform(server: str) -> None:
    """Vectors of zeros, which would stand out most; seeds are fixed, so that the outcome is."""
    nothing = {name: to_fixed_point(np.zeros(20_000)) for name in ("u", "v", "w")}
    view: View = getattr(Round(nothing), server)
    assert abs(deviation(bytes_seen(view))) < 4
    assert deviation(nothing["v"].tobytes()) > 1000  # the test notices what is not hidden


@pytest.mark.parametrize("hidden", ["part", "mask"])
def test_a_part_or_a_difference_without_its_mask_is_noticed(hidden: str) -> None:
    nothing = {name: to_fixed_point(np.zeros(20_000)) for name in ("u", "v")}
    found = Round(nothing)
    if hidden == "part":
        seen = (found.b.parts["v"] + found.a.parts["v"]).tobytes()
    else:
        assert found.a.masks is not None
        seen = (
            found.b.received["v"]
            - found.a.masks.vector("v", 20_000)
            - found.a.parts["v"]
            + found.a.parts["u"]
        ).tobytes()
    assert deviation(seen) > 1000


def test_every_message_is_hidden_by_a_mask_of_its_own() -> None:
    """With all masks taken as uniform, each message is one of them plus something that does not depend on it."""
    found = Round(vectors(1))
    assert found.a.masks is not None
    assert found.b.masks is not None
    streams = [part.tobytes() for part in found.a.parts.values()]
    streams += [
        masks.vector(n, SIZE).tobytes() for masks in (found.a.masks, found.b.masks) for n in ("v", "w")
    ]
    assert len(set(streams)) == len(streams) == 7
    for name, vector in found.vectors.items():
        assert (found.b.parts[name] + found.a.parts[name] == vector).all()
    for view, own, masks in ((found.b, found.a, found.a.masks), (found.a, found.b, found.b.masks)):
        for name, received in view.received.items():
            assert (received - masks.vector(name, SIZE) == own.parts[name] - own.parts["u"]).all()
    numbers = [found.a.masks.number(n) for n in ("v", "w")] + [found.b.masks.number(n) for n in ("v", "w")]
    assert len(set(numbers)) == 4


@pytest.mark.parametrize("first", [True, False])
def test_what_a_server_sees_fits_any_vectors_with_the_same_distances(first: bool) -> None:
    """For other vectors there are masks with which the server would have seen exactly the same: it cannot tell them apart."""
    found, other = Round(vectors(1)), vectors(1)
    own, theirs = (found.a, found.b) if first else (found.b, found.a)
    assert own.masks is not None
    moved = to_fixed_point(np.random.default_rng(7).standard_normal(SIZE) * 100)
    turned = {name: np.ascontiguousarray((vector + moved)[::-1]) for name, vector in other.items()}
    distances = {n: inner(turned[n] - turned["u"], turned[n] - turned["u"]) for n in ("v", "w")}
    assert distances == {n: (found.a.halves[n] + found.b.halves[n]) % MODULUS for n in ("v", "w")}
    for name in ("v", "w"):
        mine = own.parts[name] - own.parts["u"]
        rest = (turned[name] - own.parts[name]) - (turned["u"] - own.parts["u"])
        mask = own.received[name] - rest  # the mask that the other server would have had
        my_mask, my_number = own.masks.vector(name, SIZE), own.masks.number(name)
        number = inner(my_mask, mask) - my_number
        if first:
            half = inner(rest, rest) + 2 * (number + inner(mine + my_mask, rest))
        else:
            half = inner(rest, rest) + 2 * (number - inner(mask, mine + my_mask))
        assert half % MODULUS == own.halves[name]  # which is what the other server sent
    assert theirs.parts.keys() == own.parts.keys()


def test_masks_that_serve_two_rounds_reveal_how_far_vectors_moved() -> None:
    """The break that fresh masks prevent: server B subtracts two messages behind the same mask."""
    before, after = vectors(1), vectors(2)

    def seen_by_b(one: Round, two: Round) -> Ring:
        received = two.b.received["v"] - one.b.received["v"]
        return received + (two.b.parts["v"] - two.b.parts["u"]) - (one.b.parts["v"] - one.b.parts["u"])

    truth = (after["v"] - after["u"]) - (before["v"] - before["u"])
    reused = [  # a dealer that deals the same seeds, for what both servers take for the same round
        Round(given, number=0, seeds=random.Random(n).randbytes, dealers_seeds=random.Random(9).randbytes)
        for n, given in enumerate((before, after))
    ]
    assert (seen_by_b(*reused) == truth).all()
    fresh = [  # the same seeds of the dealer even: the round is part of what masks are derived from
        Round(given, number=n, seeds=random.Random(n).randbytes, dealers_seeds=random.Random(9).randbytes)
        for n, given in enumerate((before, after))
    ]
    assert not (seen_by_b(*fresh) == truth).any()


def test_masks_are_fresh_for_every_site_and_round() -> None:
    seen = set[bytes]()
    for number in range(3):
        context = Round(vectors(1), number=number).context
        for masks in deal(context, ["v", "w"], 4):
            seen |= {masks.vector(name, 4).tobytes() for name in ("v", "w")}
            seen |= {masks.number(name).to_bytes(8, "big") for name in ("v", "w")}
    assert len(seen) == 3 * 2 * 2 * 2
    one, two = (deal(Round(vectors(1)).context, ["v"], 4)[0].seed for _ in range(2))
    assert one != two  # each deal draws seeds of its own


WEIGHTS = {"u": 1.0, "v": 0.5, "w": 0.25}


@pytest.mark.parametrize("half", [0, 1])
def test_each_half_of_the_mean_is_uniform_even_where_a_server_holds_whole_vectors(half: int) -> None:
    """A server keeps its own vector whole. Without the last mask the user would read it from the server's half."""
    found = Round({name: to_fixed_point(np.zeros(20_000)) for name in ("u", "v", "w")})
    server = found.servers[half]
    server.parts = {name: to_fixed_point(np.zeros(20_000)) for name in server.parts}
    assert abs(deviation(server.weighted(WEIGHTS))) < 4
    bare = unpacked(server.weighted(WEIGHTS), 20_000, 64)
    add_stream(bare, server.mean_key, 64, subtract=half == 0)
    assert not bare.any()  # that is what the user would see


def test_the_mask_of_the_mean_is_fresh_and_the_servers_alone_know_it() -> None:
    keys = [server.mean_key for n in range(3) for server in Round(vectors(1), number=n).servers]
    assert keys[0::2] == keys[1::2]
    assert len(set(keys)) == 3
    one, other = (
        Round(vectors(1), dealers_seeds=random.Random(n).randbytes, seeds=random.Random(5).randbytes)
        for n in (1, 2)
    )
    assert (
        one.servers[0].mean_key != other.servers[0].mean_key
    )  # whoever does not know the dealer's masks cannot derive it


def test_halves_that_do_not_belong_together_are_refused() -> None:
    one, other = np.random.default_rng(0).integers(0, 2**63, (2, SIZE)).astype(np.uint64)
    with pytest.raises(BadParcel, match="do not belong together"):
        mean_of_halves(one, other)


def test_a_distance_that_no_honest_site_can_have_is_refused() -> None:
    assert squared_distance(2**40, 0) == 1.0
    with pytest.raises(BadParcel, match="honest"):
        squared_distance(2**63, 2**40)


@pytest.mark.parametrize("seed", [b"", b"short", bytes(33)])
def test_seeds_of_another_length_are_refused(seed: bytes) -> None:
    with pytest.raises(BadParcel):
        part_of_seed(seed, b"context", "v", 4)
    with pytest.raises(BadParcel):
        Masks(seed, b"context")


def test_messages_are_read_back_and_anything_else_is_refused() -> None:
    sent = MaskedDifferences(b"context", {"v": bytes(16)}, '{"v": [1.0, 2.0]}')
    assert decode(encode(sent), KINDS) == sent
    for data in (b"", b"\0\0\0\2[]", encode(sent)[:-1], encode(sent) + b"x"):
        with pytest.raises(BadParcel):
            decode(data, KINDS)
    with pytest.raises(BadParcel):
        decode(encode(sent))  # it is no message of a masked sum


def test_the_longest_vectors_fit() -> None:
    size = 3
    far = to_fixed_point(np.array([2 * LONGEST, 0, 0]))
    found = Round({"u": far, "v": to_fixed_point(np.array([-2 * LONGEST, 0, 0]))})
    assert found.size == size
    assert found.squared["v"] == pytest.approx(2.0**23, rel=1e-6)
    assert found.squared["v"] < 2.0**23
