"""Registries: the names that a study may use, and the class or function behind each."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

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
    anywhere. `group` is the entry-point group through which installed packages add theirs; with `holds`, what an entry
    point names has to be an instance of it, unless its module registers the name itself. Iterating gives the names in
    the order of registration.
    """

    kinds: ClassVar[dict[str, Registry[Any]]] = {}
    """Every registry of this process that has an entry-point group, by its kind."""

    def __init__(
        self,
        kind: str,
        group: str | None = None,
        *,
        package: str | None = None,
        holds: type | None = None,
    ) -> None:
        self.kind, self.group, self.package, self.holds = kind, group, package, holds
        self._things: dict[str, T] = {}
        self._sources: dict[str, tuple[str, str]] = {}
        self._loaded = False
        if group is not None:
            Registry.kinds[kind] = self

    def register(self, name: str, source: object = None) -> Callable[[S], S]:
        """Decorator that puts a thing into the table under the name that a study uses.

        `source` is the function that the thing was made from, where the thing itself does not show where it is defined.
        """

        def add(thing: S) -> S:
            found = _identity(thing if source is None else source)
            known = self._things.get(name)
            if known is not None and known is not thing and self._source(name) != found:
                raise StudyError(f'two {self.kind} definitions are called "{name}"; rename one of them')
            self._things[name] = cast("T", thing)  # not checked here: the class keeps its own type
            self._sources[name] = found
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
        self._sources.pop(name, None)

    def _source(self, name: str) -> tuple[str, str]:
        return self._sources.get(name) or _identity(self._things[name])

    def definitions(self) -> list[Definition]:
        """Where everything in the table is defined, as far as it was registered by now."""
        return [Definition(self.kind, name, self._source(name)[0]) for name in self._things]

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

    def __iter__(self) -> Iterator[str]:
        self.load()
        return iter(tuple(self._things))

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
            if point.name in self._things:
                continue
            if self.holds is not None and not isinstance(thing, self.holds):
                raise StudyError(
                    f'{self.kind} "{point.name}" of an installed package is a {type(thing).__name__}, not a'
                    f" {self.holds.__name__}; register it under this name with the decorator"
                )
            self._things[point.name] = thing


def names_in_source(package: str, decorator: str) -> list[str]:
    """The names that the modules of a package register with a decorator, read from their source.

    Nothing is imported, so a help text can list names without loading PyTorch.
    """
    found = importlib.util.find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    pattern = re.compile(rf'^@{decorator}\("([^"]+)"', re.MULTILINE)
    files = [file for folder in folders for file in Path(folder).glob("*.py")]
    return sorted(name for file in files for name in pattern.findall(file.read_text(encoding="utf-8")))


def _identity(thing: object) -> tuple[str, str]:
    """Where a thing, or its type, is defined; a module that is imported twice defines the same things."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return named.__module__, named.__qualname__


@dataclass(frozen=True)
class Definition:
    """A registered name and the module that defines it."""

    kind: str
    name: str
    module: str

    @property
    def file(self) -> str | None:
        """The module's file; None for what was typed at a prompt."""
        return getattr(sys.modules.get(self.module), "__file__", None)


def custom_definitions() -> list[Definition]:
    """What modules outside this package have registered: another process has to import these modules too."""
    found = [d for registry in Registry.kinds.values() for d in registry.definitions()]
    return [d for d in found if d.module.partition(".")[0] != "confrere"]


def import_definitions(definitions: Sequence[tuple[str, str, str, str]]) -> None:
    """Import the modules of definitions, each (kind, name, module, file), so that their names are registered here too.

    A module is imported by its name; if it is not found, from the folder where it was in the first process.
    """
    for kind, name, module, file in definitions:
        if kind in Registry.kinds and name in Registry.kinds[kind]:
            continue
        try:
            _import(module, Path(file))
        except Exception as error:
            raise StudyError(
                f'{kind} "{name}" is defined in the module {module} ({file}), which cannot be imported here:'
                f" {error}; install it on every machine"
            ) from None
        if kind not in Registry.kinds or name not in Registry.kinds[kind]:
            raise StudyError(
                f'the module {module} ({file}) does not register {kind} "{name}" when it is imported; register'
                " it at the top level of the module"
            )


def _import(module: str, file: Path) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        levels = module.count(".") + (file.name == "__init__.py")
        folder = str(file.parents[levels])
        if not file.exists() or folder in sys.path:
            raise
        sys.path.append(folder)
        importlib.import_module(module)


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
