"""Who computes distances between vectors that nobody sees, and what they and the user learn (`Peers.distances`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confrere.core.custody import Custody, Scalar
from confrere.core.model import Model


@dataclass(frozen=True)
class TwoServers:
    """The sites that compute distances from one user's vector without seeing a vector; all of them are different."""

    user: str
    servers: tuple[str, str]
    dealer: str
    """Gives the servers their masks."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.user, *self.servers, self.dealer)


Table = Mapping[str, tuple[float, ...]]
"""Numbers by site that a strategy keeps from round to round."""


@dataclass(frozen=True)
class Distances:
    """What `Peers.distances` tells a server."""

    squared: Mapping[str, Scalar]
    """The squared distance of each site's vector from the user's."""
    numbers: Mapping[str, Mapping[str, Scalar]]
    """The numbers that each of these sites, and the user, sent along."""
    table: Table
    """The table of the other server."""
    custody: Custody
    """The strictest custody of what went into it."""


@dataclass(frozen=True)
class OpenedMean:
    """What `Peers.open_mean` opens to the user."""

    mean: Model | None
    """None if the servers did not open one."""
    table: Table
    """The table of the servers after this round, the same at both."""
    custody: Custody
