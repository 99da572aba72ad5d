"""Files that are encoded while they are read, so that their table is never whole in memory.

`encode_stream` keeps the records in a file on the disk: for files that are larger than memory. `encode_file` keeps
them in memory: it saves the table, and with it most of the time that the system needs to hand out memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.encode import NO_ID, Encoded, encode_rows, only_class, patient_numbers, written_names
from confrere.data.records import Records
from confrere.data.schema import Schema
from confrere.data.tables import TEXT, chunks
from confrere.data.tally import Tally
from confrere.data.values import as_text

ROWS = 50_000
LARGE = 16 * 1024**2
"""The size, in bytes, from which on it is worth while not to hold the table of a text file."""


class Streamed(Protocol):
    """What is needed to know of a source that is read in pieces."""

    @property
    def data(self) -> str | Path | pd.DataFrame: ...
    @property
    def query(self) -> str: ...
    @property
    def delimiter(self) -> str: ...
    @property
    def encoding(self) -> str: ...
    @property
    def decimal(self) -> str: ...


def encode_stream(
    source: Streamed,
    schema: Schema,
    site: str = "",
    *,
    rename: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    folder: str = "",
    rows: int = ROWS,
    into: Path | None = None,
) -> Encoded:
    """Encode in pieces of `rows` records; the inputs lie in a file (in `into`, or a temporary folder).

    Memory holds one piece, the targets and the patient numbers. The file goes when the records do.
    """
    buffer = _Buffer(rows, int(np.prod(schema.inputs)))
    tally, targets = Tally(), []
    patients: dict[str, int] = {}
    numbers: list[int] = []
    with tempfile.NamedTemporaryFile(prefix="confrere-", dir=into) as out:
        for piece in _pieces(source, rows, written_names(schema, rename or {})):
            done = encode_rows(
                piece, schema, tally, site, rename=rename, units=units, folder=folder, room=buffer.again
            )
            out.write(done.inputs.data)
            targets.append(torch.from_numpy(done.targets))
            if done.patients is not None:
                numbers += _numbered(done.patients, patients, tally)
        if not tally.records:
            raise DataError(f"site {site}: no record is left")
        mapped = _mapped(out, (tally.records, *schema.inputs))
    who = torch.tensor(numbers, dtype=torch.int64) if schema.patient else None
    return _encoded(Records(mapped, torch.cat(targets), who), schema, tally)


def encode_file(
    source: Streamed,
    schema: Schema,
    site: str = "",
    *,
    rename: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    folder: str = "",
    one_class: bool = True,
    rows: int = ROWS,
) -> Encoded | None:
    """Encode a text file while it is read, or None where only its whole table will do.

    That is so where a rule looks at all records at once (the order of day and month in dates, a patient twice) and
    where something is wrong: a message counts it in the whole file.
    """
    if any(c.kind == "date" or (c.derive and c.derive.how in ("days", "years")) for c in schema.columns):
        return None
    tally, targets, patients, met = Tally(), [], [], []
    memory = _Buffer(_records(Path(str(source.data))), int(np.prod(schema.inputs)))
    kinds: list[bool] = []
    try:
        for piece in _pieces(source, rows, written_names(schema, rename or {}), quick=True):
            own = [pd.api.types.is_numeric_dtype(kind) for kind in piece.dtypes]
            if own != (kinds := kinds or own):
                return None
            done = encode_rows(
                piece, schema, tally, site, rename=rename, units=units, folder=folder, room=memory.more
            )
            targets.append(torch.from_numpy(done.targets))
            if done.patients is not None and done.met is not None:
                if done.met.duplicated().any():
                    return None
                patients.append(done.patients)
                met.append(done.met)
    except DataError:
        return None
    if not tally.records or (met and pd.concat(met).duplicated().any()):
        return None
    who = pd.concat(patients) if patients else None
    inputs = torch.from_numpy(memory.array[: tally.records].reshape(tally.records, *schema.inputs))
    numbers = None if who is None else patient_numbers(who, tally)
    records = Records(inputs, torch.cat(targets), numbers)
    if not one_class and only_class(records, schema):
        return None
    return _encoded(records, schema, tally)


def worth_while(data: str | Path | pd.DataFrame, limit: int) -> bool:
    """Whether `encode_file` should be tried: a large text file that may be read."""
    if isinstance(data, pd.DataFrame) or "://" in str(data):
        return False
    path = Path(data)
    return path.suffix.lower() in TEXT and path.is_file() and LARGE <= path.stat().st_size <= limit


def select_mapped(records: Records, indices: Sequence[int], rows: int = ROWS) -> Records:
    """Like `Records.select`, but the chosen inputs go to a file of their own instead of into memory."""
    at = torch.as_tensor(indices, dtype=torch.int64)
    if not len(at):
        return records.select(at)
    with tempfile.NamedTemporaryFile(prefix="confrere-") as out:
        for start in range(0, len(at), rows):
            out.write(records.inputs[at[start : start + rows]].numpy().tobytes())
        inputs = _mapped(out, (len(at), *records.inputs.shape[1:]))
    return Records(inputs, records.targets[at], None if records.units is None else records.units[at])


class _Buffer:
    """Memory for encoded records that is asked for once and then reused or filled."""

    def __init__(self, rows: int, width: int) -> None:
        self.array: NDArray[np.float32] = np.empty((rows, width), dtype=np.float32)
        self.filled = 0

    def again(self, rows: int) -> NDArray[np.float32]:
        """The same memory for each piece."""
        self.filled = 0
        return self.more(rows)

    def more(self, rows: int) -> NDArray[np.float32]:
        """The memory after what was filled; it grows by half where it does not suffice."""
        start, end = self.filled, self.filled + rows
        if end > len(self.array):
            larger = np.empty((end + end // 2, self.array.shape[1]), dtype=np.float32)
            larger[:start] = self.array[:start]
            self.array = larger
        self.filled = end
        return self.array[start:end]


def _records(path: Path) -> int:
    """About how many records a text file has, from its beginning. Memory that is not filled costs nothing."""
    with path.open("rb") as raw:
        head = raw.read(1 << 20)
    lines = max(head.count(b"\n"), 1)
    fields = 1 + max(head.split(b"\n", 1)[0].count(mark) for mark in (b",", b";", b"\t", b"|"))
    size = path.stat().st_size
    return min(int(size / len(head) * lines * 1.05), size // fields) + 1


def _encoded(records: Records, schema: Schema, tally: Tally) -> Encoded:
    return Encoded(records, tally.words(c.name for c in schema.columns), tally.lacks)


def _mapped(file: IO[bytes], shape: tuple[int, ...]) -> torch.Tensor:
    """The content of a file as a tensor that stays on the disk, also after the name of the file has gone."""
    file.flush()
    return torch.from_numpy(np.memmap(file.name, dtype=np.float32, mode="r+", shape=shape))


def _pieces(source: Streamed, rows: int, texts: Sequence[str], quick: bool = False) -> Iterator[pd.DataFrame]:
    if isinstance(source.data, pd.DataFrame):
        raise DataError("a table that is already in memory cannot be streamed")
    if "://" in str(source.data):
        return chunks(str(source.data), rows, query=source.query)
    how: dict[str, Any] = {
        "delimiter": source.delimiter,
        "encoding": source.encoding,
        "decimal": source.decimal,
        "texts": texts,
        "quick": quick,
    }
    return chunks(source.data, rows, **how)


def _numbered(patients: pd.Series[Any], known: dict[str, int], tally: Tally) -> list[int]:
    """Patient numbers that hold across pieces."""
    ids = as_text(patients)
    if unknown := sum(x is None for x in ids):
        tally.tell("", unknown, "record", NO_ID)
    return [known.setdefault(x if x is not None else f"\0{len(known)}", len(known)) for x in ids]
