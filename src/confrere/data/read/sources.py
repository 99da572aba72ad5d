"""Choose the reader for a file or address, with the options that a study sets.

A data source is a class with the suffixes of its files, or the schemes of its addresses (`scheme://…`). A file in this
folder is found without being listed anywhere; installed packages use the entry-point group `confrere.data_sources`,
which names an instance.

    @data_source("feather")
    class Feather(DataSource):
        suffixes = (".feather",)

        def read(self, source, how):
            return checked(pd.read_feather(source), Path(source))
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import pandas as pd

from confrere.core.errors import DataError
from confrere.core.registry import Registry
from confrere.data.read.folders import classes_table, label_file, size_of
from confrere.data.read.table_origin import NoRecords, TableOrigin

LIMIT = 2 * 1024**3
"""The largest file, in bytes, that is read into memory without being asked twice."""


@dataclass(frozen=True)
class ReadOptions:
    """What a study states about the way in which records are written; a source uses what concerns it."""

    query: str = ""
    delimiter: str = ""
    encoding: str = ""
    decimal: str = ""
    sheet: str = ""
    columns: list[str] | None = None
    numbers: Sequence[str] | None = None
    """The number columns of a text file. Where they are stated, the fields of all other columns stay as written, and no
    field is read differently because of another one; otherwise pandas infers the type of each column."""
    limit: int = LIMIT
    """The most that may be read into memory, in bytes."""
    tolerant: bool = False
    """Leave out lines of a text file that are not records."""


AS_FOUND = ReadOptions()
"""Nothing is stated: a source finds out what it can."""


class DataSource(ABC):
    """A way to read records. It has no state."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Of files, in lower case, with the dot."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """Of addresses, without `://`."""

    @abstractmethod
    def read(self, source: str | Path, how: ReadOptions) -> pd.DataFrame:
        """All records; a file exists and is within the limit."""

    def pieces(self, source: str | Path, how: ReadOptions, rows: int) -> Iterator[pd.DataFrame]:
        """The records in pieces; a source that cannot stream reads all of them and cuts them up."""
        return slices(self.read(source, how), rows)


data_sources: Registry[DataSource] = Registry(
    "data source", "confrere.data_sources", package="confrere.data.read"
)

S = TypeVar("S", bound=type[DataSource])


def data_source(name: str) -> Callable[[S], S]:
    """Class decorator: register a data source."""
    return data_sources.register_instance(name)


def is_address(source: object) -> bool:
    """Whether this is `scheme://…` instead of a path."""
    return "://" in str(source)


def source_of(source: str | Path) -> DataSource:
    """The reader of an address or a file; by default an SQL database and a text file."""
    if is_address(source):
        scheme = str(source).partition("://")[0].lower()
        return next((s for s in data_sources.values() if scheme in s.schemes), data_sources["sql"])
    suffix = Path(source).suffix.lower()
    return next((s for s in data_sources.values() if suffix in s.suffixes), data_sources["text"])


def read(source: str | Path | pd.DataFrame, how: ReadOptions = AS_FOUND) -> pd.DataFrame:
    """The records of a file, a database query or a frame.

    What had to be found out about the file, such as its encoding, is noted in `frame.attrs["notes"]`.
    """
    if isinstance(source, pd.DataFrame):
        if source.empty:
            raise DataError("the table has no record")
        return source
    found = _located(source, how.limit)
    return found if isinstance(found, pd.DataFrame) else source_of(found).read(found, how)


def chunks(source: str | Path, rows: int = 100_000, how: ReadOptions = AS_FOUND) -> Iterator[pd.DataFrame]:
    """The records of a file in pieces, for files that do not fit into memory."""
    found = _located(source, limit=1 << 62)
    if isinstance(found, pd.DataFrame):
        return slices(found, rows)
    return source_of(found).pieces(found, how, rows)


def _located(source: str | Path, limit: int) -> str | Path | pd.DataFrame:
    """An address, a file that is there, or the table of a folder of pictures."""
    if is_address(source):
        return str(source)
    if Path(source).is_dir():
        found = _folder(Path(source), limit)
        if isinstance(found, pd.DataFrame):
            return found
        source = found
    return existing(source, limit)


def _folder(folder: Path, limit: int) -> Path | pd.DataFrame:
    """The file in a folder of pictures that labels them, or a table of its sub-folders."""
    _require_size(folder.name, size_of(folder), limit)
    return label_file(folder) or classes_table(folder)


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
            "Is it the right one? To read it piece by piece from the disk, set stream = true; "
            "to read it whole, raise limit_mb."
        )


def slices(frame: pd.DataFrame, rows: int) -> Iterator[pd.DataFrame]:
    """A table in pieces; its notes come with the first."""
    for start in range(0, len(frame), rows):
        piece = frame.iloc[start : start + rows]
        piece.attrs = dict(frame.attrs) if start == 0 else {**frame.attrs, "notes": []}
        yield piece


def exact(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of Python objects as types that hold each value as it is, whatever else is in the column.

    Whole numbers with gaps are not turned into floating-point numbers, which would change large ids.
    """
    types = {"integer": "Int64", "floating": "float64", "boolean": "boolean", "datetime": "datetime64[us]"}
    for name in [name for name in frame.columns if pd.api.types.is_object_dtype(frame[name])]:
        kind = pd.api.types.infer_dtype(frame[name], skipna=True)
        if kind in ("mixed-integer-float", "decimal") and (frame[name].dropna().abs() <= 2**53).all():
            kind = "floating"
        if kind in types:
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                frame[name] = frame[name].astype(pd.api.types.pandas_dtype(types[kind]))
    return frame


def checked(frame: pd.DataFrame, path: Path, header: int = 0) -> pd.DataFrame:
    """A table that was read from a file: with distinct column names, at least one record, and its origin."""
    frame.columns = pd.Index([str(c).strip() for c in frame.columns])
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{path.name}: the column name {twice[0]!r} is there twice; rename one of them")
    frame = TableOrigin(path.name, header=header, path=str(path)).attach(exact(frame))
    if frame.empty:
        raise NoRecords(f"{path.name}: has no record", frame)
    return frame
