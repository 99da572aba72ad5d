"""Tables that are not text: Parquet, Excel, NumPy."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from confrere.core.errors import DataError
from confrere.data.read.sources import DataSource, ReadOptions, checked, data_source
from confrere.data.read.table_origin import some


@data_source("parquet")
class Parquet(DataSource):
    suffixes = (".parquet", ".pq")

    def read(self, source: str | Path, how: ReadOptions) -> pd.DataFrame:
        return read_parquet(Path(source), how.columns)

    def pieces(self, source: str | Path, how: ReadOptions, rows: int) -> Iterator[pd.DataFrame]:
        return stream_parquet(Path(source), rows)


@data_source("excel")
class Excel(DataSource):
    suffixes = (".xlsx", ".xlsm")

    def read(self, source: str | Path, how: ReadOptions) -> pd.DataFrame:
        return read_excel(Path(source), how.sheet)


@data_source("numpy")
class Numpy(DataSource):
    suffixes = (".npz", ".npy")

    def read(self, source: str | Path, how: ReadOptions) -> pd.DataFrame:
        return read_numpy(Path(source))


def read_parquet(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    _need_pyarrow()
    import pyarrow
    from pyarrow import parquet

    try:
        frame = parquet.read_table(path, columns=columns).to_pandas(integer_object_nulls=True)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path.name}: cannot be read as Parquet: {_first_line(error)}") from None
    return checked(frame.reset_index(drop=True), path)


def stream_parquet(path: Path, rows: int) -> Iterator[pd.DataFrame]:
    """Pieces of `rows` records; the index goes on counting."""
    _need_pyarrow()
    import pyarrow
    from pyarrow import parquet

    start = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=rows):
            frame: pd.DataFrame = batch.to_pandas(integer_object_nulls=True)
            frame.index = pd.RangeIndex(start, start + len(frame))
            start += len(frame)
            yield checked(frame, path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path.name}: cannot be read as Parquet: {_first_line(error)}") from None


def read_excel(path: Path, sheet: str = "") -> pd.DataFrame:
    """One sheet; a workbook with several needs its name."""
    try:
        import openpyxl
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError:
        raise DataError(f'{path.name}: Excel files need openpyxl: pip install "confrere[data]"') from None
    try:
        book = openpyxl.load_workbook(path, read_only=True)
        sheets = list(book.sheetnames)
        book.close()
        if sheet and sheet not in sheets:
            raise DataError(f"{path.name}: there is no sheet {sheet!r}; it has {some(sheets)}")
        if not sheet and len(sheets) > 1:
            raise DataError(f"{path.name}: has the sheets {some(sheets)}; say which: sheet = {sheets[0]!r}")
        frame = pd.read_excel(path, sheet_name=sheet or sheets[0], engine="openpyxl", dtype=object)
    except (InvalidFileException, zipfile.BadZipFile, OSError, KeyError, ValueError, EOFError) as error:
        raise DataError(f"{path.name}: cannot be read as an Excel file: {_first_line(error)}") from None
    unnamed = [i for i, c in enumerate(frame.columns) if str(c).startswith("Unnamed:")]
    if unnamed:
        raise DataError(
            f"{path.name}, row 1: column {unnamed[0] + 1} has no name; is the first row a header?"
        )
    return checked(frame, path, header=1)


def read_numpy(path: Path) -> pd.DataFrame:
    """An .npz with one array for each column, or a structured .npy.

    A two-dimensional array becomes numbered columns; one of more dimensions stays as it is, an array for each record.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path.name}: cannot be read as NumPy arrays: {_first_line(error)}") from None
    columns: dict[str, Any] = {}
    if isinstance(loaded, np.ndarray):
        if loaded.dtype.names:
            columns = {name: loaded[name] for name in loaded.dtype.names}
        elif loaded.ndim == 2:
            columns = {f"x{i}": loaded[:, i] for i in range(loaded.shape[1])}
    else:
        with loaded:
            for name in loaded.files:
                try:
                    array = loaded[name]
                except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
                    raise DataError(f"{path.name}, array {name}: {_first_line(error)}") from None
                if array.ndim == 1:
                    columns[name] = array
                elif array.ndim == 2:
                    columns.update({f"{name}{i}": array[:, i] for i in range(array.shape[1])})
                elif array.ndim == 0:
                    raise DataError(
                        f"{path.name}, array {name}: is a single number; a column has one for each record"
                    )
                else:
                    columns[name] = pd.Series(list(array), dtype=object)
    if not columns:
        raise DataError(f"{path.name}: has no columns; save one array for each column with numpy.savez")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shortest = min(lengths, key=lambda n: lengths[n])
        raise DataError(f"{path.name}, array {shortest}: has {lengths[shortest]} records, others have more")
    return checked(pd.DataFrame(columns), path)


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError('Parquet files need pyarrow: pip install "confrere[data]"') from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
