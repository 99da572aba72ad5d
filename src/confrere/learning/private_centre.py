"""The centre of a `centred-linear` proxy: the mean of the records and the class shares, released under privacy.

Both are sums over records, and a private step releases such a sum. So a proxy that has a centre learns it in its first
rounds, with the study's own mechanism and charged like any other round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from confrere.core.model import Model
from confrere.core.protocols import Site


@dataclass(frozen=True)
class Profiled:
    """Not a loss but a sum: its gradient is minus the record and minus its class, so one step releases both."""

    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return -own[:, 0] - own[:, 1:].gather(1, targets.long()[:, None])[:, 0]


PROFILE = "profile"


def has_centre(model: Model) -> bool:
    return "shares.weight" in model.params


async def profile(site: Site, proxy: Model) -> Model:
    """The proxy with what this site's records say about the centre added to it, under privacy."""
    resting = replace(proxy, architecture=site.build(PROFILE).architecture)
    trained = await site.train({PROFILE: Profiled()}, {PROFILE: resting}, protect=[PROFILE])
    return replace(trained[PROFILE], architecture=proxy.architecture)
