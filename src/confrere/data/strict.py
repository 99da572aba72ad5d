"""Dataclasses from TOML and back: unknown keys, wrong types and bad values become one plain sentence."""

from __future__ import annotations

import dataclasses
import difflib
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from confrere.core.errors import StudyError

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
