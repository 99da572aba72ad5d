"""One mean model for all sites, with or without a synchronising site."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from confrere.core.custody import Scalar
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.core.protocols import Combiner, Peers


async def common_model(peers: Peers) -> Model | None:
    """The model that the others have in common, at a site that was absent when they agreed on it; else None."""
    return next((parcel.model for parcel in await peers.latest_common()), None)


async def agree(peers: Peers, own: Model, weight: Scalar, combiner: Combiner, **scalars: Scalar) -> Model:
    """Exchange models and combine them.

    Where the topology has a centre, that site combines and answers all others (it is a site like any
    other, and may be another one in each round). Without a centre each site combines what it received.
    A site that gets no answer goes on with its own model; the journal says who was missing. A site that
    was not there is sent the result for when it comes back (`common_model`). The combiner sees the `scalars` of those who sent.
    What the study says about combining wins over the strategy's `combiner`.
    """
    return (await agree_with_answer(peers, own, weight, combiner, dict, **scalars))[0]


async def agree_with_answer(
    peers: Peers,
    own: Model,
    weight: Scalar,
    combiner: Combiner,
    adds: Callable[[], Mapping[str, Scalar]],
    **scalars: Scalar,
) -> tuple[Model, Parcel | None]:
    """The same for a centre whose answer has more numbers: those that `adds` returns after combining.

    Also returns the answer that this site received, if any.
    """
    agreed, answer = await _agreed(peers, own, weight, combiner, adds, scalars)
    await peers.send_common(agreed)
    return agreed, answer


async def _agreed(
    peers: Peers,
    own: Model,
    weight: Scalar,
    combiner: Combiner,
    adds: Callable[[], Mapping[str, Scalar]],
    scalars: Mapping[str, Scalar],
) -> tuple[Model, Parcel | None]:
    inbox = await peers.exchange(own, weight=weight, **scalars)
    arrived = [p for p in inbox.current if p.model is not None]
    voices: Sequence[Parcel] = arrived
    if peers.combiner is not None:  # which also wants to know whose model was left aside
        combiner, voices = peers.combiner, inbox.current
    if peers.centre is None:
        return _bounded(combiner(own, weight, voices), peers.largest), None
    if peers.me == peers.centre:
        agreed = _bounded(combiner(own, weight, voices), peers.largest)
        await peers.answer({p.sender: agreed for p in arrived}, **adds())
        return agreed, None
    answers = await peers.answer({})
    for parcel in answers.current:
        if parcel.sender == peers.centre and parcel.model is not None:
            return parcel.model, parcel
    return own, None


def _bounded(model: Model, largest: float) -> Model:
    """The model with no weight beyond what peers accept: a combiner that adds to the mean (CoLN) could go there by one lie."""
    if not largest < model.params.largest() < math.inf:
        return model
    cut = {n: t.clamp(-largest, largest) if t.is_floating_point() else t for n, t in model.params.items()}
    return Model(Params(cut), model.architecture, model.custody)
