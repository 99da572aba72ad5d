"""One dense network at many sites as batched matrix products, with a hand-written backward pass.

A stack holds the weights of K sites as a matrix [K, weights], each row in the order of `Network.flat`. It supports
sequences of dense layers, reshaping, and activations whose derivative follows from their output; `layers_of` returns None
for all other networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.privacy.gradients.recorder import has_hooks
from confrere.privacy.stacked_steps import Trace

aten = torch.ops.aten

View = tuple[Tensor, Tensor | None]
"""The weight and bias of a dense layer at several sites."""


@dataclass(frozen=True)
class Dense:
    """A fully connected layer: the positions of its weight and bias in the flat vector."""

    weight: tuple[int, int]
    bias: tuple[int, int] | None
    inputs: int
    outputs: int

    def view(self, weights: Tensor) -> View:
        weight = weights[:, slice(*self.weight)].view(len(weights), self.outputs, self.inputs)
        return weight, None if self.bias is None else weights[:, slice(*self.bias)]


@dataclass(frozen=True)
class Activation:
    """An elementwise function whose derivative follows from its output."""

    kind: type[nn.Module]
    slope: float = 0.0

    def forward(self, h: Tensor) -> Tensor:
        """The value, in place of `h`."""
        return ACTIVATIONS[self.kind][0](h, self.slope)

    def backward(self, error: Tensor, value: Tensor) -> Tensor:
        """The error before the activation, from the error after it and its value."""
        return ACTIVATIONS[self.kind][1](error, value, self.slope)


Layer = Dense | Activation

ACTIVATIONS: dict[type[nn.Module], tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    nn.ReLU: (lambda h, _: h.relu_(), lambda error, value, _: aten.threshold_backward(error, value, 0)),
    nn.Tanh: (lambda h, _: h.tanh_(), lambda error, value, _: aten.tanh_backward(error, value)),
    nn.Sigmoid: (lambda h, _: h.sigmoid_(), lambda error, value, _: aten.sigmoid_backward(error, value)),
    nn.LeakyReLU: (
        F.leaky_relu_,
        lambda error, value, slope: torch.where(value > 0, error, error * slope),
    ),
}


def layers_of(module: nn.Module) -> tuple[Layer, ...] | None:
    """The layers of a network in their order, or None if it is not such a chain."""
    if any(True for _ in module.buffers()) or not all(p.requires_grad for p in module.parameters()):
        return None
    names = {id(p): n for n, p in module.named_parameters()}
    sizes = {n: p.numel() for n, p in module.named_parameters()}
    spans, at = {}, 0
    for name in sorted(sizes):
        spans[name] = (at, at + sizes[name])
        at += sizes[name]
    found: list[Layer] = []
    used: list[str] = []
    for part in _chain(module):
        if part is None or has_hooks(part):
            return None
        if type(part) is nn.Linear:
            own = [names[id(p)] for p in part.parameters()]
            used += own
            bias = None if part.bias is None else spans[names[id(part.bias)]]
            found.append(Dense(spans[names[id(part.weight)]], bias, part.in_features, part.out_features))
        elif type(part) in ACTIVATIONS:
            slope = float(getattr(part, "negative_slope", 0.0))
            if not found or slope < 0:
                return None  # nothing to activate, or a derivative that does not follow from the output
            found.append(Activation(type(part), slope))
    if (
        sorted(used) != sorted(sizes)
        or not found
        or any(p.dtype != torch.float32 for p in module.parameters())
    ):
        return None  # a layer that is used twice, or parameters outside of the sequence
    return tuple(found)


def _chain(module: nn.Module) -> Iterator[nn.Module | None]:
    """The layers of a sequence in order; None for a layer that is not supported."""
    flat = type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
    still = type(module) is nn.Dropout and module.p == 0
    if type(module) is nn.Sequential and not has_hooks(module):
        for part in module:
            yield from _chain(part)
    elif type(module) is nn.Linear or type(module) in ACTIVATIONS:
        yield module
    elif not (flat or still or type(module) is nn.Identity):
        yield None


class Stack:
    """The weights of K sites, with a forward and a backward pass for all of them at once."""

    def __init__(self, layers: Sequence[Layer], weights: Tensor) -> None:
        self.layers, self.weights = tuple(layers), weights
        self._views: dict[int, list[View]] = {}
        self._separate: list[View] | None = None

    def separate_layers(self) -> None:
        """Hold each layer's weights in a contiguous tensor until `join_layers`, so that `sgd_step` need not copy them."""
        self._separate = [
            (weight.contiguous(), None if bias is None else bias.contiguous())
            for weight, bias in self.views(len(self.weights))
        ]
        self._views = {}

    def join_layers(self) -> None:
        """Copy the layers' weights back into one row per site."""
        separate, self._separate, self._views = self._separate, None, {}
        for (weight, bias), held in zip(self.views(len(self.weights)), separate or (), strict=True):
            weight.copy_(held[0])
            if bias is not None and held[1] is not None:
                bias.copy_(held[1])

    def sgd_step(self, traces: Sequence[Trace], rate: float) -> None:
        """A step of plain SGD, without storing the gradient first."""
        for (weight, bias), trace in zip(reversed(self.views(len(traces[0].errors))), traces, strict=True):
            if self._separate is None:
                weight.add_(torch.bmm(trace.errors.mT, trace.inputs), alpha=-rate)
            else:
                weight.baddbmm_(trace.errors.mT, trace.inputs, alpha=-rate)
            if bias is not None:
                bias.add_(trace.errors.sum(1), alpha=-rate)

    def views(self, sites: int) -> list[View]:
        """Weight and bias of each dense layer at the first `sites` sites."""
        if sites not in self._views:
            whole = self._separate or [
                layer.view(self.weights) for layer in self.layers if isinstance(layer, Dense)
            ]
            self._views[sites] = [(w[:sites], None if b is None else b[:sites]) for w, b in whole]
        return self._views[sites]

    def forward(self, x: Tensor, kept: list[Tensor] | None = None) -> Tensor:
        """Outputs [sites, records, outputs] for inputs [sites, records, …]; `kept` collects what `backward` needs."""
        h, views = x.flatten(2), iter(self.views(len(x)))
        for layer in self.layers:
            if isinstance(layer, Activation):
                h = seen = layer.forward(h)
            else:
                weight, bias = next(views)
                seen, h = (
                    h,
                    (
                        torch.bmm(h, weight.mT)
                        if bias is None
                        else torch.baddbmm(bias.unsqueeze(1), h, weight.mT)
                    ),
                )
            if kept is not None:
                kept.append(seen)
        return h

    def backward(self, error: Tensor, kept: Sequence[Tensor]) -> list[Trace]:
        """The traces of all dense layers, from the derivative of each record's loss by the outputs."""
        traces: list[Trace] = []
        views = list(self.views(len(error)))
        for layer, seen in zip(reversed(self.layers), reversed(kept), strict=True):
            if isinstance(layer, Activation):
                error = layer.backward(error, seen)
                continue
            traces.append(Trace(seen, error, layer.weight, layer.bias))
            weight, _ = views.pop()
            if not views:  # the first layer: nothing is trained before it
                break
            error = torch.bmm(error, weight)
        return traces
