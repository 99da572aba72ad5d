"""Where a record came from, so that a message can name the file and the line."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import ConfrereError, DataError

_KEY = "origin"
T = TypeVar("T")


class BadRows(DataError):
    """Some records do not fit the schema. The message names the place of the first; `labels` are the index labels of all.

    `rows` is a mask, or the positions of the records.
    """

    def __init__(
        self, frame: pd.DataFrame, rows: NDArray[np.bool_] | list[int], column: str, words: str
    ) -> None:
        first = rows[0] if isinstance(rows, list) else int(np.flatnonzero(rows)[0])
        super().__init__(f"{place(frame, first, column)}: {words}")
        self.labels: pd.Index[Any] = frame.index[rows]


class NoRecords(DataError):
    """A table that can be read and has no record; `frame` has its columns."""

    def __init__(self, message: str, frame: pd.DataFrame) -> None:
        super().__init__(message)
        self.frame = frame


@dataclass(frozen=True)
class TableOrigin:
    """The source of a frame. `delimiter` is set for delimited text only, where rows have lines.

    `decimal` is the mark before the decimals of numbers that the frame holds as text.
    """

    name: str
    delimiter: str = ""
    encoding: str = "utf-8"
    header: int = 1
    path: str = ""
    decimal: str = "."

    def attach(self, frame: pd.DataFrame) -> pd.DataFrame:
        frame.attrs[_KEY] = asdict(self)
        return frame

    def line(self, row: int) -> int:
        """The line of the file on which the record with this number starts; fields may span lines."""
        with Path(self.path).open(encoding=self.encoding, errors="replace", newline="") as text:
            reader = csv.reader((x.replace("\0", "") for x in text), delimiter=self.delimiter)
            before = 0
            seen = -1 - self.header
            for fields in reader:
                if fields:
                    seen += 1
                    if seen == row:
                        return before + 1
                before = reader.line_num
        return before


def origin_of(frame: pd.DataFrame) -> TableOrigin:
    found: dict[str, Any] | None = frame.attrs.get(_KEY)
    return TableOrigin(**found) if found else TableOrigin("the table")


def place(frame: pd.DataFrame, position: int, column: str = "") -> str:
    """«a.csv, line 12, column TSH» for the record at this position of the frame."""
    origin = origin_of(frame)
    label = frame.index[position]
    row = int(label) if isinstance(label, int) or hasattr(label, "__index__") else position
    if origin.delimiter:
        try:
            where = f"line {origin.line(row)}"
        except (OSError, csv.Error):
            where = f"record {row + 1}"
    else:
        where = f"row {row + 1 + origin.header}" if origin.path.endswith(".xlsx") else f"record {row + 1}"
    return ", ".join(x for x in (origin.name, where, f"column {column}" if column else "") if x)


def for_each_record(
    frame: pd.DataFrame, column: str, cells: Iterable[Any], read: Callable[[int, Any], None]
) -> None:
    """Call `read` with the position and the cell of each record. Whatever it raises is an error of that record."""
    bad: dict[int, Exception] = {}
    for row, cell in enumerate(cells):
        try:
            read(row, cell)
        except Exception as error:
            bad[row] = error
    if bad:
        raise BadRows(frame, list(bad), column, _in_words(next(iter(bad.values()))))


def with_bad_rows(frame: pd.DataFrame, column: str, read: Callable[[pd.DataFrame], T]) -> T:
    """What `read` makes of the frame; an unexpected error becomes `BadRows` with the records that cause it.

    An error that an empty table causes as well, or no record by itself, concerns the whole file and stays as it is.
    """
    try:
        return read(frame)
    except ConfrereError:
        raise
    except Exception as error:
        read(frame.iloc[:0])
        bad = _failing(frame, read)
        if not bad:
            raise
        raise BadRows(frame, bad, column, _in_words(error)) from None


def _failing(frame: pd.DataFrame, read: Callable[[pd.DataFrame], object], start: int = 0) -> list[int]:
    """The positions of the records that cannot be read by themselves, found by halving."""
    try:
        read(frame)
    except Exception:
        if len(frame) == 1:
            return [start]
        half = len(frame) // 2
        return _failing(frame.iloc[:half], read, start) + _failing(frame.iloc[half:], read, start + half)
    return []


def _in_words(error: Exception) -> str:
    if isinstance(error, ConfrereError):
        return str(error)
    text = (error.strerror if isinstance(error, OSError) else "") or str(error)
    cause = ": ".join([type(error).__name__, *text.strip().splitlines()[:1]])
    return f"cannot be read ({cause}); correct the record or remove it"


def some(values: list[str], limit: int = 5) -> str:
    """A few of them, in words.

    >>> some(["a", "b"]), some(list("abcdefg"))
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    shown = ", ".join(repr(v) for v in itertools.islice(values, limit))
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"


def counted(n: int, thing: str) -> str:
    """A number with its noun.

    >>> counted(1, "record"), counted(5493, "record")
    ('1 record', '5,493 records')
    """
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"
