"""Named tensors as a vector space. Keys are always in sorted order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from confrere.core.errors import BadParcel

Shapes = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of every tensor: what two sites must agree on before they exchange models."""


class Params(Mapping[str, Tensor]):
    """The weights of a model: an immutable mapping that can be added, scaled and compared.

    >>> a = Params({"w": torch.ones(2)})
    >>> float((0.5 * a + a).norm())  # doctest: +ELLIPSIS
    2.121...
    """

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensors[name].detach() for name in sorted(tensors)}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Params({self.count:,} numbers in {len(self)} tensors)"

    def __add__(self, other: Params) -> Params:
        return combine([(1.0, self), (1.0, other)])

    def __sub__(self, other: Params) -> Params:
        return combine([(1.0, self), (-1.0, other)])

    def __mul__(self, factor: float) -> Params:
        return combine([(factor, self)])

    __rmul__ = __mul__

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(t.numel() for t in self._tensors.values())

    @property
    def shapes(self) -> Shapes:
        return tuple((n, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in self.items())

    def norm(self) -> float:
        return math.sqrt(sum(float(t.double().square().sum()) for t in self._tensors.values()))

    def distance(self, other: Params) -> float:
        return (self - other).norm()

    def is_finite(self) -> bool:
        """Whether every number is one. A sum that is finite says so of all that went into it, at a sixth of the cost."""
        return all(
            math.isfinite(float(t.sum())) or bool(torch.isfinite(t).all())
            for t in self._tensors.values()
            if t.is_floating_point()
        )

    def flatten(self) -> Tensor:
        """All numbers in one vector, in the order of the sorted names."""
        return torch.cat([t.reshape(-1) for t in self._tensors.values()]) if self else torch.zeros(0)

    def unflatten(self, flat: Tensor) -> Params:
        """Params of this shape with the numbers of `flat`; the inverse of `flatten`."""
        if flat.numel() != self.count:
            raise ValueError(f"{flat.numel()} numbers do not fill {self.count}")
        out, at = {}, 0
        for name, t in self.items():
            out[name] = flat[at : at + t.numel()].reshape(t.shape).to(t.dtype)
            at += t.numel()
        return Params(out)

    def clone(self) -> Params:
        return Params({n: t.clone() for n, t in self.items()})

    def equals(self, other: Params) -> bool:
        """The same names and, to the bit, the same numbers."""
        return self.shapes == other.shapes and all(torch.equal(t, other[n]) for n, t in self.items())


def combine(terms: Iterable[tuple[float, Params]]) -> Params:
    """The weighted sum of params of one shape, added up in double precision."""
    terms = list(terms)
    if not terms:
        raise ValueError("nothing to combine")
    first = terms[0][1]
    for _, p in terms[1:]:
        if p.shapes != first.shapes:
            raise BadParcel(f"models of different shape cannot be combined: {first!r} and {p!r}")
    out = {}
    for name, like in first.items():
        if like.is_floating_point():
            total = sum((w * p[name].double() for w, p in terms), torch.zeros((), dtype=torch.float64))
            out[name] = total.to(like.dtype)
        else:  # counters and other integers are not averaged
            out[name] = like
    return Params(out)
