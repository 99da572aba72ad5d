"""What one forward and backward pass left: the per-record gradients of every parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from confrere.privacy.gradients.forms import Explicit, Groups, Metric, RecordGradients, together
from confrere.privacy.gradients.layout import Layout


@dataclass(frozen=True)
class Recorded:
    """Per-record gradients of a batch; a parameter that is absent was not used, so its gradient is zero."""

    layout: Layout
    records: int
    gradients: Mapping[str, RecordGradients]
    dtype: torch.dtype = torch.float32

    @classmethod
    def gather(
        cls,
        layout: Layout,
        records: int,
        uses: Mapping[str, Sequence[RecordGradients]],
        dtype: torch.dtype,
    ) -> Recorded:
        """Merges the uses of each parameter, which must happen before anything is measured."""
        return cls(layout, records, {name: together(found) for name, found in uses.items()}, dtype)

    def squares(
        self,
        metrics: Mapping[str, Metric] | None = None,
        groups: Groups | None = None,
        names: Iterable[str] | None = None,
    ) -> Tensor:
        """Squared length of each record's (or unit's) gradient over the named parameters."""
        total: Tensor | None = None
        unused = 0.0
        for name in self.layout.names if names is None else names:
            metric = None if metrics is None else metrics[name]
            found = self.gradients.get(name)
            if found is not None and self.records:
                part = found.squares(metric, groups)
                total = part if total is None else total + part
            elif metric is not None:
                unused += float((metric.weight * metric.centre.square()).sum())
        if total is None:
            total = torch.zeros(self.records if groups is None else groups.count, dtype=self.dtype)
        return total + unused if unused else total

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Σ factor·gradient over the records, as one flat vector in the order of the layout."""
        flat = torch.empty(self.layout.size, dtype=factors.dtype)
        self.weighted_sum_into(flat, factors, self.layout.names)
        return flat

    def weighted_sum_into(self, flat: Tensor, factors: Tensor, names: Iterable[str]) -> None:
        """Writes the weighted sum of the named parameters to their places in a flat vector."""
        for name in names:
            piece = flat[slice(*self.layout.spans[name])]
            found = self.gradients.get(name)
            if found is None or not self.records:
                piece.zero_()
            else:
                found.weighted_sum(factors, piece)

    def without(self, bad: Tensor) -> Recorded:
        """The same with the gradients of some records (a mask) set to zero."""
        kept = {name: found.without(bad) for name, found in self.gradients.items()}
        return Recorded(self.layout, self.records, kept, self.dtype)

    def total(self) -> Tensor:
        """The sum of all gradients, unclipped."""
        return self.weighted_sum(torch.ones(self.records, dtype=self.dtype))

    @classmethod
    def explicit(cls, layout: Layout, flat: Tensor) -> Recorded:
        """From gradients that are written out: records × flat vector."""
        pieces = {name: Explicit(flat[:, slice(*span)]) for name, span in layout.spans.items()}
        return cls(layout, len(flat), pieces, flat.dtype)
