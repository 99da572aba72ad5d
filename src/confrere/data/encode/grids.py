"""Array-valued columns: series (steps × values), bags (members × features) and volumes.

A table names a file for each record (.npy; for a series also a .csv of steps; for a volume also a folder of slices); an
.npz or a DataFrame may hold the numbers themselves. They are scaled by the schema's range. A series or bag that is shorter
than the schema says is padded, and the last channel says what is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.read.image_files import find_inside, is_picture, read_image
from confrere.data.read.table_origin import counted, for_each_record, origin_of
from confrere.data.read.values import as_numbers
from confrere.data.schema import Column

Scale = Any
SUFFIXES = (".npy", ".csv")


def load_grids(
    frame: pd.DataFrame, column: Column, folder: str, tally: EncodingTally, scale: Scale
) -> NDArray[np.float32]:
    """The numbers of a column, one row for each record."""
    out = np.zeros((len(frame), *column.array), dtype=np.float32)
    cells = _cells(frame, column)
    strange = gaps = 0

    def load(row: int, cell: Any) -> None:
        nonlocal strange, gaps
        values, ready = _values(cell, column, folder)
        if ready:  # slices of a picture are from 0 to 1 already
            out[row, 0] = values
            return
        low, high = column.range or (-np.inf, np.inf)
        outside = (values < low) | (values > high)
        if outside.any() and column.outside == "refuse":
            raise DataError(
                f"{values[outside][0]:g} is not within {low:g} … {high:g}"
                f" ({counted(int(outside.sum()), 'such value')} in this record);"
                ' correct it, or say outside = "clip" or "missing"'
            )
        strange += int(outside.sum())
        values = (
            np.where(outside, np.nan, values) if column.outside == "missing" else np.clip(values, low, high)
        )
        known = ~np.isnan(values)
        scaled = np.where(known, scale(np.where(known, values, 1.0), column), 0.0)
        if column.kind == "volume":
            gaps += int((~known).sum())
            out[row, 0] = scaled
        else:
            there = known.any(axis=1)
            gaps += int((~known[there]).sum())
            out[row, : len(values), :-1] = scaled
            out[row, : len(values), -1] = there

    for_each_record(frame, column.name, cells, load)
    if strange:
        words = "taken as missing" if column.outside == "missing" else "set to the end of the range"
        tally.tell(f"{column.name}: ", strange, "value", f" outside of the range {words}", column.name)
    if gaps:
        tally.tell(f"{column.name}: ", gaps, "missing value", " put in the middle of the scale", column.name)
    return out.reshape(len(frame), -1)


def _cells(frame: pd.DataFrame, column: Column) -> list[Any]:
    """What each record has: an array, or the name of a file. A series of single values may come as numbered columns."""
    if column.name in frame.columns:
        return list(frame[column.name])
    numbered = numbered_columns(frame, column.name)
    if not numbered:
        raise DataError(
            f"{origin_of(frame).name}: the column {column.name!r} is not there, and the schema asks for it"
        )
    fields = [Column(n, range=(-1e300, 1e300), missing=column.missing, identifying=False) for n in numbered]
    return list(np.stack([as_numbers(frame, frame[field.name], field) for field in fields], axis=1))


def numbered_columns(frame: pd.DataFrame, name: str) -> list[str]:
    """The columns name0, name1 … as a two-dimensional array in an .npz becomes them."""
    found: list[str] = []
    while f"{name}{len(found)}" in frame.columns:
        found.append(f"{name}{len(found)}")
    return found


def _values(cell: Any, column: Column, folder: str) -> tuple[NDArray[np.float64], bool]:
    """The numbers of one record in the column's shape, and whether they are pictures that need no scaling."""
    if isinstance(cell, str) and cell.strip():
        path = find_inside(Path(folder), cell, folders=True)
        if path.is_dir():
            return _slices(path, column), True
        return _read(path, column), False
    elif isinstance(cell, np.ndarray | list | tuple):
        try:
            found = np.asarray(cell, dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError(f"holds no numbers; a {column.kind} is an array of numbers") from None
    else:
        raise DataError(
            f"no {column.kind} is there: neither numbers nor the name of a file ({', '.join(SUFFIXES)})"
        )
    return _fitting(found, column), False


def _read(path: Path, column: Column) -> NDArray[np.float64]:
    try:
        if path.suffix.lower() == ".npy":  # mapped: a small file can claim to be enormous
            found = _fitting(np.load(path, mmap_mode="r", allow_pickle=False), column)
            return np.array(found, dtype=np.float64)
        if path.suffix.lower() == ".csv":
            table = pd.read_csv(path, header=None).to_numpy(dtype=np.float64)
            return _fitting(np.atleast_2d(table), column)
    except (ValueError, OSError, EOFError, TypeError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path.name} cannot be read as numbers: {line}") from None
    raise DataError(f"{path.name} is neither {' nor '.join(SUFFIXES)}")


def _slices(folder: Path, column: Column) -> NDArray[np.float64]:
    """A volume as a folder of pictures, one for each slice, in the order of their names."""
    if column.kind != "volume":
        raise DataError(f"{folder.name} is a folder; a {column.kind} is a file ({', '.join(SUFFIXES)})")
    found = sorted(p for p in folder.iterdir() if p.is_file() and is_picture(p))
    if len(found) != column.shape[0]:
        raise DataError(f"{folder.name} holds {len(found)} slices, and the schema says {column.shape[0]}")
    size = (column.shape[1], column.shape[2])
    return np.stack([read_image(p, size)[0] for p in found]).astype(np.float64)


def _fitting(found: NDArray[Any], column: Column) -> NDArray[Any]:
    if column.kind == "volume":
        found = found[0] if found.ndim == 4 and len(found) == 1 else found
        if found.shape != column.shape:
            raise DataError(
                f"is a volume of {_words(found.shape)}, and the schema says {_words(column.shape)};"
                " bring all volumes to one size"
            )
        return found
    found = found[:, None] if found.ndim == 1 else found
    most, values = column.shape
    if found.ndim != 2 or found.shape[1] != values:
        raise DataError(f"is {_words(found.shape)}, and the schema says (at most) {most} × {values}")
    if len(found) > most:
        part = "members" if column.kind == "bag" else "steps"
        raise DataError(
            f"has {len(found)} {part}, and the schema has room for {most}; widen its shape, or cut it"
        )
    return found


def _words(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a single number"
