"""CSV and its relatives: any delimiter, any encoding, and a line number for whatever is wrong.

pandas does the parsing. It forgives much in silence (short lines, repeated names, a first column taken for an
index), and that is caught here.
"""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.origin import Origin, some

GAPS = ("", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "NULL", "null")
"""Fields that mean «not known» in any file; a schema adds its own codes."""
DELIMITERS = (",", ";", "\t", "|")
_BOMS = ((b"\xff\xfe\x00\x00", "utf-32"), (b"\x00\x00\xfe\xff", "utf-32"), (b"\xef\xbb\xbf", "utf-8-sig"),
         (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))  # fmt: skip
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written."""

    delimiter: str
    encoding: str
    decimal: str = "."
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """Columns whose fields stay as they are written: «007» is not 7 where it is a code."""
    notes: tuple[str, ...] = ()


def dialect(
    path: Path, delimiter: str = "", encoding: str = "", decimal: str = "", texts: Sequence[str] = ()
) -> Dialect:
    """What was stated, and for the rest what the beginning of the file shows."""
    found = _encoding(path, encoding)
    try:
        with path.open(
            encoding=found.encoding, errors="strict" if encoding else "replace", newline=""
        ) as text:
            head = [line.rstrip("\r\n") for line in itertools.islice(text, 50)]
    except (UnicodeError, LookupError) as error:
        raise DataError(f"{path.name}: cannot be read as {encoding}: {error}") from None
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
    if not decimal:
        cells = [cell for line in lines[1:] for cell in line.split(best)]
        decimal = "," if best != "," and any(_DECIMAL_COMMA.fullmatch(c.strip(' "')) for c in cells) else "."
        if decimal == ",":
            found = replace(found, notes=(*found.notes, "numbers are written with a decimal comma"))
    verbatim = tuple(name for name in names if name in set(texts))
    return replace(found, delimiter=best, decimal=decimal, names=names, texts=verbatim)


def read_delimited(
    path: Path, how: Dialect, columns: list[str] | None = None, rows: int | None = None
) -> pd.DataFrame:
    """The whole file, or its first `rows` records."""
    with _parsing(path, how):
        try:
            frame = pd.read_csv(path, **_options(how, columns), nrows=rows)
        except pd.errors.DtypeWarning:  # some blocks of a column look like numbers and others do not
            frame = pd.read_csv(path, **_options(how, columns), nrows=rows, low_memory=False)
    if not _surely_whole(how, frame):
        _require_whole_lines(path, how, everything=rows is None)
    if frame.empty:
        raise DataError(f"{path.name}: has column names, but no record")
    return _origin(path, how).attach(frame)


def stream_delimited(
    path: Path, how: Dialect, rows: int, columns: list[str] | None = None, quick: bool = False
) -> Iterator[pd.DataFrame]:
    """The file in pieces of `rows` records; the index goes on counting.

    `quick` parses a piece in blocks, for which the system need not hand out memory again and again. A column whose
    blocks are not of one type is refused then: read the whole file.
    """
    seen, whole = 0, True
    options = _options(how, columns) | {"chunksize": rows, "low_memory": quick}
    with _parsing(path, how), pd.read_csv(path, **options) as pieces:
        for piece in pieces:
            seen += len(piece)
            whole = whole and _surely_whole(how, piece)
            yield _origin(path, how).attach(piece)
    if not seen:
        raise DataError(f"{path.name}: has column names, but no record")
    if not whole:
        _require_whole_lines(path, how, everything=True)


def _origin(path: Path, how: Dialect) -> Origin:
    return Origin(path.name, how.delimiter, how.encoding, 1, str(path))


def _options(how: Dialect, columns: list[str] | None) -> dict[str, Any]:
    return {
        "sep": how.delimiter,
        "encoding": how.encoding,
        "decimal": how.decimal,
        "index_col": False,
        "keep_default_na": False,
        "na_values": list(GAPS),
        "usecols": columns,
        "dtype": dict.fromkeys(how.texts, str),
    }


class _parsing:
    """Turns what pandas says, or only warns about, into a DataError with file and line."""

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
            raise DataError(
                f"{name}, line {line}: is not {self.how.encoding}; "
                'say how the file is encoded, for example encoding = "cp1252"'
            ) from None
        if isinstance(
            error, pd.errors.ParserError | pd.errors.ParserWarning | pd.errors.EmptyDataError | csv.Error
        ):
            found = _FIELDS.search(str(error))
            if found:
                raise DataError(
                    f"{name}, line {found[2]}: {found[3]} fields where {found[1]} were expected; "
                    "is a field with a delimiter in it not quoted?"
                ) from None
            if "Length of header" in str(error):
                raise DataError(f"{name}, line 2: more fields than column names") from None
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

    best = max(DELIMITERS, key=agreement)
    return best if agreement(best)[1] else ","


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
                    raise DataError(
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
