"""Open a bundled data set as a federation, or list the cards of all of them.

A set with a site column needs its declaration in sets.toml only; `OPENERS` names those that need more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from confrere.core.errors import StudyError
from confrere.data.bundled import pictures, prepared_tables
from confrere.data.bundled.opening import open_table
from confrere.data.bundled.reviews import reviews
from confrere.data.bundled.sets import known, sets
from confrere.data.federation import Opening
from confrere.data.records import Card, Federation
from confrere.data.split.holdout import SPLIT, SplitRule

Opener = Callable[..., Federation]

OPENERS: dict[str, Opener] = {
    "thyroid": prepared_tables.thyroid,
    "breast-original": prepared_tables.breast_original,
    "breast-diagnostic": prepared_tables.breast_diagnostic,
    "dialysis": prepared_tables.dialysis,
    "aids": prepared_tables.aids,
    "titanic": prepared_tables.titanic,
    "digits": pictures.digits,
    "mnist": pictures.idx_pictures,
    "fashion-mnist": pictures.idx_pictures,
    "cifar10": pictures.cifar10,
    "movie-reviews": reviews,
}


def catalogue() -> list[Card]:
    """The cards of all bundled sets, with what alone and pooled training reached."""
    return [own.card for own in sets().values()]


def federation(name: str, *, seed: int = 0, split: SplitRule = SPLIT, **options: Any) -> Federation:
    """A bundled set as sites with train, validation and test parts; `options` are the set's own."""
    own, opener = known(name), OPENERS.get(name, open_table)
    parameters = inspect.signature(opener).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if not free and option not in parameters:
            has = ", ".join(p for p in parameters if p not in ("own", "opening")) or "none"
            raise StudyError(f"the data set {name!r} has no option {option!r}; it has {has}")
    opened = opener(own, Opening(name, seed, split, one_class=True, card=own.card), **options)
    return replace(opened, card=own.card)
