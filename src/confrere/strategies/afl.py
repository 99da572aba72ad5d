"""Agnostic federated learning: the mixture of sites that the model does worst on is the one it is trained for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from confrere.core.custody import Scalar, public, strictest, total
from confrere.core.errors import StudyError
from confrere.core.model import Architecture, Model, mix
from confrere.core.parcel import Parcel
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import common_model
from confrere.exchange.screening import LARGEST
from confrere.exchange.sums import SUM
from confrere.learning.common_state import (
    IN_COMMON,
    SUM_RANGES,
    CommonState,
    ModelsOrGradients,
    latest,
    send,
    stepped,
    trainable_names,
)
from confrere.learning.networks.loss_sum import LOSS_SUM
from confrere.learning.objectives import Supervised
from confrere.learning.private_loss_sum import mean_loss


@dataclass(frozen=True)
class State:
    model: Model
    share: Scalar | None = None
    """This site's part of the mixture; None before its first round."""
    common: CommonState | None = None
    """Where gradients are exchanged: the model, what the common optimiser remembers, and the shares of all sites."""


SHARE, LOSS, COUNTED = "share", "loss", "counted"
"""The names of numbers in sums of gradients: of each site, by its place in the list of all sites, its share and its loss; and
the declared sizes times the weights of their sums."""

LEAST_WEIGHT = 1e-9

MOST_MEMBERS = 48
"""A parcel holds at most 64 numbers, and a sum of gradients has one for the loss of each member."""


@dataclass(frozen=True)
class Contribution:
    """What one site brings to a round."""

    site: str
    model: Model
    share: Scalar
    loss: Scalar | None


@strategy("afl")
@dataclass(frozen=True)
class AgnosticFederatedLearning(ModelsOrGradients):
    """Sites on which the common model does badly count for more, by projected ascent of the mixture (Mohri et al. 2019).

    The model goes on as the mean weighted by the shares λ; these rise by `ascent` times the site's loss and are put back
    onto the simplex. A site's loss is that of the round's common model on its training records, each cut off at `bound`.
    It is a release of its own, so a round costs as much as two and the noise is made for that.

    A site that is away keeps its share. A site knows only its own share and the threshold of the projection.

    With `exchange = "gradients"` a round is one step on the sum of all sites' gradients (see fedavg), each multiplied by
    λ/n over the largest λ/n of all sites, where n is the declared size. So no weight is above 1, and a record moves the sum
    by at most the clipping norm times its site's weight; that is what a share of a masked sum is charged for. The losses
    are released by each site, not masked, and are known to all sites, as are the shares.
    """

    ascent: float = 0.1
    bound: float = 4.0
    architecture: Literal["private", "proxy"] = "proxy"
    exchange: Literal["models", "gradients"] = "models"
    label: ClassVar[str] = "Agnostic federated learning"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    topology: ClassVar[str] = "star"
    combines_models: ClassVar[str | None] = None
    numbers_of_models: ClassVar[tuple[str, ...]] = ("share", "loss", "threshold")

    def __post_init__(self) -> None:
        for name in ("ascent", "bound"):
            if not 0 < getattr(self, name) < math.inf:
                raise StudyError(f"afl: {name} is a number above 0, not {getattr(self, name)}")

    @property
    def numbers(self) -> tuple[str, ...]:
        if not self.gradient_sums:
            return self.numbers_of_models
        return (*self.ranges, f"{LOSS} *", f"{SUM}{LOSS} *", f"{IN_COMMON}{SHARE} *")

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """Shares are on the simplex; no loss is above `bound`, so no projection takes off more than one ascent."""
        above = 1 + 1e-9
        if self.gradient_sums:
            return {**SUM_RANGES, **dict.fromkeys((COUNTED, f"{SUM}{COUNTED}"), (0.0, LARGEST))}
        return {
            "share": (0.0, above),
            "loss": (0.0, self.bound * above),
            "threshold": (-1e-9, self.ascent * self.bound * above),
        }

    def releases(self, sites: int) -> int:
        """A model and a loss."""
        return 2

    def check_members(self, members: Sequence[str], rehearsal: bool) -> Sequence[str]:
        if self.gradient_sums and len(members) > MOST_MEMBERS:
            raise StudyError(
                f"afl with sums of gradients is for at most {MOST_MEMBERS} sites, not {len(members)}: the loss of each goes"
                ' with every sum; use exchange = "models" without masks'
            )
        return []

    def networks(self, spec: Any, base: Architecture) -> Mapping[str, Any]:
        return {LOSS_SUM: LOSS_SUM}

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        if self.gradient_sums:
            return await self._step(state.common or CommonState(state.model), site, peers)
        before = await common_model(peers) or state.model
        share = state.share or public(1 / len(peers.members))
        loss = await mean_loss(site, before, self.bound)
        trained = (await site.train({"model": Supervised()}, {"model": before}, protect=["model"]))["model"]
        told = {"share": share} if loss is None else {"share": share, "loss": loss}
        inbox = await peers.exchange(trained, **told)
        if peers.centre not in (None, peers.me):
            answers = [p for p in (await peers.answer({})).current if p.sender == peers.centre]
            answer = next((p for p in answers if p.model is not None), None)
            if answer is None or answer.model is None:
                return State(trained, share)
            return State(answer.model, self._moved(share, loss, answer.scalars.get("threshold")))
        contributions = sorted(
            [Contribution(peers.me, trained, share, loss), *_arrived(inbox.current)], key=lambda s: s.site
        )
        threshold, agreed = self._threshold(contributions), _mixture(contributions)
        if peers.centre is not None:
            numbers = {} if threshold is None else {"threshold": threshold}
            await peers.answer({p.sender: agreed for p in inbox.current}, **numbers)
        await peers.send_common(agreed)
        site.weigh({s.site: self._moved(s.share, s.loss, threshold) for s in contributions})
        return State(agreed, self._moved(share, loss, threshold))

    async def _step(self, common: CommonState, site: Site, peers: Peers) -> State:
        """A round in which the model makes one step along the gradients of the mixture, and the shares one ascent."""
        rule, names = site.optimiser(), sorted(site.sizes)
        if not set(peers.members) <= set(names):
            raise StudyError(
                "afl with sums of gradients needs the declared sizes of all sites, and here they are not known"
            )
        common = await latest(common, rule, peers)
        shares = _shares(common, names, peers.members)
        weights = _weights(shares, site.sizes)
        loss = await mean_loss(site, common.model, self.bound)
        gradient = await site.gradient_sum(
            Supervised(),
            at=common.model,
            role="model",
            weights={**dict.fromkeys(names, public(0.0)), **weights},
        )
        counted = site.size * weights[site.name]
        lost = {f"{LOSS} {k}": public(0.0) for k in range(len(names))}
        if loss is not None:  # 0 where a site has released none, else from 1 to 2
            lost[f"{LOSS} {names.index(site.name)}"] = 1 + loss / self.bound
        opened = await peers.sum(
            gradient, since=common.version, weight=public(site.size), rate=counted * rule.learning_rate,
            **{COUNTED: counted}, **lost,
        )  # fmt: skip
        if opened is None:
            if peers.diverged:
                await send(common, rule, peers)
            return State(common.model, shares[site.name], common)
        if opened.scalars[COUNTED].value > 0:
            common = stepped(common, rule, opened, trainable_names(site, self.architecture), COUNTED)
        else:  # none of the sites in it has a share
            common = replace(common, version=opened.version)
        moved = self._ascended(shares, {n: opened.scalars[f"{LOSS} {k}"] for k, n in enumerate(names)})
        common = replace(
            common, numbers={f"{SHARE} {k}": moved[n] for k, n in enumerate(names) if n in moved}
        )
        await send(common, rule, peers)
        site.weigh(moved)
        return State(common.model, moved[site.name], common)

    def _ascended(self, shares: Mapping[str, Scalar], lost: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The shares after one ascent; a site whose loss is not known keeps its own."""
        losses = {n: self.bound * (lost[n] - 1) for n in shares if 1 <= lost[n].value <= 2}
        off = self._projection([(shares[name], loss) for name, loss in losses.items()])
        return {name: self._moved(share, losses.get(name), off) for name, share in shares.items()}

    def _threshold(self, contributions: Sequence[Contribution]) -> Scalar | None:
        """What the projection takes off every share; the sites that sent a loss keep the sum of their shares."""
        return self._projection([(s.share, s.loss) for s in contributions if s.loss is not None])

    def _projection(self, there: Sequence[tuple[Scalar, Scalar]]) -> Scalar | None:
        if not there:
            return None
        custody = strictest(n.custody for pair in there for n in pair)
        raised = [share.value + self.ascent * loss.value for share, loss in there]
        return Scalar(threshold(raised, sum(share.value for share, _ in there)), custody)

    def _moved(self, share: Scalar, loss: Scalar | None, off: Scalar | None) -> Scalar:
        if loss is None or off is None:
            return share
        raised = share + self.ascent * loss - off
        return raised if raised.value > 0 else Scalar(0.0, raised.custody)


def _shares(common: CommonState, names: Sequence[str], members: Sequence[str]) -> dict[str, Scalar]:
    """The mixture among the members; a member that is new, or whose share is not one, has an equal part."""
    equal = public(1 / len(members))
    known = {name: common.numbers.get(f"{SHARE} {k}", equal) for k, name in enumerate(names)}
    return {name: known[name] if 0 <= known[name].value <= 1 else equal for name in members}


def _weights(shares: Mapping[str, Scalar], sizes: Mapping[str, int]) -> dict[str, Scalar]:
    """What each site's sum of gradients is multiplied by: its share per record, over the largest of all sites.

    A weight too small to matter is 0: its charge would ask for a noise multiplier without bound.
    """
    per_record = {name: share / sizes[name] for name, share in shares.items()}
    custody, most = strictest(s.custody for s in shares.values()), max(s.value for s in per_record.values())
    if not most > 0:
        return dict.fromkeys(shares, Scalar(1.0, custody))
    weights = {name: min(1.0, found.value / most) for name, found in per_record.items()}
    return {
        name: Scalar(weight if weight >= LEAST_WEIGHT else 0.0, custody) for name, weight in weights.items()
    }


def threshold(values: Sequence[float], total: float) -> float:
    """The t for which Σ max(0, v − t) is `total`: the projection onto the simplex (Duchi et al. 2008).

    >>> threshold([0.9, 0.3], 1.0)  # doctest: +ELLIPSIS
    0.09...
    """
    found, running = -math.inf, 0.0
    for count, value in enumerate(sorted(values, reverse=True), 1):
        running += value
        if value - (running - total) / count > 0 or count == 1:
            found = (running - total) / count
    return found


def _arrived(parcels: Sequence[Parcel]) -> list[Contribution]:
    """What other sites sent; a parcel without a model or with an improper share is left out."""
    contributions = []
    for p in parcels:
        share = p.scalars.get("share", public(0.0))
        if p.model is not None and 0 <= share.value <= 1:
            contributions.append(Contribution(p.sender, p.model, share, p.scalars.get("loss")))
    return contributions


def _mixture(contributions: Sequence[Contribution]) -> Model:
    """The mean weighted by the shares; by nothing where all of them are 0."""
    whole = total(s.share for s in contributions)
    if whole.value <= 0:
        return mix([(Scalar(1 / len(contributions), whole.custody), s.model) for s in contributions])
    return mix([(s.share / whole, s.model) for s in contributions if s.share.value > 0])
