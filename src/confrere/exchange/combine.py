"""What becomes of one's own model and the inbox: averaging, replacing, push-sum.

A combiner is a frozen dataclass, its fields are its options, and calling it with (own model, own weight,
parcels) gives one model. The order in which parcels arrived makes no difference. Averaging wants the
parcels of this round (`inbox.current`); push-sum wants all of them, late ones too, or mass would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from confrere.core.custody import Custody
from confrere.core.model import Model, mix
from confrere.core.parcel import Parcel
from confrere.core.protocols import Combiner
from confrere.core.registry import Registry

combiners: Registry[type[Combiner]] = Registry("combiner", "confrere.combiners")

T = TypeVar("T", bound=type[Combiner])


def combiner(name: str) -> Callable[[T], T]:
    """Register a combiner under the name that a study uses."""
    return combiners.register(name)  # type: ignore[return-value]


@combiner("mean")
@dataclass(frozen=True)
class Mean:
    """The average weighted by what each site declares (the scalar `weight`, 1 where there is none)."""

    def __call__(self, own: Model, weight: float, inbox: Sequence[Parcel]) -> Model:
        arrived = models(inbox, "weight")
        terms = [(weight, own)] + [(p.scalar("weight", 1.0), model) for p, model in arrived]
        return _average(terms) or own


@combiner("replace")
@dataclass(frozen=True)
class Replace:
    """The newest model that arrived takes the place of one's own; if none did, one's own stays."""

    def __call__(self, own: Model, weight: float, inbox: Sequence[Parcel]) -> Model:
        arrived = models(inbox)
        if not arrived:
            return own
        return max(arrived, key=lambda pm: (pm[0].epoch, pm[0].round, pm[0].phase, *pm[0].id[::-1]))[1]


mean, replace = Mean(), Replace()


def push_sum(own: Model, mass: float, kept: float, inbox: Iterable[Parcel]) -> tuple[Model, float]:
    """Mass-weighted mixing over directed graphs (Kempe et al., 2003; Assran et al., 2019).

    `own` and every parcel hold the de-biased θ = x/w, and a mass w: one's own mass before the exchange, of
    which the share `kept` stayed at home, and the parcel's scalar `mass`. The new mass is what was kept and
    what arrived, and the new θ the mean weighted by it, so Σ w and Σ w·θ over all sites and all parcels under
    way stay what they were. Late parcels count like any other; parcels without mass do not count at all.
    Nothing kept and nothing arrived: the model stays, the mass is 0, and there is nothing to send.
    """
    arrived = [(p.scalar("mass"), model) for p, model in models(inbox, "mass") if "mass" in p.scalars]
    terms = [(mass * kept, own), *arrived]
    return _average(terms) or own, sum(w for w, _ in terms)


def models(inbox: Iterable[Parcel], weighted_by: str = "") -> list[tuple[Parcel, Model]]:
    """The parcels that hold a model, by sender and sequence, so that the order of arrival leaves no trace.

    A model that is going to be weighted by a scalar is held at least as closely as that scalar.
    """
    arrived = sorted(inbox, key=lambda p: p.id)
    return [(p, p.model.held(_custody_of(p, weighted_by))) for p in arrived if p.model is not None]


def _custody_of(parcel: Parcel, scalar: str) -> Custody:
    return parcel.scalars[scalar].custody if scalar in parcel.scalars else Custody.PUBLIC


def _average(terms: Sequence[tuple[float, Model]]) -> Model | None:
    """The weighted mean of the models that have weight; None if nothing has any."""
    weighty = [(w, m) for w, m in terms if w > 0]
    total = sum(w for w, _ in weighty)
    if not weighty:
        return None
    return weighty[0][1] if len(weighty) == 1 else mix((w / total, m) for w, m in weighty)
