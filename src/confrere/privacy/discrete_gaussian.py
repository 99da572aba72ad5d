"""Draw exact discrete Gaussian noise: whole numbers y with probability proportional to exp(−y²/2s²).

Canonne, Kamath and Steinke (2020) draw a discrete Laplace number and accept or reject it. The two rejections of their
algorithm are one here: with t a power of two near s, let U be uniform on {0, …, t − 1}, V geometric with
P(V ≥ k) = e^−k, and y = U + tV. Accept y with probability e^−x, where

    x = U/t + (y − s²/t)²/(2s²),        so that  e^−V · e^−x  is proportional to  exp(−y²/2s²).

A fair sign follows, and «minus zero» is rejected. Two draws out of three are accepted.

The draws are exact, not approximate. A decision «is a uniform number below e^−x?» is taken in double precision from 64
random bits. Where these bits and an error of 2^−38 leave it open (about once in 10¹⁰ draws), it is taken from
further random bits and an e^−x to as many digits as are needed, with x an exact fraction. So nothing has to be added to δ.

Assumed: NumPy's double-precision exp and log are right to 2^−45 relative (they are to about 2^−51), the source of random words
is uniform, and timing is not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import PrivacyError

Words = Callable[[int], NDArray[np.uint64]]
"""A source of random 64-bit words."""

ERROR = 2.0**-38
"""How far a decision in double precision may be off, relative to the probability, before it is taken exactly."""

FEW = 2.0**-24
"""Uniform numbers below this have too few significant bits, and are decided exactly."""

BLOCK = 1 << 15
"""How many numbers are drawn at a time: the temporaries then stay in the cache."""

LARGEST = 2.0**40
"""The largest standard deviation, in grid steps: all of U, V and y stay exact in double precision."""


def discrete_gaussian(size: int, scale: float, words: Words) -> NDArray[np.int64]:
    """`size` independent discrete Gaussian numbers with parameter `scale`, which is their standard deviation if it is above 1."""
    if not 2.0**-10 <= scale < LARGEST:
        raise PrivacyError(f"discrete noise of {scale:.3g} grid steps cannot be drawn")
    out, filled = np.empty(size, dtype=np.int64), 0
    while filled < size:
        wanted = min(BLOCK, int(1.6 * (size - filled)) + 16)
        found = _accepted(wanted, scale, words)[: size - filled]
        out[filled : filled + len(found)] = found
        filled += len(found)
    return out


def _accepted(tries: int, scale: float, words: Words) -> NDArray[np.int64]:
    bits = max(round(math.log2(scale)), 0)
    width, variance = 1 << bits, scale * scale
    drawn = words(3 * tries)
    first, blocks, last = drawn[:tries], drawn[tries : 2 * tries], drawn[2 * tries :]
    within = (first & np.uint64(width - 1)).view(np.int64).astype(np.float64)
    negative = first.view(np.int64) < 0  # the highest bit
    whole = _geometric(blocks, words)
    y = within + width * whole
    x = y - variance / width
    x *= x
    x /= 2 * variance
    x += within / width
    accepted = _below(last, x, y, scale, width, words)
    accepted &= ~(negative & (y == 0))
    signed = np.copysign(y, first.view(np.int64))[accepted]
    return signed.astype(np.int64)


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in (0, 1) that begin with these bits, off by at most 2^−64; signed words are converted much faster."""
    found = (words >> np.uint64(1)).view(np.int64).astype(np.float64)
    found += 0.5
    found *= 2.0**-63
    return found


def _geometric(blocks: NDArray[np.uint64], words: Words) -> NDArray[np.float64]:
    """How many powers of 1/e lie above each uniform number."""
    uniform = _uniform(blocks)
    log = -np.log(uniform)
    whole = np.floor(log)
    open_ = (np.abs(log - np.rint(log)) < ERROR * (1 + log)) | (uniform < FEW)
    for at in np.flatnonzero(open_):
        number = LazyUniform(int(blocks[at]), words)
        k = 0
        while number.below_exp(Fraction(k + 1)):
            k += 1
        whole[at] = k
    return whole


def _below(
    last: NDArray[np.uint64],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    scale: float,
    width: int,
    words: Words,
) -> NDArray[np.bool_]:
    """Whether each uniform number is below e^−x; `y` and `scale` give x exactly where the double does not decide."""
    uniform = _uniform(last)
    chance = np.exp(-x)
    below = uniform < chance
    open_ = (np.abs(uniform - chance) <= ERROR * chance * (1 + x)) | (uniform < FEW)
    variance = Fraction(scale) ** 2
    for at in np.flatnonzero(open_):
        whole = int(y[at])
        exact = Fraction(whole % width, width) + (whole - variance / width) ** 2 / (2 * variance)
        below[at] = LazyUniform(int(last[at]), words).below_exp(exact)
    return below


class LazyUniform:
    """A uniform number in [0, 1) whose first 64 bits are known; further bits are drawn when they matter."""

    def __init__(self, first: int, words: Words) -> None:
        self.numerator, self.bits = first, 64
        self._words = words

    def below_exp(self, x: Fraction) -> bool:
        """Whether it is below e^−x, exactly."""
        while True:
            low, high = _exp_bounds(x, self.bits + 16)
            if self.numerator + 1 <= low * 2**self.bits:
                return True
            if self.numerator >= high * 2**self.bits:
                return False
            self.numerator = (self.numerator << 64) | int(self._words(1)[0])
            self.bits += 64


def _exp_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Bounds of e^−x, at most 2^−bits apart; `Decimal.exp` is correctly rounded."""
    if x == 0:
        return Fraction(1), Fraction(1)
    with localcontext() as context:
        context.prec = int(bits * 0.302) + 30
        context.Emin, context.Emax = -(10**9), 10**9
        # the rounded quotient is off by at most one unit in the last place, and |d e^−x| ≤ dx
        value = (-(Decimal(x.numerator) / Decimal(x.denominator))).exp()
        error = Fraction(1, 10 ** (context.prec - 2)) * (1 + x.numerator // x.denominator)
        middle = Fraction(value)
        return max(middle - error, Fraction(0)), min(middle + error, Fraction(1))
