"""What a strategy may state about itself beyond the protocol `Strategy`, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class StrategyTraits:
    """What a strategy may state about itself, with the value that holds where it does not."""

    topology: str | None = None
    """Who sends to whom unless the study names another topology; None if the strategy sends nothing."""
    common: str | None = None
    """The model of its state that all sites have in common after a round."""
    combines: str | None = None
    """«models» or «by gossip» if a study may choose how models are combined."""
    numbers: tuple[str, ...] | None = None
    """The names of the numbers that go with its models, `*` for any word; None accepts every name."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The range of each number; a parcel with a number outside is refused."""
    gradient_sums: bool = False
    """Whether parcels hold sums of gradients instead of models."""
    steps: int | None = None
    """The number of private steps in a round; None leaves it to the study."""
    shares_out: bool = False
    """Whether vectors are divided between two servers (`Peers.distances`); only then do nodes accept such parcels."""
    pools: bool = False
    """Whether all records are used in one place, which exists in simulations only."""
    compares_with_alone: bool = False
    """Whether its `finish` compares the result with training alone (see `Finishes`)."""
    unproven: str | None = None
    """Why its releases have no proven guarantee; None if they have."""


def traits(strategy: object) -> StrategyTraits:
    """What a strategy states about itself."""
    names = (f.name for f in fields(StrategyTraits))
    return StrategyTraits(**{name: getattr(strategy, name) for name in names if hasattr(strategy, name)})
