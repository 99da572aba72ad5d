"""Read a delimited file without its malformed lines: those with too many or too few fields, or bytes that are not text.

A node reads a file with such lines this way. A quotation mark that is opened and never closed makes all that
follows one field: where its record ends cannot be told, so the file is refused.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from confrere.core.errors import DataError
from confrere.data.read.table_origin import counted

_UNDECODED = re.compile("[\udc80-\udcff]")
"""What «surrogateescape» makes of bytes that the encoding does not have."""


class BadLines(DataError):
    """Some lines of a delimited file are not records; the message names the first."""


class WholeLines(io.TextIOBase):
    """The text of the header and of all whole records, as they are in the file."""

    def __init__(self, path: Path, delimiter: str, encoding: str, width: int) -> None:
        self.path, self.delimiter, self.written_as, self.width = path, delimiter, encoding, width
        self.numbers: list[int] = []
        """The records that were read so far, as they are numbered in the file."""
        self.left_out = 0
        self.first = ""
        self._texts = self._whole()
        self._ahead = ""

    def survey(self) -> WholeLines:
        """Read to the end."""
        for _ in self._texts:
            pass
        return self

    @property
    def note(self) -> str:
        return (
            f"{counted(self.left_out, 'record')} left out, not a whole line of text; the first: {self.first}"
        )

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> str:
        limit = -1 if size is None else size
        parts, length = [self._ahead], len(self._ahead)
        while limit < 0 or length < limit:
            if (text := next(self._texts, None)) is None:
                break
            parts.append(text)
            length += len(text)
        found = "".join(parts)
        end = length if limit < 0 else limit
        self._ahead = found[end:]
        return found[:end]

    def _whole(self) -> Iterator[str]:
        number, start = -2, 1  # the header is record −1
        lines: list[str] = []
        with self.path.open(encoding=self.written_as, errors="surrogateescape", newline="") as file:
            reader = csv.reader(_kept(file, lines), delimiter=self.delimiter)
            try:
                for fields in reader:
                    text = "".join(lines)
                    lines.clear()
                    number += bool(fields)
                    if not text.strip():
                        pass
                    elif problem := self._problem(text, fields):
                        self.first = self.first or f"{self.path.name}, line {start}: {problem}"
                        self.left_out += 1
                    else:
                        self.numbers += [number] * (number >= 0)
                        yield text
                    start = reader.line_num + 1
            except csv.Error as error:
                raise DataError(f"{self.path.name}, line {start}: {error}") from None

    def _problem(self, text: str, fields: list[str]) -> str:
        if len(fields) != self.width:
            return f"{counted(len(fields), 'field')} where {self.width} were expected"
        return f"is not {self.written_as}" if not text.isascii() and _UNDECODED.search(text) else ""


def _kept(file: io.TextIOBase | io.TextIOWrapper, lines: list[str]) -> Iterator[str]:
    """The lines as a CSV reader takes them; `lines` holds those of the record that it is in."""
    for line in file:
        lines.append(line)
        yield line.replace("\0", "")
    if lines:
        raise csv.Error("a quotation mark is opened and never closed")
