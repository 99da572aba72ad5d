"""Column kinds: everything that differs between numbers, categories, dates, texts, images and arrays.

A column kind is a class with the methods below, registered under the name that a schema uses as `kind`. A file in this
folder is found without being listed anywhere; installed packages use the entry-point group `confrere.column_kinds`,
which names an instance. The options of a column are the fields of `data.schema.Column`.

    @column_kind("percentage")
    class Percentage(NumberColumn):
        def problems(self, column):
            return [] if column.range == (0, 100) else ["a percentage has range = [0, 100]"]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from confrere.core.registry import Registry

if TYPE_CHECKING:
    import pandas as pd

    from confrere.data.encode.encoding_tally import EncodingTally
    from confrere.data.schema import Column
    from confrere.data.split.date_cut import DateCut

Encoding = tuple[NDArray[Any], NDArray[np.bool_]]
"""The numbers of a column, one row per record, and which of its values are missing."""


@dataclass(frozen=True)
class Translation:
    """How a site's own file differs from the schema, and what happens to records that do not fit it."""

    rename: Mapping[str, str] = field(default_factory=dict)
    """From the names in the file to those of the schema."""
    units: Mapping[str, str] = field(default_factory=dict)
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


@dataclass(frozen=True)
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
