"""Fast path for plain numeric columns: encode all columns one block of rows at a time.

Large temporary arrays cost more in memory traffic than the arithmetic does, and many calls on short arrays cost
more than either: a block holds all columns and fits into the processor's cache. Whatever is not plain (an
implausible value, a missing code, another unit) is left to the careful way, which can name the line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.data.column_kinds import Column

CELLS = 131_072
"""How many numbers a block holds: 1 MB."""
Scale = Callable[[NDArray[np.float64], Column], NDArray[np.float64]]


@dataclass
class Plain:
    """A column of the quick way: its numbers, where it goes, and how many gaps were met."""

    column: Column
    numbers: NDArray[Any]
    start: int
    gaps: int = 0
    strange: bool = False


def plain(frame: pd.DataFrame, column: Column, start: int) -> Plain | None:
    """The column, if it qualifies. Each column that is taken out of the frame copies its `attrs`: it should have none."""
    if not column.traits.only_scales or column.missing or column.range is None:
        return None
    if column.name not in frame.columns:
        return None
    values = frame[column.name].to_numpy()
    if values.dtype not in (np.dtype(np.float64), np.dtype(np.int64)):
        return None
    return Plain(column, values, start)


def fill(columns: Sequence[Plain], inputs: NDArray[np.float32], scale: Scale, limit: float) -> None:
    """Encode into `inputs`; a column with a strange value is marked, and encoded by the slow path.

    The arithmetic is that of `scale`, for all columns at once: (value − centre) / half-width, within ±`limit`.
    """
    if not columns:
        return
    rule = _Rule.of(columns, scale)
    rows = max(64, CELLS // len(columns))
    numbers = np.empty((len(columns), min(rows, len(inputs))))
    for first in range(0, len(inputs), rows):
        into = inputs[first : first + rows]
        block = numbers[:, : len(into)]
        for i, one in enumerate(columns):
            block[i] = one.numbers[first : first + rows]
        _block(columns, rule, block, into, limit)


@dataclass(frozen=True)
class _Rule:
    """What the schema says of each column, one row each, so that it applies to a whole block."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centre: NDArray[np.float64]
    half: NDArray[np.float64]
    typical: NDArray[np.float64]
    starts: NDArray[np.intp]
    """Where the value of each column goes."""
    indicators: NDArray[np.intp]
    """Where its indicator of missing values goes, for the columns in `indicated`."""
    indicated: NDArray[np.intp]
    marked: NDArray[np.intp]
    """The columns that are marked as high and low."""
    logs: tuple[int, ...]

    @staticmethod
    def of(columns: Sequence[Plain], scale: Scale) -> _Rule:
        known = [p.column for p in columns]
        ranges = np.array([c.range or (-np.inf, np.inf) for c in known], dtype=np.float64)
        logs = [i for i, c in enumerate(known) if c.scale == "log"]
        bounds = np.array([c.bounds for c in known], dtype=np.float64)
        bounds[logs] = np.log(bounds[logs])
        typical = np.zeros(len(known))
        for i, c in enumerate(known):
            if c.typical is not None:
                typical[i] = scale(np.array([float(c.typical)]), c)[0]
        indicated = [i for i, c in enumerate(known) if c.has_indicator]
        return _Rule(
            ranges[:, 0],
            ranges[:, 1],
            (bounds[:, :1] + bounds[:, 1:]) / 2,
            (bounds[:, 1:] - bounds[:, :1]) / 2,
            typical,
            np.array([p.start for p in columns], dtype=np.intp),
            np.array([columns[i].start + len(known[i].features) - 1 for i in indicated], dtype=np.intp),
            np.array(indicated, dtype=np.intp),
            np.array([i for i, c in enumerate(known) if c.marks], dtype=np.intp),
            tuple(logs),
        )


def _block(
    columns: Sequence[Plain],
    rule: _Rule,
    block: NDArray[np.float64],
    into: NDArray[np.float32],
    limit: float,
) -> None:
    fits = (block.min(axis=1) >= rule.low) & (block.max(axis=1) <= rule.high)  # never with a gap: it is NaN
    gaps = {int(i): np.isnan(block[i]) for i in np.flatnonzero(~fits)}
    for i, empty in gaps.items():
        outside = (block[i] < rule.low[i]) | (block[i] > rule.high[i])
        columns[i].strange |= bool(outside.any())
        columns[i].gaps += int(np.count_nonzero(empty))
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in rule.logs:
            np.log(block[i], out=block[i])
    block -= rule.centre
    block /= rule.half
    np.clip(block, -limit, limit, out=block)
    for i, empty in gaps.items():
        block[i][empty] = rule.typical[i]
    into[:, rule.starts] = block.T
    into[:, rule.starts[rule.marked] + 1] = block[rule.marked].T > 1.0
    into[:, rule.starts[rule.marked] + 2] = block[rule.marked].T < -1.0
    into[:, rule.indicators] = 0.0
    at = dict(zip(rule.indicated.tolist(), rule.indicators.tolist(), strict=True)) if gaps else {}
    for i, empty in gaps.items():
        if i in at:
            into[:, at[i]] = empty
