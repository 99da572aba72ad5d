"""Long rows of facts in little memory: full pages are folded, and unfolded again when somebody reads them.

A simulation of a thousand sites tells three things per site and round. As objects they take 1.7 KB, folded some 60 bytes.
A folded page never leaves the program that made it, or the workers that it was divided into: it is Python's own
`marshal`, which keeps every number to the bit and is quick, but is no format for files or strangers.
"""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar, overload

PAGE = 4096
"""So many facts make a page."""

OPEN = 4
"""So many pages lie open, the latest; a rehearsal of a few hospitals folds nothing. Open, a page takes some 2.5 MB."""

Fact = TypeVar("Fact")
Row = tuple[Any, ...]
PLAIN = frozenset({str, int, float, bool, type(None)})
HOLDING = frozenset({dict, list, tuple})
DEEPEST = 32
"""What lies deeper than this, or within itself, is left as it is."""


def fold(rows: list[Row]) -> bytes | None:
    """Rows of plain values as bytes; None if something else is among them, which would not come back as it was."""
    return zlib.compress(marshal.dumps(rows), 1) if _plain(rows) else None


def unfold(page: bytes) -> list[Row]:
    """The inverse of `fold`."""
    found: list[Row] = marshal.loads(zlib.decompress(page))
    return found


def _plain(rows: list[Row]) -> bool:
    """Whether these rows hold plain values alone, and lists, tuples and dictionaries of them; looked at level by level."""
    level: list[Collection[Any]] = list(rows)
    for _ in range(DEEPEST):
        if not level:
            return True
        values = list(chain.from_iterable(level))
        kinds = set(map(type, values)) - PLAIN
        if not kinds <= HOLDING:
            return False
        held = [value for value in values if type(value) in HOLDING] if kinds else []
        if not PLAIN.issuperset(map(type, chain.from_iterable(v for v in held if type(v) is dict))):
            return False
        level = [value.values() if type(value) is dict else value for value in held]
    return False


class Pages(Sequence[Fact], Generic[Fact]):
    """Facts in the order in which they were added: a list to whoever reads it."""

    def __init__(
        self, spell: Callable[[Fact], Row], build: Callable[[Row], Fact], page: int | None = PAGE
    ) -> None:
        """`spell` gives the plain values of a fact and `build` the fact again; without a `page` nothing is folded."""
        self._spell, self._build, self._page = spell, build, page
        self._full: list[bytes | list[Fact]] = []
        self._ends: list[int] = []
        self._open: list[Fact] = []

    def append(self, fact: Fact) -> None:
        self._open.append(fact)
        if self._page is not None and len(self._open) >= self._page * OPEN:
            self._close(self._page)

    def take(self, page: bytes) -> list[Fact]:
        """Add the facts of a page that was folded elsewhere; they are returned."""
        found = self._unfolded(page)
        if self._page is None or len(found) < self._page // 16:  # too little for a page of its own
            for fact in found:
                self.append(fact)
        else:
            self._close_all()
            self._full.append(page)
            self._ends.append(len(self) + len(found))
        return found

    def folded(self) -> Iterator[bytes | list[Fact]]:
        """Everything as it is kept; facts that cannot be folded as they are."""
        self._close_all()
        yield from self._full

    def clear(self) -> None:
        self._full, self._ends, self._open = [], [], []

    def __len__(self) -> int:
        return (self._ends[-1] if self._ends else 0) + len(self._open)

    def __iter__(self) -> Iterator[Fact]:
        for page in self._full:
            yield from page if isinstance(page, list) else self._unfolded(page)
        yield from self._open

    def __reversed__(self) -> Iterator[Fact]:
        yield from reversed(self._open)
        for page in reversed(self._full):
            yield from reversed(page if isinstance(page, list) else self._unfolded(page))

    @overload
    def __getitem__(self, at: int) -> Fact: ...
    @overload
    def __getitem__(self, at: slice) -> list[Fact]: ...
    def __getitem__(self, at: int | slice) -> Fact | list[Fact]:
        if isinstance(at, slice):
            first = self._ends[-1] if self._ends else 0
            begin, end, step = at.indices(len(self))
            if step > 0 and begin >= first:  # what was added lately
                return self._open[begin - first : max(end - first, 0) : step]
            return list(self)[at]
        position = at + len(self) if at < 0 else at
        if not 0 <= position < len(self):
            raise IndexError(at)
        begin = 0
        for page, end in zip(self._full, self._ends, strict=True):
            if position < end:
                found = page if isinstance(page, list) else self._unfolded(page)
                return found[position - begin]
            begin = end
        return self._open[position - begin]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} facts>"

    def _unfolded(self, page: bytes) -> list[Fact]:
        return [self._build(row) for row in unfold(page)]

    def _close_all(self) -> None:
        while self._open:
            self._close(self._page or len(self._open))

    def _close(self, count: int) -> None:
        """Fold the oldest facts that lie open."""
        facts, self._open = self._open[:count], self._open[count:]
        self._full.append(fold([self._spell(fact) for fact in facts]) or facts)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(facts))
