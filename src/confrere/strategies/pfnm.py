"""Probabilistic federated neural matching: networks that learned apart are merged at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from confrere.core.custody import Scalar, public, strictest
from confrere.core.errors import StudyError
from confrere.core.model import Architecture, Model
from confrere.core.parcel import Parcel
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.exchange.averaging import agree
from confrere.exchange.combine import models as arrived
from confrere.exchange.matching import Matching
from confrere.learning.networks.matched import chain, role, stages
from confrere.learning.networks.merging import Merging
from confrere.learning.objectives import Supervised


@dataclass(frozen=True)
class State:
    own: Model
    """What the site trains, alone."""
    model: Model
    """The networks of all sites, merged."""


@strategy("pfnm")
@dataclass(frozen=True)
class PFNM(Matching):
    """Sites train apart; fully connected networks are matched unit by unit and merged at once (Yurochkin et al. 2019).

    Nothing comes back into training: what a site uses after round r is the merged network of all sites' r rounds of
    training alone. One communication is therefore a study of one round with many epochs. Units that are like no others
    become new ones, up to `growth` times as many as a layer has.
    """

    architecture: Literal["private", "proxy"] = "proxy"
    label: ClassVar[str] = "PFNM"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    common: ClassVar[str] = "model"
    numbers: ClassVar[tuple[str, ...]] = ("weight",)
    topology: ClassVar[str] = "complete"

    def networks(self, spec: Any, base: Architecture) -> Mapping[str, Any]:
        """The merged network; a StudyError where there are layers that are not fully connected."""
        module = base.build()
        layers = chain(module, base.name)
        if any(isinstance(part, nn.Conv2d) for part in module.modules()):
            raise StudyError(
                f"pfnm merges fully connected networks, and {base.name} has convolutions: use fedma, or the network mlp"
            )
        whole = role(len(layers))
        return {whole: stages(spec, len(layers), self.growth)[whole]}

    def init(self, site: Site) -> State:
        fresh = site.build(self.architecture)
        return State(fresh, fresh)

    async def round(self, state: State, site: Site, peers: Peers) -> State:
        own = (await site.train({"model": Supervised()}, {"model": state.own}, protect=["model"]))["model"]
        layers = chain(site.module(self.architecture))
        merge = _Merge(Merging(layers, self.growth, self.prior), site.build(role(len(layers))))
        return State(own, await agree(peers, own, public(site.size), merge))


@dataclass(frozen=True)
class _Merge:
    """One network out of those of all sites, the largest site's units first."""

    merging: Merging
    like: Model

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        terms = [(weight, own), *((p.scalar("weight", 1.0), m) for p, m in arrived(inbox))]
        fit = [(w.value, m) for w, m in terms if w.value > 0 and m.params.shapes == own.params.shapes]
        fit.sort(
            key=lambda t: (-t[0], t[1].params.norm())
        )  # by what all sites know, so that the order is the same everywhere
        mean = sum(w for w, _ in fit) / len(fit)
        params = self.merging.at_once(
            [m.params for _, m in fit], [w / mean for w, _ in fit], self.like.params.shapes
        )
        held = strictest([*(w.custody for w, _ in terms), *(m.custody for _, m in fit)])
        return Model(params[0], self.like.architecture, held)
