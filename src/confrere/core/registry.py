"""Registries: the names that a study may use, and the class or function behind each."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from confrere.core.errors import StudyError

T = TypeVar("T")
S = TypeVar("S")
C = TypeVar("C", bound=type)


def nearest(word: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """« (did you mean "x"?)», or nothing if no known word is close."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{found[0]}"?)' if found else ""


class Registry(Generic[T]):
    """A table from name to thing, filled by a decorator.

    Every module of `package` is imported before the first lookup, so a file there is found without being listed
    anywhere. `group` is the entry-point group through which installed packages add theirs.
    """

    def __init__(self, kind: str, group: str | None = None, *, package: str | None = None) -> None:
        self.kind, self.group, self.package = kind, group, package
        self._things: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[S], S]:
        """Decorator that puts a thing into the table under the name that a study uses."""

        def add(thing: S) -> S:
            known = self._things.get(name)
            if known is not None and known is not thing and _identity(known) != _identity(thing):
                raise StudyError(f'two {self.kind} definitions are called "{name}"; rename one of them')
            self._things[name] = cast("T", thing)  # not checked here: the class keeps its own type
            return thing

        return add

    def register_instance(self, name: str) -> Callable[[C], C]:
        """Class decorator that puts an instance of the class, made without arguments, into the table."""

        def add(kind: C) -> C:
            self.register(name)(kind())
            return kind

        return add

    def remove(self, name: str) -> None:
        """Forget a name, for tests that register their own."""
        self._things.pop(name, None)

    def __getitem__(self, name: str) -> T:
        self.load()
        if name not in self._things:
            raise StudyError(self.unknown(name))
        return self._things[name]

    def unknown(self, name: str) -> str:
        """The error message for a name that is not in the table."""
        known = self.names()
        return f'unknown {self.kind} "{name}"{nearest(name, known)}; known: {", ".join(known)}'

    def __contains__(self, name: object) -> bool:
        self.load()
        return name in self._things

    def names(self) -> list[str]:
        self.load()
        return sorted(self._things)

    def values(self) -> list[T]:
        """All things, in the order of their names."""
        return [self._things[name] for name in self.names()]

    def load(self) -> None:
        """Import the modules of the package, and let installed packages add theirs."""
        if self._loaded:
            return
        self._loaded = True
        if self.package is not None:
            for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.group) if self.group is not None else ():
            try:
                thing = point.load()
            except Exception as error:
                raise StudyError(
                    f'{self.kind} "{point.name}" of an installed package cannot be loaded: {error}'
                ) from error
            if point.name not in self._things:
                self._things[point.name] = thing


def _identity(thing: object) -> tuple[str, str]:
    """Where a thing, or its type, is defined; a module that is imported twice defines the same things."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return named.__module__, named.__qualname__


strategies: Registry[type] = Registry("strategy", group="confrere.strategies", package="confrere.strategies")


def strategy(name: str) -> Callable[[S], S]:
    """Class decorator: make a frozen dataclass a strategy that studies can name.

    Its fields are its options in a study; it has `init` and an `async round` (docs/tutorials/own-strategy.md).

    >>> @confrere.strategy("mine")
    ... @dataclasses.dataclass(frozen=True)
    ... class Mine:
    ...     strength: float = 0.5
    """
    return strategies.register(name)
