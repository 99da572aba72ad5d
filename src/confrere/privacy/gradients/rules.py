"""The table of rules: how a layer's per-record gradients are found. A user adds one with the decorator `@rule`.

A rule turns what went into a layer and the gradient of what came out of it into the per-record
gradients of the layer's parameters:

    @rule(nn.Linear)
    def linear(layer, inputs, error):
        (x,) = inputs
        return {"weight": Outer(error, x), "bias": Explicit(error)}

Keys are names of parameters within the layer. A layer whose forward pass does not show what is
needed (attention, recurrent layers) is rewritten instead, with `@rewrite`: its function runs the
forward pass itself and taps the tensors whose gradients it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from confrere.privacy.gradients.per_record import RecordGradients

Gradients = Mapping[str, RecordGradients]
Formula = Callable[[Any, tuple[Any, ...], Tensor], Gradients]


class GradientTap(Protocol):
    """Asks for the gradient of a tensor, and says what the layer's per-record gradients are then.

    `reads` are the tensors that `then` will look at again: they may not be changed in place meanwhile.
    `dim` is the dimension that counts the records. The tensor that is returned takes the place of the
    one that was given.
    """

    def __call__(
        self,
        tensor: Tensor,
        then: Callable[[Tensor], Gradients],
        reads: tuple[Any, ...] = (),
        dim: int = 0,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Rule:
    """How a layer is run while it is being recorded."""

    forward: Callable[..., Any]
    """(layer, tap, *inputs, **options) → output."""
    covers: frozenset[str] | None
    """Names of the parameters it can handle; None stands for all that the layer has."""
    accepts: Callable[[Any], bool]
    """Whether the rule holds for a layer with these settings; otherwise it falls back."""


_rules: dict[type[nn.Module], Rule] = {}


def _any(layer: nn.Module) -> bool:
    return True


def rewrite(
    *kinds: type[nn.Module],
    covers: tuple[str, ...] | None = None,
    accepts: Callable[[Any], bool] = _any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a forward pass that taps what it needs: (layer, tap, *inputs, **options) → output."""

    def register(forward: Callable[..., Any]) -> Callable[..., Any]:
        for kind in kinds:
            _rules[kind] = Rule(forward, None if covers is None else frozenset(covers), accepts)
        return forward

    return register


def rule(
    *kinds: type[nn.Module],
    covers: tuple[str, ...] | None = None,
    accepts: Callable[[Any], bool] = _any,
) -> Callable[[Formula], Formula]:
    """Registers a formula for layers of exactly these types: (layer, inputs, error) → gradients.

    A subclass may compute something else, so it does not inherit the rule: register it by name.
    """

    def register(formula: Formula) -> Formula:
        def forward(layer: nn.Module, tap: GradientTap, *inputs: Any, **options: Any) -> Any:
            given = (*inputs, *options.values())
            output = type(layer).forward(layer, *inputs, **options)
            kept = tuple(x.detach() if isinstance(x, Tensor) else x for x in given)
            return tap(output, lambda error: formula(layer, kept, error), given)

        rewrite(*kinds, covers=covers, accepts=accepts)(forward)
        return formula

    return register


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of a layer, if there is one that holds for it as it is."""
    found = _rules.get(type(layer))
    if found is None or not found.accepts(layer):
        return None
    if found.covers is not None:
        own = {name for name, p in layer.named_parameters() if p.requires_grad}
        if not own <= found.covers:
            return None
    return found


def forget(kind: type[nn.Module]) -> None:
    """Takes a rule back; layers of this type then go through the general way."""
    _rules.pop(kind, None)
