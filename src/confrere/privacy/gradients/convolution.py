"""Rule of convolutions in one, two and three dimensions.

A kernel's gradient is Σ over places of error ⊗ patch. Two ways lead to its length, and which is cheaper
depends on the shapes: write the gradient out (few parameters), or take the product of two Gram matrices over
places (many parameters, few places). The choice follows a cost model fitted to measured times, not a stopwatch,
so that runs can be repeated exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.privacy.gradients.per_record import (
    FEW,
    KEPT,
    SINGLE,
    Explicit,
    FromErrors,
    Groups,
    Sum,
    WeightedNorm,
    few_squares,
    gram_squares,
    squares_in_chunks,
    weighted_rows,
    zero_rows,
)
from confrere.privacy.gradients.rules import Gradients, rule

AnyConv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Way = Literal["keep", "write", "gram"]

MOST_KEPT = 1 << 26
"""At most this many numbers of a layer's explicit gradients are kept between norm and sum."""
BUFFER = 1 << 19
"""Patches are copied out this many numbers at a time: they stay in the cache until the product."""
FEW_PARAMETERS = 1 << 14


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over its input."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int


@dataclass
class KernelPatches(FromErrors):
    """Gradients of a kernel, from inputs (records × channels × places) and errors."""

    geometry: Geometry

    @property
    def inside(self) -> int:
        """Numbers in a patch that one output channel sees."""
        return self.inputs.shape[1] // self.geometry.groups * prod(self.geometry.kernel)

    @property
    def size(self) -> int:
        return self.errors.shape[1] * self.inside

    def squares(self, norm: WeightedNorm | None = None, groups: Groups | None = None) -> Tensor:
        way = self._way(norm is None and groups is None)
        if norm is not None and groups is None and way == "write" and self._is_small():
            errors = self.errors.flatten(2).mT
            return few_squares(errors, self._all_patches().mT, norm)
        if way == "keep" and self._kept is None:
            self._kept = self.explicit(slice(None))
        if self._kept is not None:
            return Explicit(self._kept).squares(norm, groups)
        if way == "write":
            return squares_in_chunks(self.explicit, self.records, self.size, norm, groups)
        errors, seen = self.errors.flatten(2), self._all_patches()
        return gram_squares(errors.mT @ errors, seen.mT @ seen)

    def _way(self, may_gram: bool) -> Way:
        """The cheapest way, in nanoseconds per record beyond the sum that has to be computed anyway."""
        places, numbers = prod(self.errors.shape[2:]), self.records * self.size
        costs: dict[Way, float] = {"write": (0.4 + places / 30) * self.size}
        if numbers <= MOST_KEPT:
            costs["keep"] = (0.7 if numbers <= KEPT else 4.0) * self.size  # fresh memory is slow
        if may_gram and self.geometry.groups == 1:
            costs["gram"] = places**2 * (self.errors.shape[1] + self.inside) / 30 + places * self.inside
        return min(costs, key=costs.__getitem__)

    def _padded(self, rows: slice | Tensor = slice(None)) -> Tensor:
        x = self.inputs[rows]
        padding = self.geometry.padding
        return F.pad(x, [p for side in reversed(padding) for p in (side, side)]) if any(padding) else x

    def _patches(self, x: Tensor) -> Tensor:
        """What the kernel sees at each place of padded inputs, as a view that overlaps itself."""
        g, steps = self.geometry, x.stride()
        within = [s * d for s, d in zip(steps[2:], g.dilation, strict=True)]
        between = [s * d for s, d in zip(steps[2:], g.stride, strict=True)]
        size = (len(x), x.shape[1], *g.kernel, *self.errors.shape[2:])
        return x.as_strided(size, (steps[0], steps[1], *within, *between), x.storage_offset())

    def explicit(self, rows: slice | Tensor) -> Tensor:
        groups, inside = self.geometry.groups, self.inside
        errors = self.errors[rows]
        count, places = len(errors), prod(errors.shape[2:])
        errors = errors.reshape(count, groups, -1, places)
        each = errors.shape[2]
        view = self._patches(self._padded(rows))
        out = errors.new_empty(count, groups, each, inside)
        step = max(1, min(count, BUFFER // max(1, groups * inside * places)))
        buffer = errors.new_empty(step, *view.shape[1:])
        for at in range(0, count, step):
            end = min(at + step, count)
            buffer[: end - at].copy_(view[at:end])
            seen = buffer[: end - at].view(-1, inside, places)
            error = errors[at:end].flatten(0, 1)
            if places > 64 and self.size <= FEW_PARAMETERS:  # the longer side first: faster products
                out[at:end].flatten(0, 1).copy_((seen @ error.mT).mT)
            else:
                torch.bmm(error, seen.mT, out=out[at:end].view(-1, each, inside))
        return out.view(count, -1)

    def _is_small(self) -> bool:
        """Few places and no groups: deep layers, whose kernels are large and whose images are not."""
        return prod(self.errors.shape[2:]) <= FEW and self.geometry.groups == 1

    def _all_patches(self) -> Tensor:
        return self._patches(self._padded()).reshape(self.records, self.inside, -1)

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        if self._kept is not None:
            weighted_rows(self._kept, factors, out)
            return
        if out.dtype != self.errors.dtype:
            self._add_in_parts(factors, out)
            return
        g = self.geometry
        weighted = self.errors * factors.view(-1, *[1] * (self.errors.dim() - 1))
        if self._is_small():  # one product over all records is faster than the convolution's own
            seen = self._patches(self._padded()).movedim(0, 1 + len(g.kernel)).reshape(self.inside, -1)
            error = weighted.transpose(0, 1).reshape(self.errors.shape[1], -1)
            torch.mm(error, seen.T, out=out.view(-1, self.inside))
            return
        like = out.view(self.errors.shape[1], -1, *g.kernel)
        zeros = [0] * len(g.kernel)
        _, gradient, _ = torch.ops.aten.convolution_backward(
            weighted, self.inputs, like, None, g.stride, g.padding, g.dilation,
            False, zeros, g.groups, [False, True, False],
        )  # fmt: skip
        like.copy_(gradient)

    def _add_in_parts(self, factors: Tensor, out: Tensor) -> None:
        """The weighted sum in the precision of `out`, from copies of a few records at a time."""
        part = torch.empty_like(out)
        out.zero_()
        for at in range(0, self.records, SINGLE):
            rows = slice(at, at + SINGLE)
            few = KernelPatches(
                self.errors[rows].to(out.dtype), self.inputs[rows].to(out.dtype), self.geometry
            )
            few.weighted_sum(factors[rows].to(out.dtype), part)
            out += part

    def without(self, bad: Tensor) -> KernelPatches:
        return KernelPatches(zero_rows(self.errors, bad), zero_rows(self.inputs, bad), self.geometry)

    def joined(self, others: Sequence[KernelPatches]) -> Sum:
        return Sum((self, *others))


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, covers=("weight", "bias"))
def convolution(layer: AnyConv, inputs: tuple[Any, ...], error: Tensor) -> Gradients:
    """Convolution: a linear layer over patches."""
    x = inputs[0]
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        sides = layer._reversed_padding_repeated_twice
        x = F.pad(x, sides, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
        padding = (0,) * len(layer.kernel_size)
    geometry = Geometry(layer.kernel_size, layer.stride, layer.dilation, padding, layer.groups)
    out: dict[str, Any] = {"weight": KernelPatches(error, x, geometry)}
    if layer.bias is not None:
        out["bias"] = Explicit(error.flatten(2).sum(2))
    return out
