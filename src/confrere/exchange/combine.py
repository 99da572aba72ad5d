"""Combiners: one model from a site's own and the ones it received, by averaging, replacing or push-sum.

A combiner is a frozen dataclass, its fields are its options, and calling it with (own model, own weight,
parcels) gives one model. The order in which parcels arrived makes no difference. Averaging wants the
parcels of this round (`inbox.current`); push-sum wants all of them, late ones too, or mass would be lost.

    @combiner("cautious")
    @dataclass(frozen=True)
    class Cautious:
        own_share: float = 0.5  # a field is an option of the study

        def __call__(self, own, weight, inbox):
            average = mean(own, weight, inbox)
            return mix([(public(self.own_share), own), (public(1 - self.own_share), average)])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confrere.core.custody import Scalar, strictest, total
from confrere.core.model import Model, mix
from confrere.core.parcel import Parcel
from confrere.core.protocols import Combiner
from confrere.core.registry import Registry

combiners: Registry[type[Combiner]] = Registry("combiner", "confrere.combiners", package="confrere.exchange")
combiner = combiners.register


@combiner("mean")
@dataclass(frozen=True)
class Mean:
    """The average weighted by what each site declares (the scalar `weight`, 1 where there is none)."""

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        terms = [(weight, own), *((p.scalar("weight", 1.0), model) for p, model in models(inbox))]
        return _average(terms, own)


@combiner("replace")
@dataclass(frozen=True)
class Replace:
    """The newest model that arrived replaces the site's own; if none arrived, the site keeps its own."""

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        arrived = models(inbox)
        if not arrived:
            return own
        return max(arrived, key=lambda pm: (pm[0].epoch, pm[0].round, pm[0].phase, *pm[0].id[::-1]))[1]


mean, replace = Mean(), Replace()


def push_sum(own: Model, mass: Scalar, kept: float, inbox: Iterable[Parcel]) -> tuple[Model, Scalar]:
    """Mass-weighted mixing over directed graphs (Kempe et al., 2003; Assran et al., 2019).

    `own` and every parcel hold the de-biased θ = x/w, and a mass w: the site's mass before the exchange, of which it kept
    the share `kept`, and the parcel's scalar `mass`. The new mass is the sum of what was kept and what arrived, and the
    new θ the mean weighted by mass, so Σ w and Σ w·θ over all sites and all parcels in transit do not change. Late
    parcels count like any other; parcels without mass are ignored. If nothing was kept and nothing arrived, the model
    stays, the mass is 0, and there is nothing to send.
    """
    arrived = [(p.scalars["mass"], model) for p, model in models(inbox) if "mass" in p.scalars]
    terms = [(mass * kept, own), *arrived]
    return _average(terms, own), total(w for w, _ in terms)


def models(inbox: Iterable[Parcel]) -> list[tuple[Parcel, Model]]:
    """The parcels that hold a model, by sender and sequence, so that the order of arrival does not matter."""
    found = [(p, p.model) for p in sorted(inbox, key=lambda p: p.id) if p.model is not None]
    for _, model in found:
        model.params.require_unchanged()
    return found


def _average(terms: Sequence[tuple[Scalar, Model]], own: Model) -> Model:
    """The weighted mean of the models that have weight, or the site's own if none has.

    Which models count is read from all weights, so the result is held as closely as the strictest of them.
    """
    weighty = [(w, m) for w, m in terms if w.value > 0]
    held = strictest(w.custody for w, _ in terms)
    if len(weighty) < 2:
        return (weighty[0][1] if weighty else own).held(held)
    whole = Scalar(sum(w.value for w, _ in weighty), held)
    return mix((w / whole, m) for w, m in weighty)
