"""The centre of a `centred-linear` proxy: the mean of the records and the class shares, released under privacy.

Both are sums over records, and a private step releases such a sum. So a proxy that has a centre learns it in its first
rounds, with the study's own mechanism and charged like any other round. Where sites exchange sums of gradients (masked or
not), those of the first rounds are sums of records and of classes instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from confrere.core.custody import public
from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.learning.common_state import CommonState, at_rest, latest, send, stepped
from confrere.learning.optimisers import SGD


@dataclass(frozen=True)
class Profiled:
    """Not a loss but a sum: its gradient is minus the record and minus its class, so one step releases both."""

    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return -own[:, 0] - own[:, 1:].gather(1, targets.long()[:, None])[:, 0]


PROFILE = "profile"
SUMS = SGD(1.0)
"""How a proxy is moved while its centre is released: the steps add up plain sums."""
CENTRE = ("mean.weight", "shares.weight")
"""The weights of a centre; their gradients are sums over records."""


def has_centre(model: Model) -> bool:
    return "shares.weight" in model.params


async def profile(site: Site, proxy: Model) -> Model:
    """The proxy with what this site's records say about the centre added to it, under privacy."""
    resting = replace(proxy, architecture=site.build(PROFILE).architecture)
    trained = await site.train({PROFILE: Profiled()}, {PROFILE: resting}, protect=[PROFILE])
    return replace(trained[PROFILE], architecture=proxy.architecture)


async def profile_together(common: CommonState, site: Site, peers: Peers) -> CommonState:
    """The common state with what all sites' records say about the centre: one sum in the place of a step.

    The optimiser has not begun after it: its moments are still zero.
    """
    rule, size = site.optimiser(), public(site.size)
    common = await latest(common, rule, peers)
    resting = replace(common.model, architecture=site.build(PROFILE).architecture)
    found = await site.gradient_sum(Profiled(), at=resting, role=PROFILE)
    if isinstance(found, Model):  # not a share of a masked sum
        found = replace(found, architecture=common.model.architecture)
    opened = await peers.sum(found, since=common.version, weight=size, rate=size * rule.learning_rate)
    if opened is None:
        if peers.diverged:
            await send(common, rule, peers)
        return common
    weight = opened.scalars["weight"]  # a plain mean, whatever the learning rates are
    plain = replace(opened, scalars={"weight": weight, "rate": weight * SUMS.learning_rate})
    common = at_rest(stepped(common, SUMS, plain, CENTRE), rule)
    await send(common, rule, peers)
    return common
