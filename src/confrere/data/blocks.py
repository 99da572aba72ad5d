"""The quick way for columns of plain, plausible numbers: a block of records at a time, all columns of it.

Large temporary arrays cost more in memory traffic than the arithmetic does. Whatever is not plain (an
implausible value, a missing code, another unit) is left to the careful way, which can name the line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.data.schema import Column

ROWS = 4096
Scale = Callable[[NDArray[np.float64], Column], NDArray[np.float64]]


@dataclass
class Plain:
    """A column of the quick way: its numbers, where it goes, and how many gaps were met."""

    column: Column
    numbers: NDArray[np.float64]
    start: int
    gaps: int = 0
    strange: bool = False


def plain(frame: pd.DataFrame, column: Column, start: int) -> Plain | None:
    """The column, if it qualifies."""
    if column.kind != "number" or column.missing or column.range is None or column.name not in frame.columns:
        return None
    values = frame[column.name].to_numpy()
    if values.dtype not in (np.dtype(np.float64), np.dtype(np.int64)):
        return None
    return Plain(column, np.asarray(values, dtype=np.float64), start)


def fill(columns: list[Plain], inputs: NDArray[np.float32], scale: Scale) -> None:
    """Encode into `inputs`; a column with a strange value is marked so and has to be done carefully."""
    for first in range(0, len(inputs), ROWS):
        rows = inputs[first : first + ROWS]
        for one in columns:
            if not one.strange:
                _block(one, one.numbers[first : first + ROWS], rows, scale)


def _block(one: Plain, numbers: NDArray[np.float64], rows: NDArray[np.float32], scale: Scale) -> None:
    column, at = one.column, one.start
    low, high = column.range or (-np.inf, np.inf)
    fits = (numbers >= low) & (numbers <= high)
    values = scale(numbers, column)
    if not fits.all():
        gaps = np.isnan(numbers)
        if not (fits | gaps).all():
            one.strange = True
            return
        one.gaps += int(gaps.sum())
        values[gaps] = 0.0 if column.typical is None else scale(np.array([float(column.typical)]), column)[0]
        if column.has_indicator:
            rows[:, at + len(column.features) - 1] = gaps
    elif column.has_indicator:
        rows[:, at + len(column.features) - 1] = 0.0
    rows[:, at] = values
    if column.marks:
        rows[:, at + 1] = values > 1.0
        rows[:, at + 2] = values < -1.0
