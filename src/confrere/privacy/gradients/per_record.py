"""Per-record gradients of one parameter, each in the form that is cheapest to hold.

Clipping asks three things of them, and no form needs to write the gradients out to answer:
how long each is, how far each points along a direction, and what their weighted sum is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

CHUNK = 1 << 20
"""About this many numbers of explicit gradients are held at a time when they are not kept: more would
be fresh memory from the operating system each time, which costs more than the arithmetic."""

KEPT = 1 << 23
"""At most this many numbers of explicit gradients are kept between norm and sum."""

FEW = 4
"""Up to this many positions, pairs of them are cheaper than gradients written out."""

IN_CACHE = 1 << 18
"""Numbers that are worked on together, so that they are still in the cache for the next operation."""

BLOCK = 1 << 12
"""How many squares may be added one after the other."""

SINGLE = 320
"""Up to this many units are added in single precision, more in double precision.

Adding n vectors of length C in single precision is off by at most n²/2·2^-24·C, in whatever order they are added. Two
neighbouring sums of 320 are off by at most 0.0061·C together; in double precision, those of seven million."""

EXPANSION = 1e-5
"""Allowance for rounding where terms of both signs are added, relative to the sum of their absolute values;
products over up to 4096 numbers were measured to be off by less than half of it."""


@dataclass(frozen=True)
class WeightedNorm:
    """A norm in which gradients are measured instead of the plain one: Σ weight·(gradient − centre)² (AdaCliP)."""

    weight: Tensor
    centre: Tensor


@dataclass(frozen=True)
class Groups:
    """Which records belong to which unit; a unit's gradient is the sum over its records."""

    index: Tensor
    """Number of the unit of each record, counted from 0."""
    count: int
    rows: Tensor
    """Units × most records of a unit: positions of a unit's records, and the number of records as filler."""

    @classmethod
    def of(cls, units: Tensor) -> Groups:
        ids, index = torch.unique(units, return_inverse=True)
        counts = torch.bincount(index, minlength=len(ids))
        width = int(counts.max()) if len(ids) else 0
        order = torch.argsort(index, stable=True)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(order)) - starts[index[order]]
        rows = torch.full((len(ids), width), len(units), dtype=torch.long)
        rows[index[order], place] = order
        return cls(index, len(ids), rows)

    def gather(self, values: Tensor) -> Tensor:
        """Records × rest → units × most records × rest; the filler is zero."""
        if self.rows.shape[1] == 1:
            return values[self.rows[:, 0]].unsqueeze(1)
        padded = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
        return padded[self.rows]

    def add(self, values: Tensor) -> Tensor:
        """Sums per-record values over each unit."""
        return values.new_zeros(self.count, *values.shape[1:]).index_add_(0, self.index, values)


class RecordGradients(Protocol):
    """The gradients of one parameter, one per record, in whatever form."""

    @property
    def records(self) -> int: ...

    def squares(self, norm: WeightedNorm | None = None, groups: Groups | None = None) -> Tensor:
        """Squared length of each record's (or unit's) gradient under the norm, never too small."""

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Writes Σ factor·gradient over the records into a flat piece of the parameter's size, adding in its precision."""

    def explicit(self, rows: slice | Tensor) -> Tensor:
        """The gradients of some records, written out: rows × shape of the parameter."""

    def without(self, bad: Tensor) -> RecordGradients:
        """The same with the gradients of some records (a mask) set to zero."""

    def joined(self, others: Sequence[Any]) -> RecordGradients:
        """The gradients of a parameter that was used several times, all uses being of this form."""


def row_squares(x: Tensor) -> Tensor:
    """Squared length of each row, added up in blocks.

    PyTorch's norms and dot products add one number after the other: over 2·10^7 equal numbers they were
    measured to be 1 % too short, which would break the guarantee. In blocks the error stays below 5·10^-6.
    """
    x = x.flatten(1)
    blocks = x.shape[1] // BLOCK
    if blocks == 0:
        return _lengths(x).square_()
    whole, rest = x[:, : blocks * BLOCK], x[:, blocks * BLOCK :]
    total = _lengths(whole.reshape(len(x), blocks, BLOCK)).square_().sum(1)
    return total + _lengths(rest).square_()


def _lengths(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return found


def gram_squares(errors: Tensor, inputs: Tensor) -> Tensor:
    """Squared lengths from two Gram matrices over positions (Li et al. 2022, ghost norm).

    Terms of both signs are added, so the rounding error is bounded by their absolute sum and included.
    """
    products = errors * inputs
    total = products.sum((1, 2))
    return total.clamp_(min=0).add_(products.abs_().sum((1, 2)), alpha=EXPANSION)


def weighted_rows(values: Tensor, factors: Tensor, out: Tensor) -> None:
    """Writes Σ factor·row, added in the precision of `out`."""
    if values.dtype == out.dtype:
        torch.mv(values.T, factors, out=out)
        return
    out.zero_()
    step = max(1, CHUNK // max(1, values.shape[1]))
    for rows, factor in zip(torch.split(values, step), torch.split(factors, step), strict=True):
        out.addmv_(rows.to(out.dtype).T, factor.to(out.dtype))


def zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    """Values with the rows of a mask set to zero, whatever (NaN, infinite) they held."""
    return values.masked_fill(bad.view(-1, *[1] * (values.dim() - 1)), 0)


@dataclass(frozen=True)
class Explicit:
    """Gradients written out: records × shape of the parameter."""

    values: Tensor

    @property
    def records(self) -> int:
        return len(self.values)

    def squares(self, norm: WeightedNorm | None = None, groups: Groups | None = None) -> Tensor:
        values = self.values.flatten(1)
        if groups is not None:
            values = groups.add(values)
        if norm is None:
            return row_squares(values)
        root, centre = norm.weight.reshape(-1).sqrt(), norm.centre.reshape(-1)
        rows = max(1, IN_CACHE // max(1, values.shape[1]))
        out = values.new_empty(len(values))
        for at in range(0, len(values), rows):
            out[at : at + rows] = row_squares((values[at : at + rows] - centre).mul_(root))
        return out

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        weighted_rows(self.values.flatten(1), factors, out)

    def explicit(self, rows: slice | Tensor) -> Tensor:
        return self.values[rows]

    def without(self, bad: Tensor) -> Explicit:
        return Explicit(zero_rows(self.values, bad))

    def joined(self, others: Sequence[Explicit]) -> Explicit:
        return Explicit(torch.stack([use.values for use in (self, *others)]).sum(0))


def squares_in_chunks(
    explicit: Callable[[slice | Tensor], Tensor],
    records: int,
    size: int,
    norm: WeightedNorm | None,
    groups: Groups | None,
) -> Tensor:
    """Squared lengths from explicit gradients, a bounded number of which exist at a time."""
    step = max(1, CHUNK // max(1, size))
    parts: list[Tensor] = []
    if groups is None:
        for at in range(0, records, step):
            parts.append(Explicit(explicit(slice(at, at + step))).squares(norm))
        return torch.cat(parts)
    units = max(
        1, step // max(1, groups.rows.shape[1])
    )  # so that their records stay within the step where possible
    for unit_rows in torch.split(groups.rows, units):
        held = [row[row < records] for row in unit_rows]
        total = torch.stack([_sum_in_chunks(explicit, rows, step) for rows in held])
        parts.append(Explicit(total).squares(norm))
    return torch.cat(parts)


def _sum_in_chunks(explicit: Callable[[slice | Tensor], Tensor], rows: Tensor, step: int) -> Tensor:
    total = explicit(rows[:step]).sum(0)
    for part in torch.split(rows[step:], step) if len(rows) > step else ():
        total = total + explicit(part).sum(0)
    return total


@dataclass
class FromErrors:
    """Gradients that follow from the inputs of a layer and the errors at its outputs. Written out, they may be kept."""

    errors: Tensor
    inputs: Tensor
    _kept: Tensor | None = field(default=None, init=False)

    @property
    def records(self) -> int:
        return len(self.errors)


@dataclass
class Outer(FromErrors):
    """Gradients of a matrix: Σ over positions t of error[t] ⊗ input[t].

    `errors` is records × positions × outputs and `inputs` is records × positions × inputs. With one
    position the length of a record's gradient is |error|·|input| (Goodfellow 2015); with more it
    comes from the two Gram matrices (Li et al. 2022, ghost norm) or from the product written out,
    whichever costs less.
    """

    @property
    def size(self) -> int:
        return self.errors.shape[2] * self.inputs.shape[2]

    def squares(self, norm: WeightedNorm | None = None, groups: Groups | None = None) -> Tensor:
        errors, inputs = self.errors, self.inputs
        if groups is not None:
            errors = groups.gather(errors).flatten(1, 2)
            inputs = groups.gather(inputs).flatten(1, 2)
        count, positions = errors.shape[:2]
        if norm is not None and positions <= FEW:
            return few_squares(errors, inputs, norm)
        if positions == 1:
            return row_squares(errors) * row_squares(inputs)
        gram = positions * (errors.shape[2] + inputs.shape[2])
        if norm is None and gram < self.size:
            return gram_squares(errors @ errors.mT, inputs @ inputs.mT)
        if groups is None and self._keep() is not None:
            return Explicit(self._keep()).squares(norm)  # type: ignore[arg-type]

        def product(rows: slice | Tensor) -> Tensor:
            return errors[rows].mT @ inputs[rows]

        return squares_in_chunks(product, count, self.size, norm, None)

    def _keep(self) -> Tensor | None:
        """The gradients written out once, where that is small."""
        if self._kept is None and self.records * self.size <= KEPT:
            self._kept = self.errors.mT @ self.inputs
        return self._kept

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        if self._kept is not None:
            weighted_rows(self._kept.flatten(1), factors, out)
            return
        weighted = (self.errors.to(out.dtype) * factors.view(-1, 1, 1)).flatten(0, 1)
        inputs = self.inputs.flatten(0, 1).to(out.dtype)
        torch.mm(weighted.T, inputs, out=out.view(weighted.shape[1], inputs.shape[1]))

    def explicit(self, rows: slice | Tensor) -> Tensor:
        return self.errors[rows].mT @ self.inputs[rows]

    def without(self, bad: Tensor) -> Outer:
        return Outer(zero_rows(self.errors, bad), zero_rows(self.inputs, bad))

    def joined(self, others: Sequence[Outer]) -> Outer:
        uses = (self, *others)
        return Outer(torch.cat([use.errors for use in uses], 1), torch.cat([use.inputs for use in uses], 1))


def few_squares(errors: Tensor, inputs: Tensor, norm: WeightedNorm) -> Tensor:
    """Lengths under a norm of Σ over a few positions of error ⊗ input, by products alone.

    Σ W∘(g − m)² = Σ over pairs (t, u) of (e_t∘e_u)·W·(x_t∘x_u) − 2·Σ over t of e_t·(W∘m)·x_t + Σ W∘m².
    The terms can cancel, so a bound on their rounding error is included.
    """
    positions, outputs = errors.shape[1:]
    weight = norm.weight.view(outputs, inputs.shape[2])
    pull = weight * norm.centre.view_as(weight)
    if positions == 1:
        first, second, twice = (errors.square(), inputs.square(), None)
    else:
        t, u = torch.triu_indices(positions, positions).unbind()
        first, second = errors[:, t] * errors[:, u], inputs[:, t] * inputs[:, u]
        twice = torch.where(t == u, 1.0, 2.0).to(errors.dtype)
    pairs = _bilinear(first, weight, second)
    if twice is not None:
        pairs = pairs * twice
    along = _bilinear(errors, pull, inputs).sum(1).mul_(2)
    offset = (pull * norm.centre.view_as(pull)).sum()
    spread = pairs.sum(1)
    terms = (spread if positions == 1 else pairs.abs().sum(1)) + along.abs() + offset
    return (spread - along).add_(offset).clamp_(min=0).add_(terms, alpha=EXPANSION)


def _bilinear(left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """left·matrix·right for each record and position; the product with the smaller result is taken."""
    rows = left.flatten(0, 1), right.flatten(0, 1)
    if left.shape[2] > right.shape[2]:
        found: Tensor = torch.linalg.vecdot(rows[0] @ matrix, rows[1])
    else:
        found = torch.linalg.vecdot(rows[1] @ matrix.T, rows[0])
    return found.view(left.shape[:2])


@dataclass(frozen=True)
class TableRows:
    """Gradients of a table of which each record read a few rows (an embedding)."""

    indices: Tensor
    """Records × positions."""
    errors: Tensor
    """Records × positions × width."""
    height: int

    @property
    def records(self) -> int:
        return len(self.errors)

    def squares(self, norm: WeightedNorm | None = None, groups: Groups | None = None) -> Tensor:
        owner = torch.arange(self.records) if groups is None else groups.index
        count = self.records if groups is None else groups.count
        keys = (owner[:, None] * self.height + self.indices).flatten()
        keys, place = torch.unique(keys, return_inverse=True)
        sums = self.errors.new_zeros(len(keys), self.errors.shape[2])
        sums.index_add_(0, place, self.errors.flatten(0, 1))
        out = self.errors.new_zeros(count)
        owners = torch.div(keys, self.height, rounding_mode="floor")
        if norm is None:
            return out.index_add_(0, owners, row_squares(sums))
        rows = keys % self.height
        weight, centre = norm.weight[rows], norm.centre[rows]
        untouched = (norm.weight * norm.centre.square()).sum(1)
        near = (weight * (sums - centre).square()).sum(1)
        total = out.index_add(0, owners, near) + untouched.sum()
        gone = out.index_add(0, owners, untouched[rows])
        return (total - gone).clamp_(min=0) + EXPANSION * (total + gone)

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        weighted = (self.errors.to(out.dtype) * factors.view(-1, 1, 1)).flatten(0, 1)
        out.zero_().view(self.height, -1).index_add_(0, self.indices.flatten(), weighted)

    def explicit(self, rows: slice | Tensor) -> Tensor:
        indices, errors = self.indices[rows], self.errors[rows]
        out = errors.new_zeros(len(errors), self.height, errors.shape[2])
        return out.scatter_add_(1, indices.unsqueeze(2).expand_as(errors), errors)

    def without(self, bad: Tensor) -> TableRows:
        return TableRows(self.indices, zero_rows(self.errors, bad), self.height)

    def joined(self, others: Sequence[TableRows]) -> TableRows:
        uses = (self, *others)
        indices, errors = (
            torch.cat([use.indices for use in uses], 1),
            torch.cat([use.errors for use in uses], 1),
        )
        return TableRows(indices, errors, self.height)


@dataclass(frozen=True)
class Sum:
    """A parameter that was used several times: the uses are added before anything is measured."""

    uses: tuple[RecordGradients, ...]

    @property
    def records(self) -> int:
        return self.uses[0].records

    def squares(self, norm: WeightedNorm | None = None, groups: Groups | None = None) -> Tensor:
        size = self.explicit(slice(0, 1)).numel()
        return squares_in_chunks(self.explicit, self.records, size, norm, groups)

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        self.uses[0].weighted_sum(factors, out)
        part = torch.empty_like(out)
        for use in self.uses[1:]:
            use.weighted_sum(factors, part)
            out += part

    def explicit(self, rows: slice | Tensor) -> Tensor:
        total = self.uses[0].explicit(rows)
        for use in self.uses[1:]:
            total = total + use.explicit(rows).view_as(total)
        return total

    def without(self, bad: Tensor) -> Sum:
        return Sum(tuple(use.without(bad) for use in self.uses))

    def joined(self, others: Sequence[Sum]) -> Sum:
        return Sum((*self.uses, *(use for other in others for use in other.uses)))


def merge_uses(uses: Sequence[RecordGradients]) -> RecordGradients:
    """One form for all uses of a parameter."""
    first, *others = uses
    if others and all(type(use) is type(first) for use in others):
        return first.joined(others)
    return Sum(tuple(uses)) if others else first
