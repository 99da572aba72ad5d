"""Write a schema as TOML that a person can read, with comments; read it from a study file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.strict_reader import read_toml_file
from confrere.data.schema import Schema

_BARE = re.compile(r"[A-Za-z0-9_-]+")
PRIVATE = "# PRIVATE: drawn from your records. Look at it, correct it, then delete the line «private»."
LAST_CLASS = (
    "# The last class is the one to find, such as the ill: reports count it. Here it is the rarer one."
)


def schema_toml(schema: Schema, comments: Mapping[str, str] | None = None) -> str:
    """The `[schema]` tables of a study; `comments` go above the columns they are named after."""
    table = schema.to_dict()
    columns, label = table.pop("columns"), table.pop("label")
    out = ["[schema]", *_lines(table), "", "[schema.label]", *_lines(label)]
    if label.get("private"):
        two = [LAST_CLASS] if len(label.get("classes", ())) == 2 else []
        at = out.index("[schema.label]") + 1
        out[at:at] = [*two, PRIVATE]
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


def read_schema(path: Path) -> Schema:
    """The schema of a study file, or of a file with that table only."""
    table = read_toml_file(path)
    if isinstance(table.get("schema"), str):  # the study names a file next to it
        return read_schema(path.parent / table["schema"])
    if not isinstance(table.get("schema"), dict):
        raise StudyError(f"{path}: has no [schema]; make one with `confrere schema draft DATA`")
    return Schema.from_dict(table["schema"], path.name)
