"""Mutual learning of the private model and the proxy: who learns from whom, and how much.

The weight of the proxy in the private model's loss may follow what the proxy is worth (`auto`). That
reads the site's held-out records and is sound, since only the private model depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from confrere.core.custody import Scalar, private, public
from confrere.core.model import Model
from confrere.core.protocols import Loss, Metrics, Peers, Predictor, Site
from confrere.learning.common_state import CommonState, StepOf, latest, step_together
from confrere.learning.fit.exact_regression import head_of
from confrere.learning.objectives import Direction, Stacked, Supervised, Teacher, mutual

Auto = Literal["auto"]

MOST = 0.9
"""However good the proxy is, the site's own labels keep a tenth of the weight."""


def worth(metrics: Metrics) -> float:
    """How much better than knowing only the class shares a model predicts, per held-out record; not below 0."""
    return max(0.0, metrics["baseline_loss"].value - metrics["loss"].value)


def auto_weight(proxy: Metrics, own: Metrics) -> Scalar:
    """The distillation weight from the worth of both models on held-out records: 0 for a useless proxy.

    The squares let the better model dominate: a proxy worth half as much as the private model gets a
    fifth of the weight, one worth twice as much four fifths.
    """
    ours, theirs = worth(own), worth(proxy)
    if theirs <= 0.0:
        return private(0.0)
    return private(min(MOST, theirs**2 / (theirs**2 + ours**2)))


async def stack_weight(site: Site, proxy: Model) -> Scalar:
    """How far the proxy's outputs hold at this site: PRIVATE, and read by the private model alone."""
    return (await site.evaluate({"proxy": proxy}))["proxy"]["scale"]


PARTS = (0.5, 1.0)
"""How much of the proxy a regression with one output tries. How far each counts is a matter of the public prior."""

FRACTIONS = (0.25, 0.5, 1.0)
"""How much of the proxy other networks try, in multiples of the scale that fits the site's records."""


async def fit_on_top(site: Site, proxy: Model, ours: Scalar) -> tuple[Model, Scalar]:
    """The site's own model, trained to completion on top of the proxy, weighted by how much the proxy helps, and that weight.

    Cross-validation judges the model without the proxy and with parts of it. With s = ½ the model is trained on top of
    half of the proxy's outputs. `ours` is the share of this site in the records that the proxy has learned from, and by
    which it is judged here too well (docs/decisions/0005-do-no-harm.md). A proxy whose outputs point the wrong way at
    this site (scale 0) is not on offer: the site is left with what it has alone.
    """
    scale = (await stack_weight(site, proxy)).value
    start = site.build("private")
    parts = PARTS if head_of(site.module("private")) else tuple(scale * part for part in FRACTIONS)
    losses: list[Loss] = [Supervised()]
    if scale > 0:
        losses += [Stacked("proxy", private(part), ours) for part in parts]
    fitted = await site.fit(losses, "private", {"private": start, "proxy": proxy})
    shares = fitted.shares or tuple(float(n == fitted.loss) for n in range(len(losses)))
    weight = sum(share * part for share, part in zip(shares[1:], parts, strict=False))
    return fitted.model, private(float(weight))


def stacked(own: Model, weight: Scalar, proxy: Model) -> Mapping[str, Predictor]:
    """How a pair predicts: the private model adds its outputs to `weight` times the proxy's; the proxy stands alone."""
    return {"private": ((public(1.0), own), (weight, proxy)), "proxy": ((public(1.0), proxy),)}


@dataclass(frozen=True)
class Mutual:
    """Who learns from whom in a round of mutual learning, and how much.

    The private model learns from the proxy with the weight `alpha`, the proxy from its `teacher` with the weight `beta`.
    """

    alpha: float | Auto
    beta: float
    teacher: Teacher
    kl: Direction

    async def teach(
        self, site: Site, own: Model, proxy: Model, received: Model | None, *, stack: Scalar | None = None
    ) -> Mapping[str, Model]:
        """One round at a site. `received` is the last model that came from the peers.

        With `stack` the private model is trained on top of that much of the proxy instead of on its predictions.
        """
        models = {"private": own, "proxy": proxy}
        source: str | None = None
        if self.teacher == "private" and self.beta:
            source = "private"
        elif self.teacher == "peers" and self.beta and received is not None:
            source, models["teacher"] = "teacher", received
        weight = public(0.0) if stack is not None else await self._weight(site, own, proxy)
        objective = mutual(weight, public(self.beta), source, self.kl)
        if stack is not None:
            objective = {**objective, "private": Stacked("proxy", stack)}
        return await site.train(objective, models, protect=["proxy"])

    async def step(
        self, common: CommonState, own: Model, site: Site, peers: Peers, *, stack: Scalar | None = None
    ) -> tuple[Model, CommonState, Scalar | None]:
        """One round in which the proxy makes one step on the sum of all sites' gradients.

        Returns the private model, the common state of the proxy, and the declared sizes of the sites in the sum.
        """
        common = await latest(common, site.optimiser(), peers)
        taught = await self._teach_own(site, own, common.model, stack)
        loss, of = self._step_of_proxy(own)
        common, records = await step_together(common, loss, site, peers, of)
        return taught, common, records

    async def _teach_own(self, site: Site, own: Model, proxy: Model, stack: Scalar | None) -> Model:
        weight = public(0.0) if stack is not None else await self._weight(site, own, proxy)
        loss = mutual(weight, public(0.0), None, self.kl)["private"]
        if stack is not None:
            loss = Stacked("proxy", stack)
        return (await site.train({"private": loss}, {"private": own, "proxy": proxy}))["private"]

    def _step_of_proxy(self, own: Model) -> tuple[Loss, StepOf]:
        """The loss of the proxy in a step of all sites together.

        The peers' model is the common proxy itself there, so it cannot be its teacher. The private model from before this
        round can, as published.
        """
        if self.teacher == "private" and self.beta:
            taught = mutual(public(0.0), public(self.beta), "private", self.kl)["proxy"]
            return taught, StepOf("proxy", "proxy", {"private": own})
        return Supervised(), StepOf("proxy", "proxy")

    async def _weight(self, site: Site, own: Model, proxy: Model) -> Scalar:
        if self.alpha != "auto":
            return public(self.alpha)
        found = await site.evaluate({"private": own, "proxy": proxy})
        return auto_weight(found["proxy"], found["private"])
