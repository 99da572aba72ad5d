"""CSV and its relatives: any delimiter, any encoding, and a line number for whatever is wrong.

pandas does the parsing. It forgives much in silence (short lines, repeated names, a first column taken for an
index), and that is caught here.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.read.sources import DataSource, ReadOptions, data_source
from confrere.data.read.table_origin import NoRecords, TableOrigin, some
from confrere.data.read.whole_lines import BadLines, WholeLines

GAPS = ("", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "NULL", "null")
"""Fields that mean «not known» in any file; a schema adds its own codes."""
DELIMITERS = (",", ";", "\t", "|")
USUAL = {".tsv": "\t", ".tab": "\t"}
"""The delimiter of a kind of file; all others have commas. A node uses it unless another one is stated."""
_BOMS = ((b"\xff\xfe\x00\x00", "utf-32"), (b"\x00\x00\xfe\xff", "utf-32"), (b"\xef\xbb\xbf", "utf-8-sig"),
         (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))  # fmt: skip
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_NUMERIC = re.compile(r"[+-]?(?:inf(?:inity)?|[0-9.,e+-]+)", re.IGNORECASE | re.ASCII)
"""What may be a number; the parser decides."""
FLOAT = np.dtype(np.float64)
csv.field_size_limit(2**31 - 1)  # the default of 131,072 characters would let one long field stop a node
_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written."""

    delimiter: str
    encoding: str
    decimal: str = "."
    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] | None = None
    """The number columns; all others stay as written then: «007» is not 7 where it is a code. See `ReadOptions.numbers`."""
    notes: tuple[str, ...] = ()
    skip: bool = False
    """Leave out lines that are not records."""


@data_source("text")
class Text(DataSource):
    """Every file whose suffix no other source has."""

    suffixes = (".csv", ".tsv", ".txt", ".dat", ".gz", ".data")

    def read(self, source: str | Path, how: ReadOptions) -> pd.DataFrame:
        path, written = Path(source), _written(Path(source), how)
        try:
            frame = read_delimited(path, written, how.columns)
        except BadLines:
            if not how.tolerant:
                raise
            return next(_stream_whole_lines(path, written, 0, how.columns))
        frame.attrs["notes"] = list(written.notes)
        return frame

    def pieces(self, source: str | Path, how: ReadOptions, rows: int) -> Iterator[pd.DataFrame]:
        path, written = Path(source), _written(Path(source), how)
        if how.tolerant:
            yield from _stream_whole_lines(path, written, rows)
            return
        for piece in stream_delimited(path, written, rows):
            piece.attrs["notes"] = list(written.notes)
            yield piece


def _written(path: Path, how: ReadOptions) -> Dialect:
    """How a text file is written; packed files must be unpacked first."""
    if path.suffix.lower() in (".gz", ".zip", ".bz2", ".xz", ".7z"):
        raise DataError(f"{path.name}: is packed; unpack it first")
    if path.suffix.lower() == ".xls":
        raise DataError(f"{path.name}: is an Excel file of the old kind; save it as .xlsx")
    return dialect(path, how.delimiter, how.encoding, how.decimal, how.numbers)


def dialect(
    path: Path,
    delimiter: str = "",
    encoding: str = "",
    decimal: str = "",
    numbers: Sequence[str] | None = None,
) -> Dialect:
    """What was stated, and for the rest what the beginning of the file shows."""
    found = _encoding(path, encoding)
    try:
        with path.open(encoding=found.encoding, errors="replace", newline="") as text:
            head = [line.rstrip("\r\n") for line in itertools.islice(text, 50)]
    except (UnicodeError, LookupError) as error:
        raise DataError(
            f"{path.name}: cannot be read as {encoding} ({error}); {_state_encoding(found.encoding)}"
        ) from None
    lines = [line for line in head if line.strip()]
    if not lines:
        raise DataError(f"{path.name}: the file is empty")
    best = delimiter or _delimiter(lines)
    names = _header(path, found.encoding, best)
    if delimiter and len(names) == 1 and (other := _delimiter(lines)) != delimiter and other in lines[0]:
        raise DataError(
            f"{path.name}, line 1: with {delimiter!r} between fields there is one column only; "
            f"the file seems to use {other!r}"
        )
    if not delimiter and best != USUAL.get(path.suffix.lower(), ","):
        guess = f"fields were taken to be separated by {best!r}, a guess: state delimiter = {best!r}"
        found = replace(found, notes=(*found.notes, guess))
    if not decimal:
        cells = (cell.strip(' "') for line in lines[1:] for cell in line.split(best))
        decimal = "," if best != "," and any(map(_DECIMAL_COMMA.fullmatch, cells)) else "."
        if decimal == ",":
            found = replace(found, notes=(*found.notes, "numbers are written with a decimal comma"))
    known = None if numbers is None else set(numbers)
    stated = None if known is None else tuple(name for name in names if name in known)
    return replace(found, delimiter=best, decimal=decimal, names=names, numbers=stated)


def read_delimited(
    path: Path, how: Dialect, columns: list[str] | None = None, rows: int | None = None
) -> pd.DataFrame:
    """The whole file, or its first `rows` records."""
    with _parsing(path, how):
        try:
            frame = pd.read_csv(_text(path, how), **_options(how, columns), nrows=rows)
        except pd.errors.DtypeWarning:  # some blocks of a column look like numbers and others do not
            frame = pd.read_csv(_text(path, how), **_options(how, columns), nrows=rows, low_memory=False)
        except ValueError as error:
            if not _not_a_number(how, error):
                raise
            frame = pd.read_csv(
                _text(path, how), **_options(_numeric_only(path, how, columns), columns), nrows=rows
            )
    if not _surely_whole(how, frame):
        _require_whole_lines(path, how, everything=rows is None)
    frame = _origin(path, how).attach(frame)
    if frame.empty:
        raise NoRecords(f"{path.name}: has column names, but no record", frame)
    return frame


def stream_delimited(path: Path, how: Dialect, rows: int) -> Iterator[pd.DataFrame]:
    """The file in pieces of `rows` records; the index goes on counting."""
    seen, whole = 0, True
    with _parsing(path, how):
        for piece in _parsed_pieces(path, how, rows, None):
            seen += len(piece)
            whole = whole and _surely_whole(how, piece)
            yield _origin(path, how).attach(piece)
    if not seen:
        raise NoRecords(
            f"{path.name}: has column names, but no record",
            _origin(path, how).attach(pd.DataFrame(columns=list(how.names))),
        )
    if not whole:
        _require_whole_lines(path, how, everything=True)


def _stream_whole_lines(
    path: Path, how: Dialect, rows: int, columns: list[str] | None = None
) -> Iterator[pd.DataFrame]:
    """The same without the lines that are not records, which a note counts; `rows` = 0 is all of them in one piece."""
    with _parsing(path, how):
        whole = _whole_lines(path, how).survey()
        how = replace(how, skip=whole.left_out > 0)
        notes = [*how.notes, *([whole.note] if how.skip else [])]
        seen = 0
        for piece in _parsed_pieces(path, how, rows or max(len(whole.numbers), 1), columns):
            piece.index = pd.Index(whole.numbers[seen : seen + len(piece)])
            seen += len(piece)
            piece = _origin(path, how).attach(piece)
            piece.attrs["notes"] = notes
            yield piece
    if seen != len(whole.numbers):
        raise DataError(f"{path.name}: cannot find where records end; check its quotation marks")
    if not seen:
        empty = _origin(path, how).attach(pd.DataFrame(columns=list(how.names)))
        empty.attrs["notes"] = notes
        raise NoRecords(f"{path.name}: has column names, but no record", empty)


def _whole_lines(path: Path, how: Dialect) -> WholeLines:
    return WholeLines(path, how.delimiter, how.encoding, len(how.names))


def _text(path: Path, how: Dialect) -> Path | WholeLines:
    """What the parser reads."""
    return _whole_lines(path, how) if how.skip else path


def _parsed_pieces(path: Path, how: Dialect, rows: int, columns: list[str] | None) -> Iterator[pd.DataFrame]:
    """The pieces; from the first one on in which a field of a number column is not a number, that column is text."""
    # Columns of stated types may be parsed in small blocks, which is quicker; types that are inferred may not.
    options: dict[str, Any] = {"chunksize": rows, "low_memory": how.numbers is not None}
    done = 0
    try:
        with pd.read_csv(_text(path, how), **_options(how, columns), **options) as pieces:
            for piece in pieces:
                done += 1
                yield piece
    except ValueError as error:
        if not _not_a_number(how, error):
            raise
        with pd.read_csv(
            _text(path, how), **_options(_numeric_only(path, how, columns), columns), **options
        ) as pieces:
            yield from itertools.islice(pieces, done, None)


def _numeric_only(path: Path, how: Dialect, columns: list[str] | None, rows: int = 20_000) -> Dialect:
    """The dialect without the number columns that hold something else, which are then read as text.

    Whichever way a column is read, a field comes out as the same number: see `parse_numbers`.
    """
    wanted = [n for n in how.numbers or () if columns is None or n in columns]
    options = {**_options(replace(how, numbers=None), wanted), "chunksize": rows, "low_memory": False}
    numeric = set(wanted)
    with pd.read_csv(_text(path, how), **options) as pieces:
        for piece in pieces:
            numeric -= {n for n, kind in piece.dtypes.items() if kind.kind not in "iuf"}
    return replace(how, numbers=tuple(n for n in wanted if n in numeric))


def parse_numbers(texts: Sequence[str], decimal: str = ".") -> NDArray[np.float64]:
    """The number in each text, NaN where it is none: what the parser of whole columns makes of that field.

    >>> parse_numbers(["1,5", " 2 ", "1.5", "5 mg"], decimal=",").tolist()
    [1.5, 2.0, nan, nan]
    """
    stripped = [text.strip() for text in texts]
    out = np.full(len(stripped), np.nan)
    at = np.array([i for i, text in enumerate(stripped) if _NUMERIC.fullmatch(text)], dtype=np.intp)
    todo = [at] if len(at) else []
    while todo:
        part = todo.pop()
        lines = io.StringIO("\n".join(["number", *(stripped[i] for i in part)]))
        try:
            parsed = pd.read_csv(lines, sep="\t", decimal=decimal, dtype=np.float64, keep_default_na=False)
        except ValueError:
            if len(part) > 1:
                todo += np.array_split(part, 2)
        else:
            out[part] = parsed["number"].to_numpy()
    return out


def _not_a_number(how: Dialect, error: ValueError) -> bool:
    """Whether parsing failed at a field of a number column."""
    return bool(how.numbers) and not isinstance(error, UnicodeError | pd.errors.ParserError)


def _origin(path: Path, how: Dialect) -> TableOrigin:
    return TableOrigin(path.name, how.delimiter, how.encoding, 1, str(path), how.decimal)


def _options(how: Dialect, columns: list[str] | None) -> dict[str, Any]:
    return {
        "sep": how.delimiter,
        "encoding": how.encoding,
        "decimal": how.decimal,
        "index_col": False,
        "keep_default_na": False,
        "na_values": list(GAPS),
        "usecols": columns,
        "dtype": None if how.numbers is None else defaultdict(lambda: str, dict.fromkeys(how.numbers, FLOAT)),
    }


class _parsing:
    """Turns errors and warnings of pandas into a DataError with file and line."""

    def __init__(self, path: Path, how: Dialect) -> None:
        self.path, self.how = path, how
        self.quiet = warnings.catch_warnings()

    def __enter__(self) -> None:
        self.quiet.__enter__()
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("error", pd.errors.DtypeWarning)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.quiet.__exit__(None, None, None)
        name = self.path.name
        if error is None or isinstance(error, DataError):
            return
        if isinstance(error, UnicodeError):
            line = _undecodable(self.path, self.how.encoding)
            raise BadLines(
                f"{name}, line {line}: is not {self.how.encoding}; {_state_encoding(self.how.encoding)}"
            ) from None
        if isinstance(
            error, pd.errors.ParserError | pd.errors.ParserWarning | pd.errors.EmptyDataError | csv.Error
        ):
            found = _FIELDS.search(str(error))
            if found:
                raise BadLines(
                    f"{name}, line {found[2]}: {found[3]} fields where {found[1]} were expected; "
                    "is a field with a delimiter in it not quoted?"
                ) from None
            if "Length of header" in str(error):
                raise BadLines(f"{name}, line 2: more fields than column names") from None
            if "EOF inside string" in str(error):
                line = _unclosed(self.path, self.how)
                raise DataError(f"{name}, line {line}: a quotation mark is opened and never closed") from None
            raise DataError(f"{name}: cannot be read as a table: {str(error).strip()}") from None
        if isinstance(error, ValueError | OverflowError | pd.errors.DtypeWarning):
            raise DataError(f"{name}: cannot be read as a table: {str(error).strip()}") from None


def _unclosed(path: Path, how: Dialect) -> int:
    """The line on which the last record begins: it is the one that an open quotation mark makes too long."""
    with path.open(encoding=how.encoding, errors="replace", newline="") as text:
        reader = csv.reader((x.replace("\0", "") for x in text), delimiter=how.delimiter)
        starts, begins = 1, 1
        try:
            for _ in reader:
                starts, begins = begins, reader.line_num + 1
        except csv.Error:  # the field is longer than the reader takes
            return begins
    return starts


def _state_encoding(wrong: str) -> str:
    """What to do about a file that is not written in the encoding that was stated or found."""
    other = "latin-1" if wrong == "cp1252" else "cp1252"
    return f'state how the file is encoded, for example encoding = "{other}"'


def _encoding(path: Path, stated: str) -> Dialect:
    if stated:
        return Dialect("", stated)
    with path.open("rb") as raw:
        head = raw.read(1 << 20)
    for mark, name in _BOMS:
        if head.startswith(mark):
            return Dialect("", name)
    if _undecodable(path, "utf-8"):
        return Dialect(
            "", "cp1252", notes=("the file is not UTF-8 and was read as cp1252 (Windows, Western)",)
        )
    return Dialect("", "utf-8")


def _undecodable(path: Path, encoding: str) -> int:
    """The first line that cannot be decoded, or 0."""
    if encoding.startswith("utf-8"):
        import codecs

        with path.open("rb") as raw:
            decoder, start = codecs.getincrementaldecoder("utf-8")(), 0
            while block := raw.read(1 << 20):
                if not block.isascii() or decoder.getstate()[0]:
                    try:
                        decoder.decode(block)
                    except UnicodeDecodeError as error:
                        return _line_at(path, start + error.start)
                start += len(block)
            return _line_at(path, start) if decoder.getstate()[0] else 0
    with path.open(encoding=encoding, newline="") as text:
        line = 0
        try:
            for line, _ in enumerate(text, start=1):  # noqa: B007
                pass
        except UnicodeError:
            return line + 1
    return 0


def _line_at(path: Path, position: int) -> int:
    """The line of the file that holds the byte at this position."""
    with path.open("rb") as raw:
        return 1 + sum(
            raw.read(min(1 << 20, position - at)).count(b"\n") for at in range(0, position, 1 << 20)
        )


def _delimiter(lines: list[str]) -> str:
    """The delimiter that cuts most lines into as many fields as the header has."""

    def agreement(delimiter: str) -> tuple[float, int]:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            return (0.0, 0)
        if not widths or widths[0] < 2:
            return (0.0, 0)
        return (widths.count(widths[0]) / len(widths), widths[0])

    found = {d: agreement(d) for d in DELIMITERS if d in lines[0]}
    return max((d for d in found if found[d][1]), key=lambda d: found[d], default=",")


def _header(path: Path, encoding: str, delimiter: str) -> tuple[str, ...]:
    with path.open(encoding=encoding, errors="replace", newline="") as text:
        try:
            names = next((row for row in csv.reader(text, delimiter=delimiter) if row), [])
        except (csv.Error, UnicodeError, TypeError) as error:
            raise DataError(f"{path.name}, line 1: the column names cannot be read: {error}") from None
    names = [name.strip() for name in names]
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        raise DataError(
            f"{path.name}, line 1: the column name {some(twice)} is there twice; rename one of them"
        )
    if "" in names:
        raise DataError(
            f"{path.name}, line 1: column {names.index('') + 1} has no name; is the first line a header?"
        )
    return tuple(names)


def _surely_whole(how: Dialect, frame: pd.DataFrame) -> bool:
    """Whether every line had all its fields, as far as the frame can tell: its last column is full."""
    return len(how.names) < 2 or (len(frame.columns) == len(how.names) and not frame.iloc[:, -1].isna().any())


def _require_whole_lines(path: Path, how: Dialect, everything: bool) -> None:
    """Refuse lines with too few fields, which pandas fills up in silence."""
    if everything and _counts_agree(path, how):
        return
    with path.open(encoding=how.encoding, errors="replace", newline="") as text:
        reader = csv.reader((x.replace("\0", "") for x in text), delimiter=how.delimiter)
        try:
            for fields in reader:
                if fields and len(fields) < len(how.names) and not _blank(fields):
                    raise BadLines(
                        f"{path.name}, line {reader.line_num}: {len(fields)} fields "
                        f"where {len(how.names)} were expected"
                    )
        except csv.Error as error:
            raise DataError(f"{path.name}, line {reader.line_num}: {error}") from None


def _blank(fields: list[str]) -> bool:
    return len(fields) == 1 and not fields[0].strip()


def _counts_agree(path: Path, how: Dialect) -> bool:
    """Whether a file without quotation marks has exactly the delimiters that full lines would have."""
    if how.encoding not in ("utf-8", "utf-8-sig", "cp1252", "latin-1", "ascii"):
        return False
    delimiters = lines = 0
    mark, last = how.delimiter.encode(), b"\n"
    with path.open("rb") as raw:
        while block := raw.read(1 << 24):
            if b'"' in block:
                return False
            delimiters += block.count(mark)
            lines += block.count(b"\n")
            last = block[-1:]
    lines += last != b"\n"
    return delimiters == lines * (len(how.names) - 1)
