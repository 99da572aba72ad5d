"""Count what happened to records during encoding; counts of file chunks can be added."""

from __future__ import annotations

from collections.abc import Iterable

from confrere.data.read.table_origin import counted

_Sentence = tuple[str, str, str]


class EncodingTally:
    """Plain words about records, and the columns that have no value. Both count records: PRIVATE.

    >>> tally = EncodingTally()
    >>> for piece in (3, 4):
    ...     tally.note("TSH: ", piece, "impossible value", " taken as missing", column="TSH")
    >>> tally.words(["TSH"])
    ('TSH: 7 impossible values taken as missing',)
    """

    def __init__(self) -> None:
        self.records = 0
        self._notes: dict[str, dict[_Sentence, int]] = {}
        self._gaps: dict[str, int] = {}
        self._imputed: set[str] = set()
        self._empty: dict[str, bool] = {}

    def note(self, before: str, count: int = 0, thing: str = "", after: str = "", column: str = "") -> None:
        """Add a sentence; where it counts a `thing`, the counts of the same sentence add up."""
        notes = self._notes.setdefault(column, {})
        sentence = (before, thing, after)
        notes[sentence] = notes.get(sentence, 0) + int(count)

    def take(self, other: EncodingTally) -> None:
        """Go on from what another tally, begun as a copy of this one, has counted."""
        self.__dict__.update(other.__dict__)

    def missing(self, name: str, gaps: int, *, here: bool, imputed: bool) -> None:
        """How many values of a column are missing in these records, whether the column is there at all, and whether
        missing values are imputed."""
        self._gaps[name] = self._gaps.get(name, 0) + gaps
        self._empty[name] = here
        if imputed:
            self._imputed.add(name)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Columns that are not there, or have no value in any record."""
        return tuple(name for name, gaps in self._gaps.items() if 0 < gaps == self.records)

    def words(self, columns: Iterable[str] = ()) -> tuple[str, ...]:
        """The sentences: first those about all records, then column by column."""
        out = self._sentences("")
        for name in columns:
            out += self._sentences(name)
            gaps = self._gaps.get(name, 0)
            if 0 < gaps < self.records and name in self._imputed:
                out.append(f"{name}: {gaps:,} of {self.records:,} values missing and imputed")
            elif 0 < gaps == self.records and self._empty[name]:
                out.append(f"{name} has no value here: every value is marked missing")
        return tuple(out)

    def _sentences(self, column: str) -> list[str]:
        notes = self._notes.get(column, {})
        return [
            f"{before}{counted(count, thing) if thing else ''}{after}"
            for (before, thing, after), count in notes.items()
        ]
