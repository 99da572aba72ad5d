"""The strict reader of study.toml, site.toml and schemas: from TOML tables to dataclasses, with clear errors.

A wrong key is an error that names the nearest right one; a wrong value says what it must be. Nothing is guessed.
"""

from __future__ import annotations

import datetime
import json
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from confrere.core.errors import StudyError
from confrere.core.registry import Registry, nearest

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


LARGEST = 2**53
"""No whole number in a study or a site.toml is larger: beyond it, JSON and floats no longer hold it exactly."""
LONGEST_WAIT = 30 * 86400
MOST_ROUNDS = 1_000_000

RANGES: dict[str, tuple[float, float]] = {
    "rounds": (1, MOST_ROUNDS),
    "epochs": (1, 100_000),
    "site_epochs": (1, 100_000),
    "steps": (1, 10_000_000),
    "batch_size": (1, 1_000_000_000),
    "every": (1, 1_000_000),
    "iterations": (1, 1_000_000),
    "tune_lengths": (1, 1_000_000),
    "seeds": (1, 10_000),
    "patience": (0, LONGEST_WAIT),
    "hours": (0, 1_000_000),
    "metrics": (1, 65535),
}
"""The range of a number by its key, wherever the key is in a study or a site.toml. Other numbers are finite."""


def check_numbers(value: Any, where: str = "", key: str = "") -> None:
    """Refuse numbers out of range, however deep: NaN, infinity, and counts with which nothing would ever end."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int | float):
        low, high = RANGES.get(key, (-LARGEST, LARGEST) if isinstance(value, int) else (-math.inf, math.inf))
        if not (low <= value <= high and abs(value) < math.inf):
            finite = "a finite number" if math.isinf(high) else f"a number from {low:,} to {high:,}"
            raise StudyError(f"{where} must be {finite}, not {short(value)}")
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            check_numbers(getattr(value, f.name), f"{where}.{f.name}".lstrip("."), f.name)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            inside = key if key == "site_epochs" else str(name)
            check_numbers(inner, f"{where}.{name}".lstrip("."), inside)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_numbers(inner, where, key)


def read_toml_file(path: Path, hint: str = "", *, largest: int | None = None) -> dict[str, Any]:
    """The tables of a TOML file of at most `largest` bytes; `hint` says how to get the file if there is none."""
    try:
        if largest is not None and path.stat().st_size > largest:
            raise StudyError(f"{path}: too large; it may have {largest:,} bytes")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError(f"{path}: no such file{'; ' if hint else ''}{hint}") from None
    except UnicodeDecodeError:
        raise StudyError(f"{path}: cannot be read: it is not a text file in UTF-8") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read: {error.strerror or error}") from None
    return read_toml(text, str(path))


def read_toml(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text; whatever is wrong with it is a StudyError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise StudyError(f"{where}: not valid TOML: its tables are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{where}: not valid TOML: {error}") from None
    except ValueError:  # Python reads at most 4,300 digits
        raise StudyError(f"{where}: not valid TOML: a number has too many digits") from None


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


def build_named(known: Registry[Any], spec: Named, where: str) -> Any:
    """What `spec` names in a registry, with its options."""
    name, options = named(spec, where)
    return build(known[name], options, f'{known.kind} "{name}"')


def build(kind: Any, options: Mapping[str, Any], what: str) -> Any:
    """A dataclass from its options in a study, checked key by key."""
    known = [f.name for f in fields(kind) if f.init]
    for key in options:
        if key not in known:
            raise StudyError(
                f'{what} has no option "{key}"{nearest(key, known)}; it has: {", ".join(known) or "none"}'
            )
    try:
        made = strict(kind, options)
    except ValidationError as error:
        raise StudyError(f"{what}: {explain(error, kind, options)}") from None
    try:
        check_numbers(made)
    except StudyError as error:
        raise StudyError(f"{what}: {error}") from None
    return made


def check_types(value: Any, where: str = "") -> None:
    """What TOML cannot get wrong, Python can: a dictionary where `Privacy(…)` belongs, text for a number."""
    kind: Any = type(value)
    hints = _hints(kind)
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


def read(kind: Any, table: Mapping[str, Any], where: str = "", inside: str = "") -> Any:
    """A dataclass from the tables of a file (`where`), or of one table in it (`inside`)."""
    try:
        return strict(kind, table)
    except ValidationError as error:
        message = explain(error, kind, table, inside)
        raise StudyError(f"{where}: {message}" if where else message) from None


def strict(kind: Any, table: Mapping[str, Any]) -> Any:
    """A dataclass from plain values, which must have their types already: "3" is not a number, nor is true."""
    try:
        text = json.dumps(dict(table), default=_date_text)
    except (TypeError, ValueError):  # in Python, an option may be an object
        return _adapter(kind).validate_python(dict(table))
    return _adapter(kind).validate_json(text, strict=True)


def _date_text(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.time):
        return str(value)
    raise TypeError


def explain(error: ValidationError, kind: Any, table: Mapping[str, Any], inside: str = "") -> str:
    """The first mistake, in words: its key, and what it should have been."""
    found = [(_place(e["loc"], table), e) for e in error.errors()]
    (place, given), first = found[0]
    key = ".".join([*([inside] if inside else []), *place])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _keys_at(kind, place[:-1])
        return f'unknown key "{key}"{nearest(place[-1], known)}; known here: {", ".join(known)}'
    if first["type"] in ("missing", "missing_argument"):
        return f"{'.'.join([key, str(first['loc'][-1])] if key else [str(first['loc'][-1])])}: is not given"
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    alternatives = [e for (other, _), e in found if other == place]
    wanted = " or ".join(
        KINDS.get(e["type"]) or str(e.get("ctx", {}).get("expected", e["msg"].lower())) for e in alternatives
    )
    return f"{key or 'study'} must be {wanted}, not {short(given)}"


def short(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"{'-' if value < 0 else ''}10^{math.floor(math.log10(abs(value)))} or more"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


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
        named_row = isinstance(step, int) and isinstance(table, Mapping) and "name" in table
        place.append(str(table["name"] if named_row else step))
    return place, table


def _keys_at(kind: Any, path: list[str]) -> list[str]:
    for step in path:
        hints = typing.get_type_hints(kind) if is_dataclass(kind) else {}
        kind = hints.get(step, kind)
        kind = next((a for a in (kind, *get_args(kind)) if is_dataclass(a)), kind)
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
    return [f.name for f in fields(kind)] if is_dataclass(kind) else []
