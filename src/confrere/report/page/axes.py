"""Scales: where a value falls on an axis, and which round numbers to label."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """From values to 0 … 1, linearly or by their logarithm."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, 1e-12))
        return (at - low) / (high - low)

    def percent(self, value: float) -> str:
        """For SVG attributes that stretch with the page: «34.2%», never outside of the chart."""
        return f"{100 * min(max(self(value), 0.0), 1.0):.2f}%"

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the scale."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found: list[float] = []
            for steps in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
                found = [
                    v for p in powers for v in (s * 10.0**p for s in steps) if self.low <= v <= self.high
                ]
                if len(found) >= 3:
                    break
            return found[:: -(-len(found) // (most + 1))] if found else found
        step = _step(self.high - self.low, most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]


def around(values: Iterable[float], *, zero: bool = False, room: float = 0.06) -> Scale:
    """A scale that holds all values, with some room at both ends; with `zero`, zero too."""
    held = [*values, *([0.0] if zero else [])] or [0.0, 1.0]
    low, high = min(held), max(held)
    width = high - low or abs(high) * 0.1 or 1.0
    return Scale(low - room * width, high + room * width)


def _step(width: float, most: int) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that needs at most `most` ticks."""
    size = 10.0 ** math.floor(math.log10(width / most))
    return next(size * s for s in (1, 2, 5, 10, 20) if width / (size * s) <= most)
