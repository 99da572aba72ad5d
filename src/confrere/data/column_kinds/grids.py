"""Columns of arrays: images, series (steps × values), bags (members × features) and volumes.

A table names a file for each record (.npy; for a series also a .csv of steps; for a volume also a folder of slices); an
.npz or a DataFrame may hold the numbers themselves. They are scaled by the schema's range. A series or bag that is shorter
than the schema says is padded, and the last channel says what is there.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column, ColumnKind, Encoding, Fields, column_kind
from confrere.data.column_kinds.numbers import scaled
from confrere.data.read.image_files import find_inside, is_picture, load_images, read_image
from confrere.data.read.table_origin import counted, for_each_record, origin_of
from confrere.data.read.values import as_numbers

SUFFIXES = (".npy", ".csv")


class BranchColumn(ColumnKind):
    """An array of a fixed shape for each record."""

    branch = True
    optional = False

    def features(self, column: Column) -> tuple[str, ...]:
        return tuple(f"{column.name}[{i}]" for i in range(math.prod(self.shape(column))))

    def encode(self, fields: Fields) -> Encoding:
        values = self.load(fields)
        return values.reshape(len(values), -1), np.zeros(len(values), dtype=bool)

    @abstractmethod
    def load(self, fields: Fields) -> NDArray[np.float32]:
        """The arrays of all records."""


@column_kind("image")
class ImageColumn(BranchColumn):
    """Channels, height and width; values from 0 to 1."""

    def shape(self, column: Column) -> tuple[int, ...]:
        return (column.channels, *column.size)

    def load(self, fields: Fields) -> NDArray[np.float32]:
        if fields.column.name not in fields.frame.columns:
            raise _absent(fields.frame, fields.column)
        return load_images(fields.frame, fields.column, fields.translation.folder)


class GridColumn(BranchColumn):
    """Numbers in the shape that the schema states, scaled by its range."""

    takes = ("shape",)
    words: ClassVar[str]
    """The dimensions, as an error message names them."""

    def problems(self, column: Column) -> list[str]:
        out = []
        if len(column.shape) != self.words.count(",") + 1 or min(column.shape, default=0) < 1:
            out.append(f"a {column.kind} needs its shape = {self.words}")
        if column.range is None and column.usual is None:
            words = "needs the plausible range of its values: it may not come from the records"
            out.append(f"a {column.kind} {words}")
        return out

    def load(self, fields: Fields) -> NDArray[np.float32]:
        column, tally, name = fields.column, fields.tally, fields.column.name
        out = np.zeros((len(fields.frame), *column.array), dtype=np.float32)
        strange = gaps = 0

        def load(row: int, cell: Any) -> None:
            nonlocal strange, gaps
            values, ready = self._values(cell, column, fields.translation.folder)
            if ready:
                out[row, 0] = values
                return
            values, outside = _within(values, column)
            strange += outside
            gaps += self.fill(out[row], values, column)

        for_each_record(fields.frame, name, _cells(fields.frame, column), load)
        if strange:
            words = "taken as missing" if column.outside == "missing" else "set to the end of the range"
            tally.note(f"{name}: ", strange, "value", f" outside of the range {words}", name)
        if gaps:
            tally.note(f"{name}: ", gaps, "missing value", " put in the middle of the scale", name)
        return out

    @abstractmethod
    def fitting(self, found: NDArray[Any], column: Column) -> NDArray[Any]:
        """The numbers of one record in the column's shape; an error if they do not have it."""

    @abstractmethod
    def fill(self, out: NDArray[np.float32], values: NDArray[np.float64], column: Column) -> int:
        """Put the scaled numbers of one record into `out`; returns how many of them are missing."""

    def slices(self, folder: Path, column: Column) -> NDArray[np.float64]:
        """The numbers of a record that names a folder."""
        raise DataError(f"{folder.name} is a folder; a {column.kind} is a file ({', '.join(SUFFIXES)})")

    def _values(self, cell: Any, column: Column, folder: str) -> tuple[NDArray[np.float64], bool]:
        """The numbers of one record in the column's shape, and whether they are pictures that need no scaling."""
        if isinstance(cell, str) and cell.strip():
            path = find_inside(Path(folder), cell, folders=True)
            return (self.slices(path, column), True) if path.is_dir() else (self._read(path, column), False)
        if not isinstance(cell, np.ndarray | list | tuple):
            suffixes = ", ".join(SUFFIXES)
            raise DataError(f"no {column.kind} is there: neither numbers nor the name of a file ({suffixes})")
        try:
            found = np.asarray(cell, dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError(f"holds no numbers; a {column.kind} is an array of numbers") from None
        return self.fitting(found, column), False

    def _read(self, path: Path, column: Column) -> NDArray[np.float64]:
        try:
            if path.suffix.lower() == ".npy":  # mapped: a small file can claim to be enormous
                found = self.fitting(np.load(path, mmap_mode="r", allow_pickle=False), column)
                return np.array(found, dtype=np.float64)
            if path.suffix.lower() == ".csv":
                table = pd.read_csv(path, header=None).to_numpy(dtype=np.float64)
                return self.fitting(np.atleast_2d(table), column)
        except (ValueError, OSError, EOFError, TypeError) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(f"{path.name} cannot be read as numbers: {line}") from None
        raise DataError(f"{path.name} is neither {' nor '.join(SUFFIXES)}")


@column_kind("series")
class SeriesColumn(GridColumn):
    """Steps and values of a step; one more channel marks the steps that are there."""

    mask = True
    words = "[steps, values]"
    parts: ClassVar[str] = "steps"

    def shape(self, column: Column) -> tuple[int, ...]:
        return (column.shape[0], column.shape[1] + 1)

    def fitting(self, found: NDArray[Any], column: Column) -> NDArray[Any]:
        found = found[:, None] if found.ndim == 1 else found
        most, values = column.shape
        if found.ndim != 2 or found.shape[1] != values:
            raise DataError(f"is {_words(found.shape)}, and the schema says (at most) {most} × {values}")
        if len(found) > most:
            raise DataError(
                f"has {len(found)} {self.parts}, and the schema has room for {most}; widen its shape, or cut it"
            )
        return found

    def fill(self, out: NDArray[np.float32], values: NDArray[np.float64], column: Column) -> int:
        known = ~np.isnan(values)
        there = known.any(axis=1)
        out[: len(values), :-1] = _scaled(values, known, column)
        out[: len(values), -1] = there
        return int((~known[there]).sum())


@column_kind("bag")
class BagColumn(SeriesColumn):
    """Members and features; one more channel marks the members that are there."""

    words = "[members, features]"
    parts = "members"


@column_kind("volume")
class VolumeColumn(GridColumn):
    """One channel of depth, height and width."""

    words = "[depth, height, width]"

    def shape(self, column: Column) -> tuple[int, ...]:
        return (1, *column.shape)

    def fitting(self, found: NDArray[Any], column: Column) -> NDArray[Any]:
        found = found[0] if found.ndim == 4 and len(found) == 1 else found
        if found.shape != column.shape:
            raise DataError(
                f"is a volume of {_words(found.shape)}, and the schema says {_words(column.shape)};"
                " bring all volumes to one size"
            )
        return found

    def fill(self, out: NDArray[np.float32], values: NDArray[np.float64], column: Column) -> int:
        known = ~np.isnan(values)
        out[0] = _scaled(values, known, column)
        return int((~known).sum())

    def slices(self, folder: Path, column: Column) -> NDArray[np.float64]:
        """A folder of pictures, one for each slice, in the order of their names; they are from 0 to 1 already."""
        found = sorted(p for p in folder.iterdir() if p.is_file() and is_picture(p))
        if len(found) != column.shape[0]:
            raise DataError(f"{folder.name} holds {len(found)} slices, and the schema says {column.shape[0]}")
        size = (column.shape[1], column.shape[2])
        return np.stack([read_image(p, size)[0] for p in found]).astype(np.float64)


def _within(values: NDArray[np.float64], column: Column) -> tuple[NDArray[np.float64], int]:
    """The values as the schema handles those outside of its range, and how many of them there are."""
    low, high = column.range or (-np.inf, np.inf)
    outside = (values < low) | (values > high)
    count = int(outside.sum())
    if count and column.outside == "refuse":
        raise DataError(
            f"{values[outside][0]:g} is not within {low:g} … {high:g}"
            f" ({counted(count, 'such value')} in this record);"
            ' correct it, or set outside = "clip" or "missing"'
        )
    if column.outside == "missing":
        return np.where(outside, np.nan, values), count
    return np.clip(values, low, high), count


def _scaled(values: NDArray[np.float64], known: NDArray[np.bool_], column: Column) -> NDArray[np.float64]:
    """The scaled values; a missing one is in the middle of the scale."""
    return np.where(known, scaled(np.where(known, values, 1.0), column), 0.0)


def _absent(frame: pd.DataFrame, column: Column) -> DataError:
    name = origin_of(frame).name
    return DataError(f"{name}: the column {column.name!r} is not there, and the schema asks for it")


def _cells(frame: pd.DataFrame, column: Column) -> list[Any]:
    """What each record has: an array, or the name of a file. A series of single values may come as numbered columns."""
    if column.name in frame.columns:
        return list(frame[column.name])
    numbered = numbered_columns(frame, column.name)
    if not numbered:
        raise _absent(frame, column)
    fields = [Column(n, range=(-1e300, 1e300), missing=column.missing, identifying=False) for n in numbered]
    return list(np.stack([as_numbers(frame, frame[field.name], field) for field in fields], axis=1))


def numbered_columns(frame: pd.DataFrame, name: str) -> list[str]:
    """The columns name0, name1 … as a two-dimensional array in an .npz becomes them."""
    found: list[str] = []
    while f"{name}{len(found)}" in frame.columns:
        found.append(f"{name}{len(found)}")
    return found


def _words(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a single number"
