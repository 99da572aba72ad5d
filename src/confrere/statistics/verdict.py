"""The one rule for «better», «worse» and «no clear difference», and for the share of a gap that was closed.

A gain is judged in pairs: by the 95 % interval of the paired bootstrap over test records and seeds where there is one
(`bootstrap`), else by Student's t over seeds. Tables, pages and repeated experiments read the word; none has a rule of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

Word = Literal["better", "no clear difference", "worse", "one seed only"]


@dataclass(frozen=True)
class Gain:
    """How much better one way of learning is than another: positive is better, whatever the metric.

    `low` to `high` is its 95 % interval. One seed has none: it cannot tell a gain from luck.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    pairs: int

    @property
    def word(self) -> Word:
        if self.low is None or self.high is None:
            return "one seed only"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no clear difference"

    @property
    def clear(self) -> bool:
        """Whether the difference is told from luck, in either direction."""
        return self.word in ("better", "worse")


@dataclass(frozen=True)
class GapClosed:
    """How much of the gap between training alone and pooling all records was closed."""

    gap: Gain
    gained: Gain
    share: float | None
    """None where there is no clear gap, so that a share of it would mean nothing."""
    share_std: float | None


def judge(differences: Iterable[float | None], interval: tuple[float, float] | None = None) -> Gain | None:
    """The mean of paired differences with its 95 % interval, the stated one if there is one; None without a pair.

    A difference that could not be measured (None) makes no pair.
    """
    pairs = [d for d in differences if d is not None]
    if not pairs:
        return None
    mean = math.fsum(pairs) / len(pairs)
    if len(pairs) == 1:
        return Gain(mean, None, None, None, 1)
    std = math.sqrt(math.fsum((d - mean) ** 2 for d in pairs) / (len(pairs) - 1))
    if interval is not None:
        return Gain(mean, std, interval[0], interval[1], len(pairs))
    half = float(stdtrit(len(pairs) - 1, 0.975)) * std / math.sqrt(len(pairs))
    if half < 1e-12 and abs(mean) < 1e-12:
        half = mean = 0.0
    return Gain(mean, std, mean - half, mean + half, len(pairs))


def share_of_gap(gap: Gain, gained: Gain, gaps: Sequence[float], gains: Sequence[float]) -> GapClosed:
    """`gained` as a share of `gap`; its spread is taken over seeds, whose values are `gains` and `gaps`."""
    unclear = gap.word in ("worse", "no clear difference")
    if unclear or not gaps or min(gaps) <= 0 or len(gaps) != len(gains):
        return GapClosed(gap, gained, None, None)
    shares = judge(one / whole for one, whole in zip(gains, gaps, strict=True))
    return GapClosed(gap, gained, gained.mean / gap.mean, shares.std if shares else None)


def nothing_gained(gains: Iterable[Gain]) -> bool:
    """Whether several metrics were judged and none shows a gain. One seed says nothing either way."""
    words = {g.word for g in gains}
    return bool(words) and not words & {"better", "one seed only"}
