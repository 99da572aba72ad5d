"""Agreeing on a common centre: the first rounds of a proxy that has one.

The mean of the records and their class shares are sums over records, and a private step releases a sum of
what each record says. So the centre is learned with the study's own mechanism, charged as any other round is, and
travels in the proxy itself.
"""

from __future__ import annotations

from dataclasses import replace

from confrere.core.model import Model
from confrere.core.protocols import Site
from confrere.learning.balance import Profiled

PROFILE = "profile"


def has_centre(model: Model) -> bool:
    return "shares.weight" in model.params


async def profile(site: Site, proxy: Model) -> Model:
    """The proxy with what this site's records say about the centre added to it, under privacy."""
    resting = replace(proxy, architecture=site.build(PROFILE).architecture)
    trained = await site.train({PROFILE: Profiled()}, {PROFILE: resting}, protect=[PROFILE])
    return replace(trained[PROFILE], architecture=proxy.architecture)
