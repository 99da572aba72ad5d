"""Columns, and their kinds: everything that differs between numbers, categories, dates, texts, images and arrays.

A column kind is a class with the methods below, registered under the name that a schema uses as `kind`. A file in this
folder is found without being listed anywhere; installed packages use the entry-point group `confrere.column_kinds`,
which names an instance. The options of a column are the fields of `Column`.

    @column_kind("percentage")
    class Percentage(NumberColumn):
        def problems(self, column):
            return [] if column.range == (0, 100) else ["a percentage has range = [0, 100]"]
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from confrere.core.registry import Registry
from confrere.core.strict_reader import STRICT
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.split.date_cut import DateCut

if TYPE_CHECKING:
    import pandas as pd

Interval = tuple[float, float]
MISSING = " missing"
HIGH, LOW = " high", " low"
OTHER = "other"
ONLY = {
    "marks": "marks = true says above or below the usual interval: it needs a number with `usual`",
    "shape": 'shape is for series, bags and volumes; a column of kind = "{kind}" has none',
    "coarsen": "coarsen = {coarsen!r} is for dates; for a postcode or a place use prefix = 2",
}
"""Options that only some kinds of columns take, and the message for others."""
SOME_DAY = datetime(2024, 12, 31)
Encoding = tuple[NDArray[Any], NDArray[np.bool_]]
"""The numbers of a column, one row per record, and which of its values are missing."""


@dataclasses.dataclass(frozen=True)
class Translation:
    """How a site's own file differs from the schema, and what happens to records that do not fit it."""

    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """From the names in the file to those of the schema."""
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The unit of a column in the file, where that is not the schema's."""
    folder: str = ""
    """The folder of image and array files."""
    drop: bool = False
    """Leave out records that do not fit the schema, which are refused otherwise."""
    guess_dates: bool = True
    """Whether the order of day and month may be found out from a whole column, where the schema does not state it."""
    cut: DateCut | None = None
    """Where records are split by their date."""


AS_WRITTEN = Translation()
"""A file that has the schema's own names and units."""


@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of one column in some records, and what is needed to read them."""

    frame: pd.DataFrame
    series: pd.Series[Any]
    """As they are in the file, or derived from other columns. Empty for a branch, which reads the frame."""
    column: Column
    translation: Translation
    tally: EncodingTally
    """Counts what happens to the values."""


class ColumnKind(ABC):
    """What a kind of column asks of a schema, and how its values become numbers. It has no state."""

    branch: ClassVar[bool] = False
    """Whether it is an array: a branch of a record, next to the table of all other columns."""
    mask: ClassVar[bool] = False
    """Of a branch: whether its last channel marks the steps or members that are there."""
    optional: ClassVar[bool] = True
    """Whether a site may lack the column, and a value be marked as missing."""
    imputed: ClassVar[bool] = False
    """Whether a missing value becomes a typical one that the notes of a site count."""
    quantity: ClassVar[bool] = False
    """Whether its fields are quantities: a file has them as numbers, in a unit that may be mistaken."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Those of `marks`, `shape` and `coarsen` that it takes; other kinds refuse them."""

    def problems(self, column: Column) -> list[str]:
        """What is wrong with a column of this kind, beyond what holds for all kinds."""
        return []

    def features(self, column: Column) -> tuple[str, ...]:
        """The names of the numbers that a value becomes, without the indicator of missing values."""
        return (column.name,)

    def shape(self, column: Column) -> tuple[int, ...]:
        """The shape of the numbers of one record."""
        return (len(column.features),)

    @property
    def only_scales(self) -> bool:
        """Whether encoding is `numbers.scaled` alone, so that many such columns can be encoded at once."""
        return False

    def no_and_yes(self, column: Column) -> tuple[str, ...]:
        """How 0 and 1 are written, if a value becomes one of these; empty otherwise."""
        return ()

    def must_be_alone(self, column: Column) -> bool:
        """Whether a record has no other column."""
        return False

    @abstractmethod
    def encode(self, fields: Fields) -> Encoding:
        """The values of a column."""


column_kinds: Registry[ColumnKind] = Registry(
    "column kind", "confrere.column_kinds", package="confrere.data.column_kinds"
)

K = TypeVar("K", bound=type[ColumnKind])


def column_kind(name: str) -> Callable[[K], K]:
    """Class decorator: register a column kind under the name that a schema uses."""
    return column_kinds.register_instance(name)


@dataclass(frozen=True, config=STRICT)
class Derivation:
    """How a column follows from others where a site does not have it.

    days, years: from the first date to the second. difference, ratio: first and second. sum: of all.
    bmi: weight in kg and height in cm.
    """

    how: Literal["days", "years", "difference", "ratio", "sum", "bmi"]
    """The formula."""
    of: tuple[str, ...]
    """The columns that it reads."""

    def __post_init__(self) -> None:
        if len(self.of) < 2 or (self.how != "sum" and len(self.of) != 2):
            raise ValueError(f"{self.how} needs two columns in `of`, not {len(self.of)}")


@dataclass(frozen=True, config=STRICT)
class Column:
    """One thing that is known about a patient, and how it becomes numbers."""

    name: str
    """The name of the column; in a study it is the name of the table, [schema.columns.NAME]."""
    kind: str = "number"
    """What the values are: "number", "category", "flag", "date", "text", "image", "series", "bag" or "volume"."""
    meaning: str = ""
    """What the column means, for people."""
    unit: str = ""
    """The unit of the values."""
    range: Interval | None = None
    """What is plausible at all; a value outside is handled as `outside` says."""
    usual: Interval | None = None
    """The reference interval: scaled to −1 … 1. Without it the range is."""
    scale: Literal["linear", "log"] = "linear"
    """Whether a number is scaled linearly or by its logarithm."""
    marks: bool = False
    """Also whether a number is above or below the usual interval, as laboratories print it."""
    categories: tuple[str, ...] = ()
    """For a flag: how no and yes are written, in this order."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Pairs: a spelling in the file, and the category that is meant."""
    missing: tuple[str, ...] = ()
    """Values that mean «not known», besides an empty field."""
    gaps: Literal["indicator", "impute", "refuse"] = "indicator"
    """What a missing value becomes: a typical value with an indicator beside it, a typical value alone, or an
    error."""
    typical: float | str | None = None
    """What is put in a gap; without it the middle of the scale, or no category."""
    outside: Literal["refuse", "missing", "clip"] = "refuse"
    """What happens to a value outside of the range."""
    unknown: Literal["refuse", "missing", "other"] = "refuse"
    """What happens to a category that is not in the list."""
    date_format: str = ""
    """For a date, or a difference of dates: how it is written, where that is not ISO 8601, as in "%d/%m/%Y"."""
    coarsen: Literal["", "year", "month", "decade"] = ""
    """For a date: what is left of it."""
    prefix: int = 0
    """For a category such as a postcode: how many characters are left of it."""
    derive: Derivation | None = None
    """How the column is computed where a site does not have it."""
    also: tuple[str, ...] = ()
    """Other names that files have for this column."""
    identifying: bool | None = None
    """False: a person has looked, and it identifies no one."""
    private: tuple[str, ...] = ()
    """Fields that were drawn from records and that no person has confirmed yet."""
    encoding: Literal["hashed", "ids"] = "hashed"
    """For a text: counts of hashed n-grams, or token numbers in order."""
    buckets: int = 1024
    """For a hashed text: how many counts."""
    ngrams: int = 1
    """For a hashed text: the longest sequence of words that is counted."""
    length: int = 64
    """For a text as token numbers: how many tokens are kept."""
    size: tuple[int, int] = (28, 28)
    """For an image: height and width in pixels."""
    channels: Literal[1, 3] = 1
    """For an image: 1 for grey, 3 for colour."""
    shape: tuple[int, ...] = ()
    """For a series: steps and values of a step. For a bag: members and features. For a volume: depth, height, width.
    Series and bags may be shorter: what is not there is marked."""

    def __post_init__(self) -> None:
        for problem in _column_problems(self):
            raise ValueError(problem)

    @property
    def bounds(self) -> Interval:
        """The interval that is scaled to −1 … 1."""
        return self.usual or self.range or (-1.0, 1.0)

    @property
    def traits(self) -> ColumnKind:
        """Everything that depends on the kind of column."""
        return column_kinds[self.kind]

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers that this column becomes."""
        own = self.traits.features(self)
        return (*own, self.name + MISSING) if self.has_indicator else own

    @property
    def array(self) -> tuple[int, ...]:
        """The shape of what one record has here."""
        return self.traits.shape(self)

    @property
    def has_indicator(self) -> bool:
        return self.gaps == "indicator" and self.traits.optional


def _column_problems(c: Column) -> list[str]:
    if c.kind not in column_kinds:
        return [column_kinds.unknown(c.kind)]
    out = []
    for what in ("range", "usual"):
        pair = getattr(c, what)
        if pair is not None and not pair[0] < pair[1]:
            out.append(
                f"{what} = [{pair[0]:g}, {pair[1]:g}] is empty: the first number must be the smaller one"
            )
        if pair is not None and c.scale == "log" and pair[0] <= 0:
            out.append(f"{what} starts at {pair[0]:g}; a log scale needs a number above 0")
    for option, words in ONLY.items():
        if getattr(c, option) and option not in c.traits.takes:
            out.append(words.format(kind=c.kind, coarsen=c.coarsen))
    if c.marks and c.usual is None:
        out.append(ONLY["marks"])
    out += c.traits.problems(c)
    if len(set(c.categories)) != len(c.categories):
        out.append("a category is listed twice")
    for written, meant in c.spellings:
        if meant not in c.categories:
            out.append(f"spellings: {written!r} stands for {meant!r}, which is not a category")
    if c.date_format and not _is_date_format(c.date_format):
        out.append(f'date_format = "{c.date_format}" names no day, month and year, such as "%d/%m/%Y"')
    if c.buckets < 2 or c.ngrams < 1 or c.length < 1 or min(c.size) < 1 or c.prefix < 0:
        out.append("buckets, ngrams, length, size and prefix must be positive")
    unknown = set(c.private) - {f.name for f in dataclasses.fields(c)}
    if unknown:
        out.append(f"private names {sorted(unknown)[0]!r}, which is not a field of a column")
    return out


def _is_date_format(form: str) -> bool:
    with contextlib.suppress(ValueError):
        return datetime.strptime(SOME_DAY.strftime(form), form) == SOME_DAY
    return False
