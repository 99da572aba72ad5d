"""A site's own files as frames: CSV, Parquet, Excel, SQL, NumPy, or a frame that is already there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.delimited import Dialect, dialect, read_delimited, stream_delimited
from confrere.data.encode import Encoded, encode, encode_table

__all__ = ["LIMIT", "Encoded", "chunks", "encode", "encode_table", "read"]

LIMIT = 2 * 1024**3
"""The largest file, in bytes, that is read into memory without being asked twice."""
TEXT = (".csv", ".tsv", ".txt", ".dat", ".gz", ".data")


def read(
    source: str | Path | pd.DataFrame,
    *,
    query: str = "",
    delimiter: str = "",
    encoding: str = "",
    decimal: str = "",
    sheet: str = "",
    columns: list[str] | None = None,
    texts: Sequence[str] = (),
    limit: int = LIMIT,
) -> pd.DataFrame:
    """The records of a file, a database query or a frame. `limit` is in bytes.

    `texts` names columns of a text file that are codes and stay as they are written («007» is not 7).

    What had to be found out about the file, such as its encoding, is said in `frame.attrs["notes"]`.
    """
    if isinstance(source, pd.DataFrame):
        if source.empty:
            raise DataError("the table has no record")
        return source
    if "://" in str(source):
        from confrere.data.databases import read_sql

        return read_sql(str(source), query, limit)
    if Path(source).is_dir():
        found = _folder(Path(source), limit)
        if isinstance(found, pd.DataFrame):
            return found
        source = found
    path = existing(source, limit)
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        from confrere.data.binary import read_parquet

        return read_parquet(path, columns)
    if suffix in (".xlsx", ".xlsm"):
        from confrere.data.binary import read_excel

        return read_excel(path, sheet)
    if suffix in (".npz", ".npy"):
        from confrere.data.binary import read_numpy

        return read_numpy(path)
    how = delimited(path, delimiter, encoding, decimal, texts)
    frame = read_delimited(path, how, columns)
    frame.attrs["notes"] = list(how.notes)
    return frame


def _folder(folder: Path, limit: int) -> Path | pd.DataFrame:
    """The file in a folder of pictures that labels them, or a table of its sub-folders."""
    from confrere.data.folders import classes_table, label_file, size_of

    _require_size(folder.name, size_of(folder), limit)
    return label_file(folder) or classes_table(folder)


def delimited(
    path: Path, delimiter: str = "", encoding: str = "", decimal: str = "", texts: Sequence[str] = ()
) -> Dialect:
    """How a text file is written; packed files must be unpacked first."""
    if path.suffix.lower() in (".gz", ".zip", ".bz2", ".xz", ".7z"):
        raise DataError(f"{path.name}: is packed; unpack it first")
    if path.suffix.lower() == ".xls":
        raise DataError(f"{path.name}: is an Excel file of the old kind; save it as .xlsx")
    return dialect(path, delimiter, encoding, decimal, texts)


def existing(source: str | Path, limit: int) -> Path:
    """The path of a file that is there, is a file, and is not larger than expected."""
    path = Path(source)
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if not path.is_file():
        raise DataError(f"{path}: is not a file")
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path.name}: the file is empty")
    _require_size(path.name, size, limit)
    return path


def _require_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise DataError(
            f"{name}: has {size / 1024**2:,.0f} MB where at most {limit / 1024**2:,.0f} MB were expected. "
            "Is it the right one? To read it piece by piece from the disk, say stream = true; "
            "to read it whole, raise limit_mb."
        )


def chunks(
    source: str | Path, rows: int = 100_000, *, quick: bool = False, **how: Any
) -> Iterator[pd.DataFrame]:
    """The records of a file in pieces, for files that do not fit into memory; `quick` as in `stream_delimited`."""
    if "://" in str(source):
        from confrere.data.databases import stream_sql

        yield from stream_sql(str(source), how.get("query", ""), rows)
        return
    if Path(source).is_dir():
        found = _folder(Path(source), limit=1 << 62)
        if isinstance(found, pd.DataFrame):
            yield from _slices(found, rows)
            return
        source = found
    path = existing(source, limit=1 << 62)
    if path.suffix.lower() in (".parquet", ".pq"):
        from confrere.data.binary import stream_parquet

        yield from stream_parquet(path, rows)
    else:
        written = delimited(path, **how)
        for piece in stream_delimited(path, written, rows, quick=quick):
            piece.attrs["notes"] = list(written.notes)
            yield piece


def _slices(frame: pd.DataFrame, rows: int) -> Iterator[pd.DataFrame]:
    for start in range(0, len(frame), rows):
        piece = frame.iloc[start : start + rows]
        piece.attrs = dict(frame.attrs) if start == 0 else {**frame.attrs, "notes": []}
        yield piece
