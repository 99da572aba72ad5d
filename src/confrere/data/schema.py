"""What columns mean: the part of a study on which sites agree without showing a record.

A schema is PUBLIC. Encoding reads the schema and nothing else, so ranges and categories come from people or
from clinical reference values, never from the records. What a draft drew from records is listed in a column's
`private` until a person confirms it; such a schema cannot be used or shared.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING as MISSING_DEFAULT
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, cast

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from confrere.core.errors import StudyError
from confrere.core.strict_reader import check_numbers, read
from confrere.data.column_kinds import ColumnKind, column_kinds
from confrere.data.identifiers import looks_identifying
from confrere.data.tasks import task_kinds

STRICT = ConfigDict(extra="forbid", strict=True)
Interval = tuple[float, float]
MISSING = " missing"
HIGH, LOW = " high", " low"
OTHER = "other"
TABLE = "table"
"""The branch of all columns that are not a branch themselves."""
ONLY = {
    "marks": "marks = true says above or below the usual interval: it needs a number with `usual`",
    "shape": 'shape is for series, bags and volumes; a column of kind = "{kind}" has none',
    "coarsen": "coarsen = {coarsen!r} is for dates; for a postcode or a place use prefix = 2",
}
"""Options that only some kinds of columns take, and the message for others."""
SOME_DAY = datetime(2024, 12, 31)


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
    for said, meant in c.spellings:
        if meant not in c.categories:
            out.append(f"spellings: {said!r} stands for {meant!r}, which is not a category")
    if c.date_format and not _is_date_format(c.date_format):
        out.append(f'date_format = "{c.date_format}" names no day, month and year, such as "%d/%m/%Y"')
    if c.buckets < 2 or c.ngrams < 1 or c.length < 1 or min(c.size) < 1 or c.prefix < 0:
        out.append("buckets, ngrams, length, size and prefix must be positive")
    unknown = set(c.private) - {f.name for f in fields(c)}
    if unknown:
        out.append(f"private names {sorted(unknown)[0]!r}, which is not a field of a column")
    return out


def _is_date_format(form: str) -> bool:
    with contextlib.suppress(ValueError):
        return datetime.strptime(SOME_DAY.strftime(form), form) == SOME_DAY
    return False


@dataclass(frozen=True, config=STRICT)
class Label:
    """What is predicted.

    binary, multiclass: `classes` in order; `groups` puts several values into one class ("*" takes the rest);
    `above` makes a number binary: above it is the second class. regression: `range` is scaled to −1 … 1.
    survival: `column` says whether the event happened (`groups` how that is written), `time` when; the event
    within `horizon` is the second class, and who was lost before the horizon is left out.
    multilabel: `columns`, each yes or no for itself.
    """

    column: str = ""
    """The column to predict."""
    kind: str = "binary"
    """The kind of task: "binary", "multiclass", "regression", "survival" or "multilabel"."""
    meaning: str = ""
    """What the label means, for people."""
    unit: str = ""
    """The unit of a label that is a number."""
    classes: tuple[str, ...] = ()
    """The classes, in order; for a binary label the second one is the positive class."""
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The values of the column that belong to each class; "*" stands for all others."""
    above: float | None = None
    """Makes a number binary: above this value is the second class."""
    range: Interval | None = None
    """For regression: the plausible range of the label, scaled to −1 … 1."""
    time: str = ""
    """For survival: the column with the time of the event or of the last follow-up."""
    horizon: float | None = None
    """For survival: the time within which the event counts."""
    columns: tuple[str, ...] = ()
    """For several labels: the columns, each yes or no."""
    missing: tuple[str, ...] = ()
    """Values that mean «not known»."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """What happens to a record without a label."""
    also: tuple[str, ...] = ()
    """Other names that files have for the column."""
    private: tuple[str, ...] = ()
    """Fields that were drawn from records and that no person has confirmed yet."""

    def __post_init__(self) -> None:
        for problem in _label_problems(self):
            raise ValueError(problem)

    @property
    def all_columns(self) -> tuple[str, ...]:
        """Every column of the file that the label reads: none of them may be a feature."""
        return tuple(c for c in (self.column, self.time, *self.columns) if c)


def _label_problems(label: Label) -> list[str]:
    if label.kind not in task_kinds:
        return [task_kinds.unknown(label.kind)]
    out = task_kinds[label.kind].problems(label)
    for name, _ in label.groups:
        if name not in label.classes:
            out.append(f"groups: {name!r} is not one of the classes")
    return out


@dataclass(frozen=True, config=STRICT)
class Schema:
    """The columns, the label, and what must not be used."""

    label: Label
    """What is predicted."""
    columns: tuple[Column, ...] = ()
    """What is known about a patient, as [schema.columns.NAME]."""
    patient: str = ""
    """The column that says which records belong to one patient."""
    site: str = ""
    """The column that says where a record comes from, in a file that holds several sites."""
    identifying: tuple[str, ...] = ()
    """Columns that identify people and must not be used."""
    unused: tuple[str, ...] = ()
    """Columns of the file that are not used."""
    missing_columns: Literal["impute", "common", "refuse"] = "impute"
    """A site lacks a whole column: treat it as missing, train on what all have, or refuse the site."""
    repeats: Literal["visits", "drop", "refuse"] = "visits"
    """Several records of one patient: they are visits (but not the same record twice); the same record twice
    is dropped; or there must be one record per patient."""

    def __post_init__(self) -> None:
        for problem in _schema_problems(self):
            raise ValueError(problem)
        # the columns of a table lie together, before all branches
        laid_out = tuple(sorted(self.columns, key=lambda c: c.traits.branch))
        object.__setattr__(self, "columns", laid_out)

    @property
    def features(self) -> list[str]:
        """The names of the encoded numbers, in order."""
        return [name for column in self.columns for name in column.features]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one encoded record."""
        if len(self.columns) == 1 and self.columns[0].traits.branch:
            return self.columns[0].array
        return (sum(len(c.features) for c in self.columns),)

    @property
    def unconfirmed(self) -> list[str]:
        """What was drawn from records and still waits for a person, as `column.field`."""
        own = [f"{c.name}.{field}" for c in self.columns for field in c.private]
        return [*(f"label.{field}" for field in self.label.private), *own]

    def column(self, name: str) -> Column:
        for c in self.columns:
            if c.name == name:
                return c
        raise StudyError(f"schema: there is no column {name!r}")

    def confirmed(self) -> Schema:
        """The same schema after a person has looked at everything that was drawn from records."""
        columns = tuple(replace(c, private=()) for c in self.columns)
        return replace(self, columns=columns, label=replace(self.label, private=()))

    def without(self, names: set[str]) -> Schema:
        """The same schema without these columns."""
        return replace(self, columns=tuple(c for c in self.columns if c.name not in names))

    def to_dict(self) -> dict[str, Any]:
        """As in a study's TOML: columns by name, defaults left out."""
        out: dict[str, Any] = plain(self)
        out["columns"] = {c.pop("name"): c for c in out.pop("columns", [])}
        if "groups" in out["label"]:
            out["label"]["groups"] = dict(out["label"]["groups"])
        for column in out["columns"].values():
            if "spellings" in column:
                column["spellings"] = dict(column["spellings"])
        return out

    @staticmethod
    def from_dict(table: Mapping[str, Any], where: str = "") -> Schema:
        """From the [schema] of a file (`where`); a wrong key or type is a StudyError that names the place."""
        check_numbers(table, f"{where}: schema" if where else "schema")
        return cast("Schema", read(Schema, _rows(table), where, "schema"))

    @cached_property
    def fingerprint(self) -> str:
        """The same for every site that agreed on the same schema."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """The dictionary that TOML can hold: fields at their default are left out, tuples become lists."""
    if is_dataclass(value) and not isinstance(value, type):
        out = {}
        for field in fields(value):
            item = getattr(value, field.name)
            if field.default is MISSING_DEFAULT or item != field.default:
                out[field.name] = plain(item)
        return out
    return [plain(v) for v in value] if isinstance(value, tuple | list) else value


def _rows(table: Mapping[str, Any]) -> dict[str, Any]:
    """Named tables (columns, groups, spellings) as the tuples that the dataclasses hold."""
    out = dict(table)
    columns = out.get("columns", {})
    if not isinstance(columns, Mapping) or not all(isinstance(c, Mapping) for c in columns.values()):
        raise StudyError('schema.columns: write one table for each column, such as [schema.columns."age"]')
    rows = []
    for name, column in columns.items():
        row = {"name": name, **column}
        if isinstance(row.get("spellings"), Mapping):
            row["spellings"] = list(row["spellings"].items())
        rows.append(row)
    out["columns"] = rows
    label = out.get("label")
    if isinstance(label, str):
        out["label"] = {"column": label}
    elif isinstance(label, Mapping) and isinstance(label.get("groups"), Mapping):
        out["label"] = {**label, "groups": list(label["groups"].items())}
    return out


def _schema_problems(s: Schema) -> list[str]:
    out = []
    names = [c.name for c in s.columns]
    taken = {
        **dict.fromkeys(s.unused, "is listed as unused"),
        **dict.fromkeys(s.identifying, "is listed as identifying"),
        **dict.fromkeys(s.label.all_columns, "is the label: it would give the answer away"),
        **({s.site: "is the site"} if s.site else {}),
        **({s.patient: "is the patient id"} if s.patient else {}),
    }
    for name, count in Counter(names).items():
        if count > 1:
            out.append(f"the column {name!r} is there twice")
        if name in taken:
            out.append(f"the column {name!r} {taken[name]}; it cannot be a feature too")
    for c in s.columns:
        reason = looks_identifying(c.name)
        harmless = c.identifying is False or c.coarsen or c.prefix or c.derive
        if c.identifying or (reason and not harmless):
            out.append(
                f"the column {c.name!r} {reason or 'is identifying'}: take it out, coarsen it, "
                "or set identifying = false"
            )
    for c in s.columns:
        if c.name == TABLE and c.traits.branch:
            out.append(
                f'a column of kind = "{c.kind}" cannot be called "{TABLE}": that is the branch of all others'
            )
    sole = [c for c in s.columns if c.traits.must_be_alone(c)]
    if sole and len(s.columns) > 1:
        out.append(f"the text {sole[0].name!r} is read as token numbers: it must be the only column")
    return out
