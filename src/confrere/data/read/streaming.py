"""Encode a file while reading it, so that the whole table is never in memory.

`encode_stream` keeps the records in a file on the disk: for files that are larger than memory. `encode_file` keeps
them in memory: it saves the table, and with it most of the time that the system needs to hand out memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.column_kinds import Translation
from confrere.data.encode.encoder import Earlier, Encoded, RowEncoder, only_class, patients_of
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.read.delimited import Text
from confrere.data.read.sources import is_address
from confrere.data.records import Records
from confrere.data.schema import Schema
from confrere.data.split.date_cut import DateCut

ROWS = 50_000
LARGE = 16 * 1024**2
"""The size, in bytes, from which on it is worth while not to hold the table of a text file."""


class Streamed(Protocol):
    """A source that is read in pieces."""

    @property
    def data(self) -> str | Path | pd.DataFrame: ...

    def translation(self, drop: bool = False, cut: DateCut | None = None) -> Translation:
        """How the source differs from the schema."""

    def pieces(self, schema: Schema, rows: int, tolerant: bool = False) -> Iterator[pd.DataFrame]:
        """Its records in pieces of `rows`; `tolerant` leaves out lines that are not records."""


class _Encoding:
    """The targets and patients of the pieces that were encoded so far."""

    def __init__(self, schema: Schema, rows: RowEncoder) -> None:
        self.schema, self.rows = schema, rows
        self.targets: list[torch.Tensor] = []
        self.patients: list[torch.Tensor] = []
        self.later: list[torch.Tensor] = []

    def take(self, piece: pd.DataFrame) -> NDArray[np.float32]:
        """Encode a piece; its inputs are in the encoder's room."""
        done = self.rows.encode(piece)
        self.targets.append(torch.from_numpy(done.targets))
        if (who := patients_of(done, self.rows.tally)) is not None:
            self.patients.append(who)
        if done.later is not None:
            self.later.append(torch.from_numpy(done.later))
        return done.inputs

    @property
    def count(self) -> int:
        return self.rows.tally.records

    def records(self, inputs: torch.Tensor) -> Records:
        patients, later = (torch.cat(parts) if parts else None for parts in (self.patients, self.later))
        return Records(inputs, torch.cat(self.targets), patients, later)

    def encoded(self, records: Records) -> Encoded:
        tally = self.rows.tally
        words = tally.words(c.name for c in self.schema.columns)
        return Encoded(records, words, tally.lacks, self.rows.earlier.former_ids())


def encode_stream(
    source: Streamed,
    schema: Schema,
    site: str = "",
    *,
    rows: int = ROWS,
    drop: bool = False,
    cut: DateCut | None = None,
) -> Encoded:
    """Encode in pieces of `rows` records; the inputs are in a temporary file.

    Memory holds one piece, the targets and the patients' digests. The file goes when the records do.
    """
    buffer, earlier = _Buffer(rows, int(np.prod(schema.inputs))), Earlier(streams=True)
    translation = replace(source.translation(drop, cut), guess_dates=False)
    found = _Encoding(schema, RowEncoder(schema, translation, EncodingTally(), site, earlier, buffer.again))
    with tempfile.NamedTemporaryFile(prefix="confrere-") as out:
        for piece in source.pieces(schema, rows, drop):
            out.write(found.take(piece).data)
        if not found.count and not drop:
            raise DataError(f"site {site}: no record is left")
        shape = (found.count, *schema.inputs)
        records = found.records(_mapped(out, shape) if found.count else torch.zeros(shape))
    if schema.repeats == "refuse" and records.units is not None and len(earlier.repeated):
        twice = np.isin(records.units.numpy().view(np.uint64), earlier.repeated)
        if twice.any():  # their other records are in later pieces
            found.rows.tally.note(
                "", int(twice.sum()), "record", " of patients with others further on left out"
            )
            records = select_mapped(records, np.flatnonzero(~twice).tolist())
    return found.encoded(records)


def encode_file(
    source: Streamed,
    schema: Schema,
    site: str = "",
    *,
    one_class: bool = True,
    rows: int = ROWS,
    cut: DateCut | None = None,
) -> Encoded | None:
    """Encode a text file while it is read, or None where only its whole table will do.

    That is so where a rule looks at all records at once (the order of day and month in dates, a patient twice) and
    where something is wrong: a message counts it in the whole file.
    """
    earlier, memory = Earlier(), _Buffer(_records(Path(str(source.data))), int(np.prod(schema.inputs)))
    translation = replace(source.translation(cut=cut), guess_dates=False)
    found = _Encoding(schema, RowEncoder(schema, translation, EncodingTally(), site, earlier, memory.more))
    try:
        for piece in source.pieces(schema, rows):
            found.take(piece)
            if len(earlier.repeated):
                return None
    except DataError:
        return None
    if not found.count:
        return None
    inputs = torch.from_numpy(memory.array[: found.count].reshape(found.count, *schema.inputs))
    records = found.records(inputs)
    return None if not one_class and only_class(records, schema) else found.encoded(records)


def worth_while(data: str | Path | pd.DataFrame, limit: int) -> bool:
    """Whether `encode_file` should be tried: a large text file that may be read."""
    if isinstance(data, pd.DataFrame) or is_address(data):
        return False
    path = Path(data)
    return path.suffix.lower() in Text.suffixes and path.is_file() and LARGE <= path.stat().st_size <= limit


def select_mapped(records: Records, indices: Sequence[int], rows: int = ROWS) -> Records:
    """Like `Records.select`, but the chosen inputs go to a file of their own instead of into memory."""
    at = torch.as_tensor(indices, dtype=torch.int64)
    if not len(at):
        return records.select(at)
    with tempfile.NamedTemporaryFile(prefix="confrere-") as out:
        for start in range(0, len(at), rows):
            out.write(records.inputs[at[start : start + rows]].numpy().tobytes())
        inputs = _mapped(out, (len(at), *records.inputs.shape[1:]))
    units = None if records.units is None else records.units[at]
    return Records(inputs, records.targets[at], units, None if records.later is None else records.later[at])


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


def _mapped(file: IO[bytes], shape: tuple[int, ...]) -> torch.Tensor:
    """The content of a file as a tensor that stays on the disk, also after the name of the file has gone."""
    file.flush()
    return torch.from_numpy(np.memmap(file.name, dtype=np.float32, mode="r+", shape=shape))
