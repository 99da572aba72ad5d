"""Distances between vectors, and their weighted mean, computed by two servers of which neither sees a vector.

After He, Karimireddy and Jaggi, *Secure Byzantine-Robust Machine Learning* (2020). A site writes its vector in fixed point, x,
and divides it into two parts modulo 2^64: a stream `a` from a fresh seed for server A, and b = x − a for server B. Each part by
itself is uniform. For a site and the user, with v the difference of their vectors and a, b the differences of their parts,

    ‖v‖² = ‖a‖² + ‖b‖² + 2⟨a, b⟩

and only ⟨a, b⟩ takes both servers. A dealer, which is neither of them nor the user, gives them masks for it:

    dealer → A    rA and tA, from a seed
    dealer → B    rB, from a seed, and tB = ⟨rA, rB⟩ − tA
    A → B         a + rA
    B → A         b + rB
    A has         ‖a‖² + 2·(tA − ⟨rA, b + rB⟩)
    B has         ‖b‖² + 2·(tB + ⟨a + rA, b⟩)      whose sum is ‖v‖²

All masks are fresh for every site and round: two differences behind the same mask would reveal how far one moved. A
weighted mean of vectors is the sum of the weighted means of their parts, which each server computes by itself. Before they send
these to the user, A adds and B subtracts one more stream, from a key that both derive of what A has sent to B: the part that a
server keeps of its own vector is the vector itself, and a mean of parts could show it.

What it relies on: A and B do not pool what they see, and the dealer does so with neither. Who departs from the protocol can
spoil a result. This hides vectors, and nothing else: a mean that is opened is as private as the noise in the vectors makes it.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import BadParcel
from confrere.exchange.secure.masking import Ring, add_stream, derived, from_ring, packed, to_ring, unpacked
from confrere.exchange.secure.messages import Message, digest, kinds_by_name

BITS = 64
MODULUS = 1 << BITS
FRACTION_BITS = 20
WEIGHT_BITS = 30
SEED_BYTES = 32
LONGEST = 2.0**10.5
"""Vectors in fixed point are shorter than this, so that a squared distance is below 2^23: with 40 fraction bits, below 2^63."""

Seeds = Callable[[int], bytes]
"""A source of seeds: a function that returns the given number of fresh random bytes."""


@dataclass(frozen=True)
class SharedPart(Message):
    """What a site sends to a server: its part of the site's vector and, from the dealer, the masks."""

    part: bytes
    """For server A a seed, for server B a vector."""
    mask_seed: bytes = b""
    mask_numbers: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class MaskedDifferences(Message):
    """What one server sends to the other: the masked difference to the user for each site, and the table that it keeps."""

    vectors: dict[str, bytes]
    table: str


@dataclass(frozen=True)
class DistanceHalves(Message):
    """A server's summand of each squared distance."""

    halves: dict[str, bytes]


@dataclass(frozen=True)
class MeanHalf(Message):
    """A server's summand of the weighted mean (empty where nothing is opened), and its new table."""

    vector: bytes
    table: str


KINDS = kinds_by_name(SharedPart, MaskedDifferences, DistanceHalves, MeanHalf)


def context_of(
    run: str, epoch: int, round: int, roles: Collection[str], sites: Collection[str], size: int
) -> bytes:
    """Identifies one use of the protocol: part of every message and of every derived key."""
    numbers = (str(n).encode() for n in (epoch, round, size, len(roles)))
    return digest("two servers", run.encode(), *numbers, *(name.encode() for name in (*roles, *sites)))


# -- fixed point ------------------------------------------------------------------------------------------


def longest_input(size: int) -> float:
    """The largest norm that a vector of this size may have before it is rounded: rounding adds at most √size · 2^-21."""
    return (LONGEST - math.sqrt(size) * 2.0 ** -(FRACTION_BITS + 1)) * (1 - 1e-9)


def shortened(vector: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """A vector that is no longer than permitted, and the factor that it took."""
    norm, longest = float(np.linalg.norm(vector)), longest_input(len(vector))
    factor = longest / norm if norm > longest else 1.0
    return vector * factor, factor


def to_fixed_point(vector: NDArray[np.float64]) -> Ring:
    """A vector in fixed point; one that is too long is shortened."""
    return to_ring(np.rint(shortened(vector)[0] * 2.0**FRACTION_BITS).astype(np.int64), BITS)


def mean_of_halves(one: Ring, other: Ring) -> NDArray[np.float64]:
    """The weighted mean that two servers have computed."""
    mean = from_ring(one + other, BITS).astype(np.float64) * 2.0 ** -(FRACTION_BITS + WEIGHT_BITS)
    if float(np.linalg.norm(mean)) > LONGEST:
        raise BadParcel("the two halves of a mean do not belong together")
    return mean


# -- sites ------------------------------------------------------------------------------------------------


def divide_vector(
    vector: Ring, context: bytes, site: str, seeds: Seeds = secrets.token_bytes
) -> tuple[bytes, bytes]:
    """The parts of a site's vector: a seed for server A, a vector for server B."""
    seed, rest = seeds(SEED_BYTES), vector.copy()
    add_stream(rest, _part_key(seed, context, site), BITS, subtract=True)
    return seed, packed(rest, BITS)


def part_of_seed(seed: bytes, context: bytes, site: str, size: int) -> Ring:
    """Server A's part of a site's vector."""
    if len(seed) != SEED_BYTES:
        raise BadParcel("the seed of a shared vector has another length")
    return _stream(_part_key(seed, context, site), size)


def _part_key(seed: bytes, context: bytes, site: str) -> bytes:
    return derived(seed, context, "part of a vector", site)


def _stream(key: bytes, size: int) -> Ring:
    found = np.zeros(size, dtype=np.uint64)
    add_stream(found, key, BITS)
    return found


# -- the dealer -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masks:
    """What a server has from the dealer: a seed and, at server B, a number for each site."""

    seed: bytes
    context: bytes
    numbers: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.seed) != SEED_BYTES:
            raise BadParcel("the masks of a server are missing")

    def vector(self, site: str, size: int) -> Ring:
        return _stream(derived(self.seed, self.context, "mask of a difference", site), size)

    def number(self, site: str) -> int:
        if site in self.numbers:
            return int(unpacked(self.numbers[site], 1, BITS)[0])
        return int(_stream(derived(self.seed, self.context, "mask of a product", site), 1)[0])


def deal(
    context: bytes, sites: Collection[str], size: int, seeds: Seeds = secrets.token_bytes
) -> tuple[Masks, Masks]:
    """Fresh masks for server A and for server B."""
    a, b = Masks(seeds(SEED_BYTES), context), Masks(seeds(SEED_BYTES), context)
    products = {site: inner(a.vector(site, size), b.vector(site, size)) - a.number(site) for site in sites}
    return a, Masks(b.seed, context, {site: packed_number(product) for site, product in products.items()})


# -- the servers ------------------------------------------------------------------------------------------


def inner(one: Ring, other: Ring) -> int:
    """The inner product modulo 2^64."""
    return int(np.dot(one, other))


def packed_number(value: int) -> bytes:
    return (value % MODULUS).to_bytes(8, "little")


@dataclass
class DistanceServer:
    """Server A (`first`) or B in one round."""

    first: bool
    user: str
    size: int
    parts: Mapping[str, Ring]
    """This server's part of each site's vector, the user's among them."""
    masks: Masks
    mean_key: bytes = b""
    """The key of the stream that hides the summands of the mean from the user."""

    def masked_differences(self) -> dict[str, bytes]:
        """For the other server."""
        found = {
            site: packed(self._difference(site) + self.masks.vector(site, self.size), BITS)
            for site in sorted(self.parts)
            if site != self.user
        }
        if self.first:
            self.mean_key = self._mean_key(found)
        return found

    def _mean_key(self, sent_by_first: Mapping[str, bytes]) -> bytes:
        """Both servers know what the first one has sent, and nobody else does."""
        vectors = (hashlib.sha256(sent_by_first[name]).digest() for name in sorted(sent_by_first))
        return derived(digest("masked differences", *vectors), self.masks.context, "mask of the mean")

    def halves(self, received: Mapping[str, bytes]) -> dict[str, int]:
        """This server's summand of the squared distance of each site whose vector both servers have."""
        if not self.first:
            self.mean_key = self._mean_key(received)
        return {
            site: self._half(site, unpacked(received[site], self.size, BITS))
            for site in sorted(self.parts)
            if site != self.user and site in received
        }

    def _half(self, site: str, received: Ring) -> int:
        own, number = self._difference(site), self.masks.number(site)
        if self.first:
            product = number - inner(self.masks.vector(site, self.size), received)
        else:
            product = number + inner(received, own)
        return (inner(own, own) + 2 * product) % MODULUS

    def _difference(self, site: str) -> Ring:
        return self.parts[site] - self.parts[self.user]

    def weighted(self, weights: Mapping[str, float]) -> bytes:
        """This server's summand of the weighted mean."""
        whole = math.fsum(weights.values())
        found = np.zeros(self.size, dtype=np.uint64)
        for site in sorted(weights):
            found += self.parts[site] * np.uint64(round(weights[site] / whole * 2**WEIGHT_BITS))
        add_stream(found, self.mean_key, BITS, subtract=not self.first)
        return packed(found, BITS)


def squared_distance(one: int, other: int) -> float:
    """A squared distance from the summands of both servers; beyond 2^23 no two vectors of honest sites can be."""
    found = ((one + other) % MODULUS) * 2.0 ** -(2 * FRACTION_BITS)
    if found > 2.0**23:
        raise BadParcel("a vector is further from the user's than any two vectors of honest sites")
    return found
