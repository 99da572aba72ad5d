"""What columns mean: the part of a study on which sites agree without showing a record.

A schema is PUBLIC. Encoding reads the schema and nothing else, so ranges and categories come from people or
from clinical reference values, never from the records. What a draft drew from records is listed in a column's
`private` until a person confirms it; such a schema cannot be used or shared.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING as MISSING_DEFAULT
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

from pydantic.dataclasses import dataclass

from confrere.core.errors import StudyError
from confrere.core.strict_reader import STRICT, check_numbers, read
from confrere.data.column_kinds import Column
from confrere.data.identifiers import looks_identifying
from confrere.data.tasks import Label

TABLE = "table"
"""The branch of all columns that are not a branch themselves."""


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
