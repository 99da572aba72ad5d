"""Where each trainable parameter lies in the flat vector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Sorted names of the trainable parameters and their shapes: the order of every flat vector.

    It is the order of `core.Params.flatten()`. A tied parameter appears once, under the first
    name that `module.named_parameters()` gives it.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        found = sorted((n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad)
        return cls(tuple(n for n, _ in found), tuple(s for _, s in found))

    @cached_property
    def size(self) -> int:
        """How many numbers the flat vector has."""
        return sum(prod(s) for s in self.shapes)

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Where each parameter begins and ends."""
        out, at = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            out[name] = (at, at + prod(shape))
            at += prod(shape)
        return out

    @cached_property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """The parameters of each layer: those whose names agree up to the last dot."""
        out: dict[str, list[str]] = {}
        for name in self.names:
            out.setdefault(name.rpartition(".")[0], []).append(name)
        return {layer: tuple(names) for layer, names in out.items()}

    def split(self, flat: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Views into the flat vector, one for each parameter, in its shape."""
        shapes = dict(zip(self.names, self.shapes, strict=True))
        return {
            name: flat[slice(*self.spans[name])].view(shapes[name])
            for name in (self.names if names is None else names)
        }
