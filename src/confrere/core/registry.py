"""Names that a study may use, and the thing behind each: strategies, topologies, combiners, networks …"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from confrere.core.errors import StudyError

T = TypeVar("T")


def nearest(word: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """« (did you mean "x"?)», or nothing if no known word is close."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{found[0]}"?)' if found else ""


class Registry(Generic[T]):
    """A table from name to thing, filled by a decorator and by installed packages."""

    def __init__(self, kind: str, group: str | None = None) -> None:
        self.kind, self.group = kind, group
        self._things: dict[str, T] = {}
        self._loaded = group is None

    def register(self, name: str) -> Callable[[T], T]:
        def add(thing: T) -> T:
            known = self._things.get(name)
            if known is not None and known is not thing:
                same = getattr(known, "__qualname__", 0) == getattr(thing, "__qualname__", 1)
                if not same or getattr(known, "__module__", 0) != getattr(thing, "__module__", 1):
                    raise StudyError(f'two {self.kind} definitions are called "{name}"; rename one of them')
            self._things[name] = thing
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._things:
            raise StudyError(
                f'unknown {self.kind} "{name}"{nearest(name, list(self._things))};'
                f" known: {', '.join(sorted(self._things))}"
            )
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._things

    def names(self) -> list[str]:
        self._load()
        return sorted(self._things)

    def _load(self) -> None:
        """Let installed packages add theirs, through their entry points."""
        if self._loaded or self.group is None:
            return
        self._loaded = True
        for point in entry_points(group=self.group):
            try:
                thing = point.load()
            except Exception as error:
                raise StudyError(
                    f'{self.kind} "{point.name}" of an installed package cannot be loaded: {error}'
                ) from error
            if point.name not in self._things:
                self._things[point.name] = thing


strategies: Registry[type] = Registry("strategy", group="confrere.strategies")
strategy = strategies.register
"""Class decorator: `@strategy("name")` makes a frozen dataclass a way to collaborate that studies can name."""
