"""A schema from TOML, with one plain sentence for whatever is wrong in it, and back into TOML that a person can read."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from confrere.core.errors import StudyError

if TYPE_CHECKING:
    from confrere.data.schema import Schema

_BARE = re.compile(r"[A-Za-z0-9_-]+")
PRIVATE = "# PRIVATE: drawn from your records. Look at it, correct it, then delete the line «private»."


def schema_toml(schema: Schema, comments: Mapping[str, str] | None = None) -> str:
    """The `[schema]` tables of a study; `comments` go above the columns they are named after."""
    table = schema.to_dict()
    columns, label = table.pop("columns"), table.pop("label")
    out = ["[schema]", *_lines(table), "", "[schema.label]", *_lines(label)]
    if label.get("private"):
        out.insert(out.index("[schema.label]") + 1, PRIVATE)
    for name, column in columns.items():
        out += ["", f"[schema.columns.{_key(name)}]"]
        if comments and name in comments:
            out.append(f"# {_one_line(comments[name])}")
        if column.get("private"):
            out.append(PRIVATE)
        out += _lines(column)
    return "\n".join(out) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items()]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value)
        whole = text.endswith(".0") and abs(value) < 1e15 and text != "-0.0"  # the number 0 has no sign
        return text.removesuffix(".0") if whole else text
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    return "[" + ", ".join(_value(v) for v in value) + "]"


def _one_line(text: str) -> str:
    return " ".join(text.split())


T = TypeVar("T")


def build(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """An instance of a pydantic dataclass, or a StudyError that says which key is wrong and why."""
    try:
        # JSON is where pydantic's strict mode takes lists for tuples and tables for dataclasses
        return TypeAdapter(kind).validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        raise StudyError(_sentence(error, kind, table, where)) from None


def plain(value: Any) -> Any:
    """The dictionary that TOML can hold: fields at their default are left out, tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if field.default is dataclasses.MISSING or item != field.default:
                out[field.name] = plain(item)
        return out
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value


def _sentence(error: ValidationError, kind: Any, table: Any, where: str) -> str:
    first = error.errors()[0]
    place, known = where, kind
    for step in first["loc"]:
        if isinstance(step, int):
            row = table[step] if isinstance(table, list | tuple) and step < len(table) else None
            name = row.get("name", step) if isinstance(row, Mapping) else step
            place += f".{name}"
            table = row
        else:
            place += f".{step}"
            known = _inner(known, str(step)) or known
            table = table.get(step) if isinstance(table, Mapping) else None
    key = str(first["loc"][-1]) if first["loc"] else ""
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = [f.name for f in dataclasses.fields(known)] if dataclasses.is_dataclass(known) else []
        near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
        return f"{place}: unknown key; {hint}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{place}: is not given"
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower()}{message[1:]}"


def _inner(kind: Any, name: str) -> Any:
    """The dataclass that a field holds, alone, optional or in a tuple."""
    if not dataclasses.is_dataclass(kind):
        return None
    hints = typing.get_type_hints(kind)
    queue = [hints.get(name)]
    while queue:
        item = queue.pop()
        if dataclasses.is_dataclass(item):
            return item
        queue.extend(typing.get_args(item))
    return None
