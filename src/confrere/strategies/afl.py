"""Agnostic federated learning: the mixture of sites that the model does worst on is the one it is trained for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from confrere.core.custody import Scalar, public, strictest, total
from confrere.core.errors import StudyError
from confrere.core.model import Architecture, Model, mix
from confrere.core.parcel import Parcel
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import common_model
from confrere.learning.networks.loss_sum import LOSS_SUM
from confrere.learning.objectives import Supervised
from confrere.learning.private_loss_sum import mean_loss


@dataclass(frozen=True)
class State:
    model: Model
    share: Scalar | None = None
    """This site's part of the mixture; None before its first round."""


@dataclass(frozen=True)
class Contribution:
    """What one site brings to a round."""

    site: str
    model: Model
    share: Scalar
    loss: Scalar | None


@strategy("afl")
@dataclass(frozen=True)
class AgnosticFederatedLearning:
    """Sites on which the common model does badly count for more, by projected ascent of the mixture (Mohri et al. 2019).

    The model goes on as the mean weighted by the shares λ; these rise by `ascent` times the site's loss and are put back
    onto the simplex. A site's loss is that of the round's common model on its training records, each cut off at `bound`.
    It is a release of its own, so a round costs as much as two and the noise is made for that.

    A site that is away keeps its share. A site knows only its own share and the threshold of the projection.
    """

    ascent: float = 0.1
    bound: float = 4.0
    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "Agnostic federated learning"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    numbers: ClassVar[tuple[str, ...]] = ("share", "loss", "threshold")
    topology: ClassVar[str] = "star"

    def __post_init__(self) -> None:
        for name in ("ascent", "bound"):
            if not 0 < getattr(self, name) < math.inf:
                raise StudyError(f"afl: {name} is a number above 0, not {getattr(self, name)}")

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """Shares are on the simplex; no loss is above `bound`, so no projection takes off more than one ascent."""
        above = 1 + 1e-9
        return {
            "share": (0.0, above),
            "loss": (0.0, self.bound * above),
            "threshold": (-1e-9, self.ascent * self.bound * above),
        }

    def releases(self, sites: int) -> int:
        """A model and a loss."""
        return 2

    def networks(self, spec: Any, base: Architecture) -> Mapping[str, Any]:
        return {LOSS_SUM: LOSS_SUM}

    def init(self, site: Site) -> State:
        return State(site.build(self.architecture))

    async def round(self, state: State, site: Site, peers: Peers) -> State:
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

    def _threshold(self, contributions: Sequence[Contribution]) -> Scalar | None:
        """What the projection takes off every share; the sites that sent a loss keep the sum of their shares."""
        there = [(s.share, s.loss) for s in contributions if s.loss is not None]
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
