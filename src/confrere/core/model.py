"""A model: weights, the architecture they belong to, and who may see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from confrere.core.custody import Custody, strictest
from confrere.core.errors import BadParcel
from confrere.core.params import Params, combine
from confrere.core.quick import quick


@dataclass(frozen=True)
class Architecture:
    """How to build a network; `name` is what two sites compare before they exchange weights."""

    name: str
    build: Callable[[], nn.Module]


@quick
@dataclass(frozen=True, slots=True)
class Model:
    """Weights with their custody. Immutable: training and mixing return new ones."""

    params: Params
    architecture: str
    custody: Custody

    def held(self, custody: Custody) -> Model:
        """The same weights, at least as closely held."""
        return self if custody <= self.custody else Model(self.params, self.architecture, custody)


def mix(terms: Iterable[tuple[float, Model]]) -> Model:
    """A weighted sum of models. The strictest custody among them is the custody of the result."""
    terms = list(terms)
    if not terms:
        raise ValueError("nothing to mix")
    architectures = {m.architecture for _, m in terms}
    if len(architectures) > 1:
        raise BadParcel(
            f"models of different architectures cannot be mixed: {', '.join(sorted(architectures))}"
        )
    return Model(
        combine((w, m.params) for w, m in terms),
        terms[0][1].architecture,
        strictest(m.custody for _, m in terms),
    )
