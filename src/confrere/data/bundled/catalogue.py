"""The list of bundled sets and the one way to open them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from confrere.core.errors import StudyError
from confrere.data.bundled import thyroid
from confrere.data.partition import FRACTIONS, Fractions
from confrere.data.records import Card, Federation

Opener = Callable[..., Federation]
_SETS: dict[str, tuple[Card, Opener]] = {"thyroid": (thyroid.CARD, thyroid.open_federation)}


def catalogue() -> list[Card]:
    """The cards of all bundled sets."""
    return [card for card, _ in _SETS.values()]


def federation(name: str, *, seed: int = 0, split: Fractions = FRACTIONS, **options: Any) -> Federation:
    """A bundled set as sites with train, validation and test parts."""
    if name not in _SETS:
        near = difflib.get_close_matches(name, _SETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_SETS)}"
        raise StudyError(f"there is no bundled data set {name!r}; {hint}")
    return _SETS[name][1](seed=seed, split=split, **options)
