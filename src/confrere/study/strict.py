"""Strict reading: a wrong key is an error that names the nearest right one; a wrong value says what it must be."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from confrere.core.errors import StudyError
from confrere.core.registry import nearest

STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)

Named = str | dict[str, Any]
"""A name, or a table with `name` and options: "proxyfl" or { name = "proxyfl", alpha = 0.3 }."""

KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
}
"""What a value should have been, in words, by pydantic's name for the mistake."""


def named(spec: Named, where: str) -> tuple[str, dict[str, Any]]:
    """Name and options of `spec`."""
    if isinstance(spec, str):
        return spec, {}
    options = dict(spec)
    if not isinstance(options.get("name"), str):
        raise StudyError(
            f'{where} is written as {where} = "name" or [{where}] with name = "…": the name is missing'
        )
    return options.pop("name"), options


def build(kind: Any, options: Mapping[str, Any], what: str) -> Any:
    """A dataclass from its options in a study, checked key by key."""
    known = [f.name for f in fields(kind) if f.init]
    for key in options:
        if key not in known:
            raise StudyError(
                f'{what} has no option "{key}"{nearest(key, known)}; it has: {", ".join(known) or "none"}'
            )
    try:
        return strict(kind, options)
    except ValidationError as error:
        raise StudyError(f"{what}: {say(error, kind, options)}") from None


def check_types(value: Any, where: str = "") -> None:
    """What TOML cannot get wrong, Python can: a dictionary where `Privacy(…)` belongs, text for a number."""
    hints = typing.get_type_hints(type(value))
    for f in fields(value):
        given, key = getattr(value, f.name), f"{where}.{f.name}".lstrip(".")
        plain = given.item() if isinstance(given, np.generic) else given
        hint = hints[f.name]
        if isinstance(plain, list) and get_origin(hint) is tuple:
            plain = tuple(plain)
        try:
            _adapter(hint).validate_python(plain, strict=True)
        except ValidationError as error:
            kinds = [e.get("ctx", {}).get("class_name") for e in error.errors()]
            made = next((f"confrere.{k}(…)" for k in kinds if k), None)
            wanted = made or " or ".join(KINDS.get(e["type"], e["msg"].lower()) for e in error.errors())
            raise StudyError(f"{key} must be {wanted}, not {short(given)}") from None
        if is_dataclass(given) and not isinstance(given, type):
            check_types(given, key)


def strict(kind: Any, table: Mapping[str, Any]) -> Any:
    """A dataclass from plain values, which must have their types already: "3" is no number, nor is true."""
    try:
        text = json.dumps(dict(table))
    except (TypeError, ValueError):  # in Python, an option may be an object of its own
        return _adapter(kind).validate_python(dict(table))
    return _adapter(kind).validate_json(text, strict=True)


def say(error: ValidationError, kind: Any, table: Mapping[str, Any]) -> str:
    """The first thing that is wrong, in words."""
    found = [(_place(e["loc"], table), e) for e in error.errors()]
    (place, given), first = found[0]
    key = ".".join(place) or "study"
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _keys_at(kind, place[:-1])
        return f'unknown key "{key}"{nearest(place[-1], known)}; known here: {", ".join(known)}'
    alternatives = [e for (other, _), e in found if other == place]
    wanted = " or ".join(
        KINDS.get(e["type"]) or str(e.get("ctx", {}).get("expected", e["msg"].lower())) for e in alternatives
    )
    return f"{key} must be {wanted}, not {short(given)}"


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


@lru_cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _place(loc: Sequence[int | str], table: Any) -> tuple[list[str], Any]:
    """The keys that lead to a mistake, and what was given there; pydantic's own steps are left out."""
    place: list[str] = []
    for step in loc:
        inside: Any = dict(enumerate(table)) if isinstance(table, list | tuple) else table
        if not isinstance(inside, Mapping) or step not in inside:
            break
        table = inside[step]
        place.append(str(step))
    return place, table


def _keys_at(kind: Any, path: list[str]) -> list[str]:
    for step in path:
        hints = typing.get_type_hints(kind) if is_dataclass(kind) else {}
        kind = hints.get(step, kind)
        kind = next((a for a in (kind, *get_args(kind)) if is_dataclass(a)), kind)
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
    return [f.name for f in fields(kind)] if is_dataclass(kind) else []
