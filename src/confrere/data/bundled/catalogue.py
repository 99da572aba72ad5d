"""The list of bundled sets and the one way to open them."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from confrere.core.errors import StudyError
from confrere.data.bundled import breast, centres, pictures, reviews, survival, thyroid, titanic
from confrere.data.records import Card, Federation
from confrere.data.split.holdout import SPLIT, SplitRule

Opener = Callable[..., Federation]


@dataclass(frozen=True)
class Bundled:
    """A set that comes along: its card, and how it is opened."""

    card: Card
    open: Opener


SETS: dict[str, Bundled] = {
    b.card.name: b
    for b in (
        Bundled(thyroid.CARD, thyroid.open_federation),
        Bundled(breast.ORIGINAL, breast.original),
        Bundled(breast.DIAGNOSTIC, breast.diagnostic),
        Bundled(survival.DIALYSIS, survival.dialysis),
        Bundled(survival.PBC, survival.pbc),
        Bundled(centres.DIABETES, centres.diabetes),
        Bundled(survival.LUNG, survival.lung),
        Bundled(survival.LEUKAEMIA, survival.leukaemia),
        Bundled(survival.AIDS, survival.aids),
        Bundled(centres.PRETERM, centres.preterm),
        Bundled(centres.PANCREATITIS, centres.pancreatitis),
        Bundled(centres.MEDICARE, centres.medicare),
        Bundled(titanic.CARD, titanic.open_federation),
        Bundled(pictures.DIGITS, pictures.digits),
        Bundled(pictures.MNIST, pictures.mnist),
        Bundled(pictures.FASHION, pictures.fashion),
        Bundled(pictures.CIFAR, pictures.cifar10),
        Bundled(reviews.CARD, reviews.open_federation),
    )
}


def catalogue() -> list[Card]:
    """The cards of all bundled sets, with what alone and pooled training reached."""
    return [card(name) for name in SETS]


def card(name: str) -> Card:
    """The card of one set."""
    own = known(name).card
    return replace(own, reach=_reach().get(name, "not measured"))


def known(name: str) -> Bundled:
    if name not in SETS:
        near = difflib.get_close_matches(name, SETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(SETS)}"
        raise StudyError(f"there is no bundled data set {name!r}; {hint}")
    return SETS[name]


def federation(name: str, *, seed: int = 0, split: SplitRule = SPLIT, **options: Any) -> Federation:
    """A bundled set as sites with train, validation and test parts; `options` are the set's own."""
    opener = known(name).open
    parameters = inspect.signature(opener).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if not free and option not in parameters:
            own = ", ".join(p for p in parameters if p not in ("seed", "split")) or "none"
            raise StudyError(f"the data set {name!r} has no option {option!r}; it has {own}")
    opened = opener(seed=seed, split=split, **options)
    return replace(opened, card=card(name))


@cache
def _reach() -> dict[str, str]:
    """Written by `python -m confrere.data.bundled.baselines`."""
    file = resources.files("confrere.data.bundled").joinpath("baselines.toml")
    if not file.is_file():
        return {}
    return {
        name: str(row["sentence"]) for name, row in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }
