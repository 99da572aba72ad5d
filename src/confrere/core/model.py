"""A model: weights, the architecture they belong to, and who may see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from confrere.core.custody import Custody, Scalar, strictest
from confrere.core.errors import BadParcel, CustodyError
from confrere.core.params import Params, combine


@dataclass(frozen=True)
class Architecture:
    """How to build a network; `name` is what two sites compare before they exchange weights."""

    name: str
    build: Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class Model:
    """Weights with their custody. Immutable: training and mixing return new ones."""

    params: Params
    architecture: str
    custody: Custody

    def held(self, custody: Custody) -> Model:
        """The same weights, at least as closely held."""
        return self if custody <= self.custody else Model(self.params, self.architecture, custody)


def mix(terms: Iterable[tuple[Scalar, Model]]) -> Model:
    """A weighted sum of models, with the strictest custody of all weights and models.

    A bare number is refused: it does not state what shaped it, and a weight that was read from records would
    turn a private choice into a model that may leave.

    >>> model = confrere.simulate(study, sites).models["site0"]["model"]
    >>> confrere.mix([(confrere.public(0.5), model), (confrere.private(0.5), model)]).custody.name
    'PRIVATE'
    """
    terms = list(terms)
    if not terms:
        raise ValueError("nothing to mix")
    for weight, _ in terms:
        if not isinstance(weight, Scalar):
            raise CustodyError(
                f"mix needs weights with custody, not the bare number {weight!r}: write public({weight!r}) if no"
                f" record shaped it, private({weight!r}) if one did"
            )
    architectures = {m.architecture for _, m in terms}
    if len(architectures) > 1:
        raise BadParcel(
            f"models of different architectures cannot be mixed: {', '.join(sorted(architectures))}"
        )
    return Model(
        combine((w.value, m.params) for w, m in terms),
        terms[0][1].architecture,
        strictest(tagged.custody for term in terms for tagged in term),
    )
