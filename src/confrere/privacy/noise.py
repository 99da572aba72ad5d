"""Randomness for sampling and noise: reproducible in simulation, cryptographic on a node.

`Seeded` is a torch generator: fast, reproducible and *not private* against anyone who can guess the seed.

`Secure` is AES-256 in counter mode, keyed from the operating system. Its Gaussian noise is safe against
attacks on floating point (Mironov 2012; Jin et al. 2022; Holohan and Braghin 2021). What is proven:

1. A sum s is first rounded to a grid of width g, a public power of two. Rounding moves each of d coordinates
   by at most g/2, so two neighbouring sums differ by at most C + g·√d after it. The noise is scaled up by
   just that factor; the charged noise multiplier stays what was declared.
2. With s on the grid, s + round(Z) = round(s + Z): a function of the ideal Gaussian release s + Z and of
   nothing else. So the guarantee of the ideal mechanism carries over; which float is hit betrays nothing.
3. round(Z/g) is drawn exactly: Z is computed in double precision from 127 random bits with a bound on its
   error, and wherever that bound leaves the rounding open (about once in 100,000 draws), the draw is
   repeated in 90-digit arithmetic with 128 further random bits appended to each of the two uniforms.

Assumed, not proven: torch's double-precision log, sqrt, sin and cos are right to 2^-45 relative (they are to
about 2^-51); AES is a pseudorandom function; timing and memory are not observed; and the sum that is
handed in was clipped so that its *computed* value moves by at most C when one unit is added or removed.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.errors import PrivacyError

PAIRS = 1 << 14
"""Normals are made in pairs, this many at a time: the temporaries then stay in the cache."""

FINENESS = 2.0**-14
"""The grid's share of the sensitivity, over all coordinates: the noise grows by less than 0.01 %."""

PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
)


class Randomness(Protocol):
    """A source of randomness. `secure` means that it cannot be predicted or repeated."""

    @property
    def secure(self) -> bool: ...

    def words(self, size: int) -> NDArray[np.uint64]:
        """Random 64-bit words."""
        ...

    def uniform(self, size: int) -> Tensor:
        """Doubles, uniform in [0, 1)."""
        ...

    def bernoulli(self, size: int, rate: Fraction | float) -> Tensor:
        """A mask that is true with probability `rate`, independently."""
        ...

    def normal(self, size: int, std: float) -> Tensor:
        """Gaussian noise of this standard deviation, in single precision."""
        ...

    def perturb(self, value: Tensor, std: float, sensitivity: float) -> Tensor:
        """`value` plus Gaussian noise: a release, if one unit moves `value` by at most `sensitivity`."""
        ...


class Seeded:
    """Reproducible randomness from a torch generator. What it protects is not private."""

    secure = False

    def __init__(self, seed: int | torch.Generator) -> None:
        self.generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)

    def words(self, size: int) -> NDArray[np.uint64]:
        drawn = torch.empty(size, dtype=torch.int64).random_(-(2**63), None, generator=self.generator)
        return drawn.numpy().view(np.uint64)

    def uniform(self, size: int) -> Tensor:
        return torch.rand(size, generator=self.generator, dtype=torch.float64)

    def bernoulli(self, size: int, rate: Fraction | float) -> Tensor:
        return self.uniform(size) < float(rate)

    def normal(self, size: int, std: float) -> Tensor:
        return torch.randn(size, generator=self.generator).mul_(_checked(std))

    def perturb(self, value: Tensor, std: float, sensitivity: float) -> Tensor:
        noise = self.normal(value.numel(), std).to(value)
        return noise.add_(_finite(value).reshape(-1)).reshape(value.shape)


def generators_of(sources: Sequence[Randomness]) -> list[torch.Generator] | None:
    """The generators of reproducible sources, to draw from directly; None if one of them has no generator."""
    seeded = [source for source in sources if type(source) is Seeded]
    return [source.generator for source in seeded] if len(seeded) == len(sources) else None


class Secure:
    """Randomness that cannot be predicted or repeated: AES-256-CTR, keyed from the operating system.

    A forked child takes a fresh key, so that parent and child never draw the same noise.
    """

    secure = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rekey()

    def __reduce__(self) -> tuple[type[Secure], tuple[()]]:
        return Secure, ()  # a key is never copied or stored: the copy has its own

    def _rekey(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16)))
        self._stream, self._process = cipher.encryptor(), os.getpid()

    def words(self, size: int) -> NDArray[np.uint64]:
        """Random 64-bit words."""
        out = bytearray(8 * size + 15)
        with self._lock:
            if self._process != os.getpid():
                self._rekey()
            self._stream.update_into(bytes(8 * size), out)
        return np.frombuffer(out, dtype=np.uint64, count=size)

    def uniform(self, size: int) -> Tensor:
        return torch.from_numpy((self.words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def bernoulli(self, size: int, rate: Fraction | float) -> Tensor:
        """True with probability floor(rate·2^64)/2^64: never more often than is accounted for."""
        threshold = math.floor(Fraction(rate) * 2**64)
        if not 0 <= threshold <= 2**64:
            raise PrivacyError(f"a rate lies between 0 and 1, not at {rate}")
        if threshold == 2**64:
            return torch.ones(size, dtype=torch.bool)
        return torch.from_numpy(self.words(size) < np.uint64(threshold))

    def normal(self, size: int, std: float) -> Tensor:
        """Gaussian noise on a grid of 2^-20 to 2^-19 of `std`, exact in single precision.

        Whatever it is added to must lie on that grid too (whole numbers do, for `std` up to 2^19), or the
        sum is only as private as floating point is. `perturb` takes care of that itself.
        """
        if _checked(std) == 0:
            return torch.zeros(size)
        grid = _power_of_two(std * 2.0**-19)
        return self.gridded(size, std / grid).mul_(grid).float()

    def perturb(self, value: Tensor, std: float, sensitivity: float) -> Tensor:
        if _checked(std) == 0 or not value.numel():
            return _finite(value).clone()
        width = grid(sensitivity, value.numel())
        std *= 1 + width * math.sqrt(value.numel()) / sensitivity
        whole = _finite(value).detach().to("cpu", torch.float64).reshape(-1).div(width).round_()
        return whole.add_(self.gridded(value.numel(), std / width)).mul_(width).reshape(value.shape).to(value)

    def gridded(self, size: int, scale: float) -> Tensor:
        """Exactly drawn round(Z) for Z ~ N(0, scale²): whole numbers, as doubles."""
        if not 1 <= scale < 2.0**40:
            raise PrivacyError(f"noise of {scale:.3g} grid widths cannot be drawn exactly")
        out = torch.empty(size, dtype=torch.float64)
        for start in range(0, size, 2 * PAIRS):
            part = out[start : start + 2 * PAIRS]
            pairs = (part.numel() + 1) // 2
            part.copy_(self._pairs(pairs, scale).reshape(-1)[: part.numel()])
        return out

    def _pairs(self, pairs: int, scale: float) -> Tensor:
        """Box and Muller's transform, rounded, with every doubtful rounding settled exactly."""
        words = self.words(2 * pairs).view(np.int64)
        radial = torch.from_numpy((words[:pairs] >> 1) & np.int64(2**63 - 1))  # 63 bits
        angular = torch.from_numpy(words[pairs:])  # 64 bits with sign
        radius = radial.double().add_(0.5).mul_(2.0**-63).log_().mul_(-2).sqrt_()
        angle = angular.double().mul_(math.pi * 2.0**-63)
        drawn = torch.stack([torch.cos(angle), torch.sin(angle)]).mul_(radius).mul_(scale)
        whole = drawn.round()
        # The double's error is below 2^-43·(r + 1/r); where few radial bits are set, one bit weighs more.
        error = (radius + radius.reciprocal()).mul_(scale * 2.0**-43)
        doubtful = drawn.sub_(whole).abs_().amax(0) > 0.5 - error
        doubtful |= radial < 2**45
        for at in doubtful.nonzero()[:, 0].tolist():
            bits = [int(x) for x in self.words(4)]
            u = (int(radial[at]) << 128) + (bits[0] << 64) + bits[1]
            v = (int(angular[at]) << 128) + (bits[2] << 64) + bits[3]
            whole[:, at] = torch.tensor(exact_pair(u, v, scale), dtype=torch.float64)
        return whole


def exact_pair(u: int, v: int, scale: float) -> tuple[float, float]:
    """A rounded pair of normals from a 191-bit radius and a 192-bit signed angle, in 90 digits."""
    with localcontext() as context:
        context.prec = 90
        radius = (-2 * ((Decimal(u) + Decimal("0.5")) / 2**191).ln()).sqrt() * Decimal(scale)
        cosine, sine = _cos_sin((Decimal(v) + Decimal("0.5")) / 2**191 * PI)
        return float((radius * cosine).to_integral_value()), float((radius * sine).to_integral_value())


def _cos_sin(angle: Decimal) -> tuple[Decimal, Decimal]:
    sums, term = [Decimal(1), Decimal(0)], Decimal(1)
    for n in range(1, 90):
        term *= angle / n
        sums[n % 2] += -term if n % 4 in (2, 3) else term
    return sums[0], sums[1]


def grid(sensitivity: float, dimension: int) -> float:
    """The grid that a release of this public sensitivity and size is rounded to: a power of two."""
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise PrivacyError(f"a sensitivity must be a positive number, not {sensitivity}")
    return _power_of_two(sensitivity * FINENESS / math.sqrt(dimension))


def _power_of_two(value: float) -> float:
    """The greatest power of two that is not above `value`."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)


def _checked(std: float) -> float:
    if not (math.isfinite(std) and std >= 0):
        raise PrivacyError(f"a standard deviation must be a number of at least 0, not {std}")
    return std


def _finite(value: Tensor) -> Tensor:
    """The value, if all its numbers are finite. If their sum is, they are; to add costs far less than to look at each."""
    if not math.isfinite(float(value.sum())) and not bool(torch.isfinite(value).all()):
        raise PrivacyError("a sum that is not finite cannot be protected by noise; nothing was released")
    return value
