"""One dense network at many sites as batched matrix products, with a hand-written backward pass.

A stack holds the weights of K sites as a matrix [K, weights], each row in the order of `Network.flat`. It supports
sequences of dense layers, reshaping, and activations whose derivative follows from their output; `layers_of` returns None
for all other networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from confrere.privacy.stacked_steps import Trace


@dataclass(frozen=True)
class Dense:
    """A fully connected layer: the positions of its weight and bias in the flat vector."""

    weight: tuple[int, int]
    bias: tuple[int, int] | None
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Activation:
    """An elementwise function whose derivative follows from its output."""

    kind: str
    slope: float = 0.0


Layer = Dense | Activation

ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.LeakyReLU: "leaky"}


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
        if part is None or _has_hooks(part):
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
            found.append(Activation(ACTIVATIONS[type(part)], slope))
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
    if type(module) is nn.Sequential and not _has_hooks(module):
        for part in module:
            yield from _chain(part)
    elif type(module) is nn.Linear or type(module) in ACTIVATIONS:
        yield module
    elif not (flat or still or type(module) is nn.Identity):
        yield None


def _has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, which a stack would not call."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks) or "forward" in vars(module)


class Stack:
    """The weights of K sites, with a forward and a backward pass for all of them at once."""

    def __init__(self, layers: Sequence[Layer], weights: Tensor) -> None:
        self.layers, self.weights = tuple(layers), weights
        self._views: dict[int, list[tuple[Tensor, Tensor | None] | None]] = {}
        self._separate: list[tuple[Tensor, Tensor | None] | None] | None = None

    def separate_layers(self) -> None:
        """Hold each layer's weights in a contiguous tensor until `join_layers`, so that `sgd_step` need not copy them."""
        self._separate = [
            None
            if view is None
            else (view[0].contiguous(), None if view[1] is None else view[1].contiguous())
            for view in self.views(len(self.weights))
        ]
        self._views = {}

    def join_layers(self) -> None:
        """Copy the layers' weights back into one row per site."""
        separate, self._separate, self._views = self._separate, None, {}
        for view, held in zip(self.views(len(self.weights)), separate or (), strict=True):
            if view is not None and held is not None:
                view[0].copy_(held[0])
                if view[1] is not None and held[1] is not None:
                    view[1].copy_(held[1])

    def sgd_step(self, traces: Sequence[Trace], rate: float) -> None:
        """A step of plain SGD, without storing the gradient first."""
        dense = [view for view in self.views(len(traces[0].errors)) if view is not None]
        for (weight, bias), trace in zip(reversed(dense), traces, strict=True):
            if self._separate is None:
                weight.add_(torch.bmm(trace.errors.mT, trace.inputs), alpha=-rate)
            else:
                weight.baddbmm_(trace.errors.mT, trace.inputs, alpha=-rate)
            if bias is not None:
                bias.add_(trace.errors.sum(1), alpha=-rate)

    def views(self, sites: int) -> list[tuple[Tensor, Tensor | None] | None]:
        """Weight and bias of each dense layer at the first `sites` sites; None for other layers."""
        if sites not in self._views and self._separate is not None:
            self._views[sites] = [
                None if held is None else (held[0][:sites], None if held[1] is None else held[1][:sites])
                for held in self._separate
            ]
        elif sites not in self._views:
            self._views[sites] = [_view(layer, self.weights[:sites]) for layer in self.layers]
        return self._views[sites]

    def forward(self, x: Tensor, kept: list[Tensor] | None = None) -> Tensor:
        """Outputs [sites, records, outputs] for inputs [sites, records, …]; `kept` collects what `backward` needs."""
        sites = len(x)
        h = x.flatten(2)
        for layer, view in zip(self.layers, self.views(sites), strict=True):
            if view is not None:
                if kept is not None:
                    kept.append(h)
                weight, bias = view
                h = (
                    torch.bmm(h, weight.mT)
                    if bias is None
                    else torch.baddbmm(bias.unsqueeze(1), h, weight.mT)
                )
            else:
                h = _activate(layer, h)
                if kept is not None:
                    kept.append(h)
        return h

    def backward(self, error: Tensor, kept: Sequence[Tensor]) -> list[Trace]:
        """The traces of all dense layers, from the derivative of each record's loss by the outputs."""
        traces: list[Trace] = []
        views = self.views(len(error))
        first = next(i for i, layer in enumerate(self.layers) if isinstance(layer, Dense))
        for at in range(len(self.layers) - 1, first - 1, -1):
            layer, view = self.layers[at], views[at]
            if isinstance(layer, Dense) and view is not None:
                traces.append(Trace(kept[at], error, layer.weight, layer.bias))
                if at > first:
                    error = torch.bmm(error, view[0])
            else:
                error = _backward_of_activation(layer, kept[at], error)
        return traces


def _view(layer: Layer, weights: Tensor) -> tuple[Tensor, Tensor | None] | None:
    if not isinstance(layer, Dense):
        return None
    weight = weights[:, slice(*layer.weight)].view(len(weights), layer.outputs, layer.inputs)
    return weight, None if layer.bias is None else weights[:, slice(*layer.bias)]


def _activate(layer: Layer, h: Tensor) -> Tensor:
    assert isinstance(layer, Activation)
    if layer.kind == "relu":
        return h.relu_()
    if layer.kind == "tanh":
        return h.tanh_()
    if layer.kind == "sigmoid":
        return h.sigmoid_()
    return torch.nn.functional.leaky_relu_(h, layer.slope)


def _backward_of_activation(layer: Layer, value: Tensor, error: Tensor) -> Tensor:
    """The error before an activation, from the error after it and the activation's value."""
    assert isinstance(layer, Activation)
    if layer.kind == "leaky":
        return torch.where(value > 0, error, error * layer.slope)
    if layer.kind == "relu":
        found: Tensor = torch.ops.aten.threshold_backward(error, value, 0)
    elif layer.kind == "tanh":
        found = torch.ops.aten.tanh_backward(error, value)
    else:
        found = torch.ops.aten.sigmoid_backward(error, value)
    return found
