"""Named tensors as a vector space. Keys are always in sorted order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from confrere.core.custody import Custody, require_no_looser
from confrere.core.errors import BadParcel, CustodyError

Shapes = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of every tensor: what two sites must agree on before they exchange models."""

MANY, LONG = 8, 2**18
"""From this number of vectors on, up to this length, a weighted sum is one matrix product."""


class Params(Mapping[str, Tensor]):
    """The weights of a model: an immutable mapping that can be added, scaled and compared.

    >>> a = Params({"w": torch.ones(2)})
    >>> float((0.5 * a + a).norm())  # doctest: +ELLIPSIS
    2.121...
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors: dict[str, Tensor] | None = {name: tensors[name].detach() for name in sorted(tensors)}
        self._flat: Tensor | None = None
        self._shapes: Shapes | None = None
        self._finite = False
        self._largest: float | None = None
        self._digest: str | None = None
        self._written = self._writes()

    @classmethod
    def of_flat(cls, flat: Tensor, shapes: Shapes, largest: float | None = None) -> Params:
        """Params of this shape whose numbers are those of `flat`: views, which are made when they are asked for.

        `largest` is what `largest()` would find, where it is known already.
        """
        out = cls.__new__(cls)
        flat = flat.detach() if flat.requires_grad else flat
        out._tensors, out._flat, out._shapes, out._largest = None, flat, shapes, largest
        out._finite, out._digest = largest is not None and math.isfinite(largest), None
        out._written = out._writes()
        return out

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What was copied or sent to another process has tensors of its own."""
        self.__dict__.update(state)
        self._written = self._writes()

    def _writes(self) -> int:
        """How often the tensors were written to."""
        if self._flat is not None:
            return _writes(self._flat)
        return sum(map(_writes, self._named().values()))

    def require_unchanged(self) -> None:
        """Refuse weights that were overwritten after they were made: their custody says nothing about the new ones.

        Torch counts writes into a tensor and into views of it. Writes by way of `.data` or NumPy are not counted.
        """
        if self._writes() != self._written:
            raise CustodyError(
                "the weights of a model were overwritten in place, so that their custody is not known; models do not"
                " change: make a new one by mix or by training"
            )

    def _named(self) -> dict[str, Tensor]:
        if self._tensors is None:
            assert self._flat is not None
            at, self._tensors = 0, {}
            for name, shape, _ in self.shapes:
                size = math.prod(shape)
                self._tensors[name] = self._flat[at : at + size].view(shape)
                at += size
        return self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._named()[name]

    def __iter__(self) -> Iterator[str]:
        self.require_unchanged()
        return iter(self._named())

    def __len__(self) -> int:
        return len(self._named())

    def __repr__(self) -> str:
        return f"Params({self.count:,} numbers in {len(self)} tensors)"

    def __add__(self, other: Params) -> Params:
        return combine([(1.0, self), (1.0, other)])

    def __sub__(self, other: Params) -> Params:
        return combine([(1.0, self), (-1.0, other)])

    def __mul__(self, factor: float) -> Params:
        require_no_looser(factor, Custody.PUBLIC)  # weights have no custody of their own to keep it
        return combine([(factor, self)])

    __rmul__ = __mul__

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return (
            self._flat.numel() if self._flat is not None else sum(t.numel() for t in self._named().values())
        )

    @property
    def bytes(self) -> int:
        """How much memory the numbers take."""
        if self._flat is not None:
            return self._flat.numel() * self._flat.element_size()
        return sum(t.numel() * t.element_size() for t in self._named().values())

    @property
    def shapes(self) -> Shapes:
        if self._shapes is None:
            self._shapes = tuple(
                (n, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in self._named().items()
            )
        return self._shapes

    def norm(self) -> float:
        return math.sqrt(sum(float(t.double().square().sum()) for t in self._named().values()))

    def distance(self, other: Params) -> float:
        return (self - other).norm()

    def is_finite(self) -> bool:
        """Whether every number is finite. If the sum is finite, all summands are; checking it costs a sixth."""
        if self._finite:  # they do not change
            return True
        parts = [self._flat] if self._flat is not None else self._named().values()
        self._finite = all(
            math.isfinite(float(t.sum())) or bool(torch.isfinite(t).all())
            for t in parts
            if t.is_floating_point()
        )
        return self._finite

    def largest(self) -> float:
        """The largest absolute value of a weight; NaN if one is not a number, infinite if one is."""
        if self._largest is None:  # they do not change
            parts = [self._flat] if self._flat is not None else self._named().values()
            ends = [torch.aminmax(t) for t in parts if t.is_floating_point() and t.numel()]
            found = [abs(float(end)) for low_high in ends for end in low_high]
            self._largest = math.nan if any(map(math.isnan, found)) else max(found, default=0.0)
        return self._largest

    def digest(self) -> str:
        """A hash of all numbers, to the bit."""
        self.require_unchanged()
        if self._digest is None:  # they do not change
            self._digest = digest_of(self.flatten())
        return self._digest

    def flatten(self) -> Tensor:
        """All numbers in one vector, in the order of the sorted names; not to be written to."""
        self.require_unchanged()
        if self._flat is not None:
            return self._flat
        return torch.cat([t.reshape(-1) for t in self._named().values()]) if self._named() else torch.zeros(0)

    def unflatten(self, flat: Tensor) -> Params:
        """Params of this shape with the numbers of `flat`; the inverse of `flatten`."""
        if flat.numel() != self.count:
            raise ValueError(f"{flat.numel()} numbers do not fill {self.count}")
        dtype = str(flat.dtype).removeprefix("torch.")
        if all(kind == dtype for _, _, kind in self.shapes):
            return Params.of_flat(flat.reshape(-1), self.shapes)
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


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def digest_of(tensor: Tensor) -> str:
    """A hash of a tensor's type, shape and numbers, to the bit."""
    plain = tensor.detach().cpu().contiguous()
    found = blake2b(f"{plain.dtype} {tuple(plain.shape)} ".encode(), digest_size=16)
    found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def combine(terms: Iterable[tuple[float, Params]]) -> Params:
    """The weighted sum of params of one shape, added up in double precision."""
    terms = list(terms)
    if not terms:
        raise ValueError("nothing to combine")
    first = terms[0][1]
    for _, p in terms[1:]:
        if p.shapes is not first.shapes and p.shapes != first.shapes:
            raise BadParcel(f"models of different shape cannot be combined: {first!r} and {p!r}")
    if len({kind for _, _, kind in first.shapes}) == 1 and first.flatten().is_floating_point():
        return Params.of_flat(_added(terms), first.shapes)
    out = {}
    for name, like in first.items():
        if like.is_floating_point():
            total = sum((w * p[name].double() for w, p in terms), torch.zeros((), dtype=torch.float64))
            out[name] = total.to(like.dtype)
        else:  # counters and other integers are not averaged
            out[name] = like
    return Params(out)


def _added(terms: list[tuple[float, Params]]) -> Tensor:
    """The weighted sum of params as vectors. Which way it is taken depends on how many and how long they are, on nothing else,
    so that the same models give the same sum wherever they came from."""
    like = terms[0][1].flatten()
    if len(terms) < MANY or like.numel() > LONG:  # one after the other, without a copy of all of them
        total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        for weight, params in terms:
            total.add_(params.flatten(), alpha=weight)
        return total.to(like.dtype)
    weights = torch.tensor([w for w, _ in terms], dtype=torch.float64, device=like.device)
    return torch.mv(torch.stack([p.flatten() for _, p in terms]).double().T, weights).to(like.dtype)
