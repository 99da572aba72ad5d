"""Results that are written as JSON documents and read back, field by field."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from confrere.core.errors import Retired
from confrere.core.events import Json

Figure = TypeVar("Figure", covariant=True)


class Metrics(Mapping[str, Figure]):
    """Figures by the name of their metric; `metrics.auc` is short for `metrics["auc"]`.

    >>> Metrics({"auc": 0.81}).auc
    0.81
    """

    __slots__ = ("_figures",)

    def __init__(self, figures: Mapping[str, Figure] | None = None) -> None:
        self._figures = dict(figures or {})

    def __getitem__(self, name: str) -> Figure:
        return self._figures[name]

    def __getattr__(self, name: str) -> Figure:
        if name.startswith("_") or name not in self._figures:
            raise AttributeError(
                f'"{name}" was not measured; there are: {", ".join(self._figures) or "none"}'
            )
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._figures]

    def __repr__(self) -> str:
        return f"Metrics({self._figures!r})"


class Document:
    """A dataclass with a JSON form: its fields, without `UNSTATED` ones and without empty `OPTIONAL` ones.

    It was a dictionary in 0.1: `result["key"]` works for one more version, with a warning.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    UNSTATED: ClassVar[tuple[str, ...]] = ()
    KEYS: ClassVar[Mapping[str, str]] = {}
    """Keys that differ from the name of their field."""

    def as_json(self) -> dict[str, Json]:
        document = {}
        for f in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, f.name)
            empty = f.default_factory() if f.default_factory is not MISSING else f.default
            if f.name not in self.UNSTATED and not (f.name in self.OPTIONAL and value == empty):
                document[self.KEYS.get(f.name, f.name)] = _plain(value)
        return document

    @classmethod
    def from_json(cls, document: Json, figure: object = None, **given: object) -> Self | None:
        """Read a document. A missing field has its default; None if a field without a default is missing.

        `figure` is the type of the figures in `Metrics`; `given` are fields that the document does not state.
        """
        if not document:
            return None
        found, hints = dict(given), _hints(cls)  # type: ignore[arg-type]  # a class is hashable
        for f in fields(cls):  # type: ignore[arg-type]
            value = None
            if f.name not in given and f.name not in cls.UNSTATED:
                value = _read(hints[f.name], document.get(cls.KEYS.get(f.name, f.name)), figure)
            if value is not None:
                found[f.name] = value
            elif f.name not in given and f.default is MISSING and f.default_factory is MISSING:
                return None
        return cls(**found)

    def __getitem__(self, key: str) -> Json:
        return self._retired()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._retired()

    def get(self, key: str, default: Json = None) -> Json:
        return self._retired().get(key, default)

    def keys(self) -> Iterable[str]:
        return self._retired().keys()

    def _retired(self) -> dict[str, Json]:
        name = type(self).__name__
        text = f"{name} is no longer a dictionary: read its attributes or as_json(); [] will be removed in the next version"
        warnings.warn(text, Retired, stacklevel=3)
        return self.as_json()


def finite(value: Json) -> float | None:
    """A number, or None for anything else: NaN, infinity, text."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _plain(value: Json) -> Json:
    if isinstance(value, Document):
        return value.as_json()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Json, figure: object) -> Any:
    """A JSON value as a field of this type; None where there is none."""
    if value is None:
        return None
    kind = figure if isinstance(kind, TypeVar) else kind
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is types.UnionType:
        some = [k for k in inner if k is not types.NoneType]
        return _read(some[0], value, figure) if len(some) == 1 else value
    if origin is float:
        return finite(value)
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is ... else inner
        return tuple(_read(k, v, figure) for k, v in zip(kinds, value, strict=True))
    if origin is Metrics:
        figures = {name: _read(inner[0], v, figure) for name, v in value.items()}
        return Metrics({name: v for name, v in figures.items() if v is not None})
    if origin is Mapping:
        return {str(key): _read_named(inner[1], str(key), v, figure) for key, v in value.items()}
    if isinstance(origin, type) and issubclass(origin, Document):
        return origin.from_json(value, inner[0] if inner else figure)
    return value


def _read_named(kind: Any, name: str, value: Json, figure: object) -> Any:
    """A value of a mapping; a document that does not state its name is given that of its key."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Document) and "name" in origin.UNSTATED:
        return origin.from_json(value or {"": None}, inner[0] if inner else figure, name=name)
    return _read(kind, value, figure)
