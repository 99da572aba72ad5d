"""Where a record came from, so that a message can name the file and the line."""

from __future__ import annotations

import csv
import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

_KEY = "origin"


@dataclass(frozen=True)
class Origin:
    """The source of a frame. `delimiter` is set for delimited text only, where rows have lines."""

    name: str
    delimiter: str = ""
    encoding: str = "utf-8"
    header: int = 1
    path: str = ""

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


def origin_of(frame: pd.DataFrame) -> Origin:
    found: dict[str, Any] | None = frame.attrs.get(_KEY)
    return Origin(**found) if found else Origin("the table")


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
