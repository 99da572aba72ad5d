"""The strategies in words: what each does and which options it has, from its docstring and fields."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

from confrere.core.strategy_traits import traits
from confrere.strategies import discover
from confrere.strategies import strategies as known


@dataclass(frozen=True)
class StrategyOption:
    """An option of a strategy, as a study states it."""

    name: str
    default: Any
    type: str


@dataclass(frozen=True)
class StrategyDescription:
    """A strategy in words."""

    name: str
    summary: str
    source: str
    """Who published it, and when."""
    options: tuple[StrategyOption, ...]
    topology: str

    def as_json(self) -> dict[str, Any]:
        """What `confrere strategies --json` prints."""
        return {**vars(self), "options": [vars(option) for option in self.options]}


def list_strategies() -> tuple[StrategyDescription, ...]:
    """All strategies that a study may name, with their options; what `confrere strategies` prints.

    >>> next(s.summary for s in confrere.list_strategies() if s.name == "fedprox")
    'FedAvg with...'
    """
    return tuple(describe_strategy(name) for name in discover())


def describe_strategy(name: str) -> StrategyDescription:
    """One strategy in words."""
    kind = known[name]
    first = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    summary, _, source = first.partition(" (")
    options = tuple(
        StrategyOption(f.name, f.default, str(f.type)) for f in dataclasses.fields(kind) if f.init
    )
    return StrategyDescription(
        name, summary.rstrip("."), source.rstrip(").") if source else "", options,
        traits(kind).topology or "none",
    )  # fmt: skip
