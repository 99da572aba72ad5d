"""The per-record gradients of one batch, as `recorder` leaves them, and their clipped sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from confrere.privacy.gradients.per_record import (
    SINGLE,
    Explicit,
    Groups,
    RecordGradients,
    WeightedNorm,
    merge_uses,
)


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


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped gradients over the units of a batch. It is PRIVATE: no noise was added yet."""

    flat: Tensor
    """In double precision where single precision would not do."""
    units: int
    """How many units were seen, dropped ones included."""
    dropped: int = 0
    """Units whose gradient was not finite; they add nothing."""
    below: int = 0
    """Units (not dropped) whose gradient was within the norm."""
    dtype: torch.dtype = torch.float32
    """The precision of the model's weights, in which the sum is released."""

    def __add__(self, other: ClippedSum) -> ClippedSum:
        return ClippedSum(
            self.flat + other.flat,
            self.units + other.units,
            self.dropped + other.dropped,
            self.below + other.below,
            self.dtype,
        )


@dataclass(frozen=True)
class Recorded:
    """Per-record gradients of a batch; a parameter that is absent was not used, so its gradient is zero.

    With `groups`, lengths and factors are those of units (patients), each of which may have several records.
    """

    layout: Layout
    records: int
    gradients: Mapping[str, RecordGradients]
    dtype: torch.dtype = torch.float32
    groups: Groups | None = None
    real: None = None
    precise: bool = False
    """Whether sums are in double precision, however few units there are. A unit of several records always is: they may
    be far longer than their sum."""

    @classmethod
    def gather(
        cls,
        layout: Layout,
        records: int,
        uses: Mapping[str, Sequence[RecordGradients]],
        dtype: torch.dtype,
    ) -> Recorded:
        """Merges the uses of each parameter, which must happen before anything is measured."""
        return cls(layout, records, {name: merge_uses(found) for name, found in uses.items()}, dtype)

    @classmethod
    def explicit(cls, layout: Layout, flat: Tensor) -> Recorded:
        """From gradients that are written out: records × flat vector."""
        pieces = {name: Explicit(flat[:, slice(*span)]) for name, span in layout.spans.items()}
        return cls(layout, len(flat), pieces, flat.dtype)

    def by_unit(self, units: Tensor | None) -> Recorded:
        """The same gradients, added up over the records of each unit; `units` names the unit of each record."""
        return self if units is None else replace(self, groups=Groups.of(units))

    @property
    def layers(self) -> Sequence[str]:
        return tuple(self.layout.layers)

    def squares(self, norm: WeightedNorm | None = None, layer: str | None = None) -> Tensor:
        """Squared length of each unit's gradient, of one layer or of all."""
        names = self.layout.names if layer is None else self.layout.layers[layer]
        norms = None if norm is None else self._norms(norm)
        total: Tensor | None = None
        unused = 0.0
        for name in names:
            own = None if norms is None else norms[name]
            found = self.gradients.get(name)
            if found is not None and self.records:
                part = found.squares(own, self.groups)
                total = part if total is None else total + part
            elif own is not None:
                unused += float((own.weight * own.centre.square()).sum())
        if total is None:
            count = self.records if self.groups is None else self.groups.count
            total = torch.zeros(count, dtype=self.dtype)
        return total + unused if unused else total

    def _norms(self, norm: WeightedNorm) -> dict[str, WeightedNorm]:
        """The norm of each parameter, from that of the flat vector."""
        weights = self.layout.split(norm.weight.to(self.dtype))
        centres = self.layout.split(norm.centre.to(self.dtype))
        return {name: WeightedNorm(weights[name], centres[name]) for name in self.layout.names}

    def weighted_sum(self, factors: Tensor | Sequence[Tensor]) -> Tensor:
        """Σ factor·gradient over the units as one flat vector; the factors are those of all layers, or one tensor for each."""
        layers = self.layout.layers.values()
        each = [factors] * len(layers) if isinstance(factors, Tensor) else factors
        precise = self.precise or self.groups is not None or self.records > SINGLE
        flat = torch.empty(self.layout.size, dtype=torch.float64 if precise else self.dtype)
        for names, found in zip(layers, each, strict=True):
            per_record = self._per_record(found)
            for name in names:
                piece, gradients = flat[slice(*self.layout.spans[name])], self.gradients.get(name)
                if gradients is None or not self.records:
                    piece.zero_()
                else:
                    gradients.weighted_sum(per_record, piece)
        return flat

    def _per_record(self, per_unit: Tensor) -> Tensor:
        return per_unit if self.groups is None else per_unit[self.groups.index]

    def without(self, bad: Tensor) -> Recorded:
        """The same with the gradients of some units (a mask) set to zero."""
        records = self._per_record(bad)
        return replace(self, gradients={n: found.without(records) for n, found in self.gradients.items()})

    def precisely(self) -> Recorded:
        """The same, added up in double precision."""
        return replace(self, precise=True)

    def total(self) -> Tensor:
        """The sum of all gradients, unclipped."""
        return self.weighted_sum(torch.ones(self.records, dtype=self.dtype))

    def clipped(self, flat: Tensor, bad: Tensor | None, below: Tensor) -> ClippedSum:
        """The result of clipping, with its counts."""
        dropped = 0 if bad is None else int(bad.sum())
        return ClippedSum(flat, len(below), dropped, int(below.sum()), self.dtype)


def microbatches(count: int, limit: int, units: Tensor | None) -> list[slice] | list[Tensor]:
    """Rows in parts of at most `limit`; a unit that is larger than that comes alone, in one part."""
    if units is None:
        return [slice(at, min(at + limit, count)) for at in range(0, count, limit)]
    parts: list[list[Tensor]] = [[]]
    filled = 0
    for row in Groups.of(units).rows:
        rows = row[row < len(units)]
        if filled and filled + len(rows) > limit:
            parts.append([])
            filled = 0
        parts[-1].append(rows)
        filled += len(rows)
    return [torch.cat(part) for part in parts]
