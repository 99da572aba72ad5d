"""Convolutions in one, two and three dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.privacy.gradients.forms import Explicit, Groups, Metric, blank, squares_in_chunks
from confrere.privacy.gradients.registry import Gradients, rule

AnyConv = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over an input that is already padded."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding: tuple[int, ...]


def patches(x: Tensor, geometry: Geometry, out_size: tuple[int, ...]) -> Tensor:
    """What the kernel sees at each place, as a strided view: records × groups × (channels·kernel) × places."""
    if any(geometry.padding):
        x = F.pad(x, [p for pad in reversed(geometry.padding) for p in (pad, pad)])
    records, channels = x.shape[:2]
    steps = x.stride()
    kernel_steps = [s * d for s, d in zip(steps[2:], geometry.dilation, strict=True)]
    place_steps = [s * d for s, d in zip(steps[2:], geometry.stride, strict=True)]
    view = x.as_strided(
        (records, channels, *geometry.kernel, *out_size),
        (steps[0], steps[1], *kernel_steps, *place_steps),
    )
    inside = channels // geometry.groups * prod(geometry.kernel)
    return view.reshape(records, geometry.groups, inside, prod(out_size))


@dataclass
class Convolved:
    """Gradients of a kernel: Σ over places of error ⊗ patch."""

    errors: Tensor
    inputs: Tensor
    geometry: Geometry

    def __post_init__(self) -> None:
        self._kept: Tensor | None = None

    @property
    def records(self) -> int:
        return len(self.errors)

    @property
    def size(self) -> int:
        inside = self.inputs.shape[1] // self.geometry.groups * prod(self.geometry.kernel)
        return self.errors.shape[1] * inside

    def explicit(self, rows: slice | Tensor) -> Tensor:
        errors, groups = self.errors[rows], self.geometry.groups
        seen = patches(self.inputs[rows], self.geometry, tuple(errors.shape[2:]))
        errors = errors.reshape(len(errors), groups, errors.shape[1] // groups, -1)
        return (errors @ seen.mT).flatten(1)

    def squares(self, metric: Metric | None = None, groups: Groups | None = None) -> Tensor:
        if self._kept is None and self.records * self.size <= 1 << 25:
            self._kept = self.explicit(slice(None))
        if self._kept is not None:
            return Explicit(self._kept).squares(metric, groups)
        return squares_in_chunks(self.explicit, self.records, self.size, metric, groups)

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        if self._kept is not None:
            torch.mv(self._kept.T, factors, out=out)
            return
        geometry = self.geometry
        weighted = self.errors * factors.view(-1, *[1] * (self.errors.dim() - 1))
        channels = self.inputs.shape[1] // geometry.groups
        like = out.view(self.errors.shape[1], channels, *geometry.kernel)
        zeros = [0] * len(geometry.kernel)
        _, gradient, _ = torch.ops.aten.convolution_backward(
            weighted, self.inputs, like, None, geometry.stride, geometry.padding, geometry.dilation,
            False, zeros, geometry.groups, [False, True, False],
        )  # fmt: skip
        like.copy_(gradient)

    def without(self, bad: Tensor) -> Convolved:
        return Convolved(blank(self.errors, bad), blank(self.inputs, bad), self.geometry)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, covers=("weight", "bias"))
def convolution(layer: AnyConv, inputs: tuple[Any, ...], error: Tensor) -> Gradients:
    """Convolution: a linear layer over patches."""
    x = inputs[0]
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        sides = layer._reversed_padding_repeated_twice
        x = F.pad(x, sides, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
        padding = (0,) * len(layer.kernel_size)
    geometry = Geometry(layer.kernel_size, layer.stride, layer.dilation, layer.groups, padding)
    return {"weight": Convolved(error, x, geometry), "bias": Explicit(error.flatten(2).sum(2))}
