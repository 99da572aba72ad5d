"""Files that are larger than memory: encoded piece by piece into a file that training reads from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pandas as pd
import torch

from confrere.core.errors import DataError
from confrere.data.encode import Encoded, encode_table, written_names
from confrere.data.records import Records
from confrere.data.schema import Schema
from confrere.data.tables import chunks
from confrere.data.values import as_text

ROWS = 50_000


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
    width = int(np.prod(schema.inputs))
    targets: list[torch.Tensor] = []
    patients: dict[str, int] = {}
    numbers: list[int] = []
    notes: dict[str, None] = {}
    lacks: dict[str, None] | None = None
    count = 0
    with tempfile.NamedTemporaryFile(prefix="confrere-", dir=into) as out:
        for piece in _pieces(source, rows, written_names(schema, rename or {})):
            encoded = encode_table(piece, schema, site, rename=rename, units=units, folder=folder)
            records = encoded.records
            out.write(records.inputs.reshape(len(records), width).numpy().tobytes())
            targets.append(records.targets)
            count += len(records)
            notes.update(dict.fromkeys(f"records {piece.index[0] + 1} on: {n}" for n in encoded.notes))
            lacks = dict.fromkeys(c for c in encoded.lacks if lacks is None or c in lacks)
            if schema.patient:
                numbers += _numbered(piece, schema, records, patients)
        if not count:
            raise DataError(f"site {site}: no record is left")
        mapped = _mapped(out, (count, *schema.inputs))
    units_ = torch.tensor(numbers, dtype=torch.int64) if schema.patient else None
    return Encoded(Records(mapped, torch.cat(targets), units_), tuple(notes), tuple(lacks or ()))


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


def _mapped(file: IO[bytes], shape: tuple[int, ...]) -> torch.Tensor:
    """The content of a file as a tensor that stays on the disk, also after the name of the file has gone."""
    file.flush()
    return torch.from_numpy(np.memmap(file.name, dtype=np.float32, mode="r+", shape=shape))


def _pieces(source: Streamed, rows: int, texts: Sequence[str]) -> Iterator[pd.DataFrame]:
    if isinstance(source.data, pd.DataFrame):
        raise DataError("a table that is already in memory cannot be streamed")
    if "://" in str(source.data):
        return chunks(str(source.data), rows, query=source.query)
    how: dict[str, Any] = {
        "delimiter": source.delimiter,
        "encoding": source.encoding,
        "decimal": source.decimal,
        "texts": texts,
    }
    return chunks(source.data, rows, **how)


def _numbered(piece: pd.DataFrame, schema: Schema, records: Records, known: dict[str, int]) -> list[int]:
    """Patient numbers that hold across pieces."""
    ids = as_text(piece[schema.patient])
    if len(ids) != len(records):
        raise DataError(
            "records that are dropped while streaming cannot be matched to patients; clean the file"
        )
    return [known.setdefault(x if x is not None else f"\0{len(known)}", len(known)) for x in ids]
