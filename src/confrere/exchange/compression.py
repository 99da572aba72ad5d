"""Smaller parcels: the same model in fewer bytes, in a form that both ends know from the study.

A compression turns the weights of a model into other named tensors, and back. What those tensors are called, how large
they are and of which type follows from the study's model and the options alone, so a receiver can refuse
everything else before it looks at a number. Nothing here reads records: it works on what has passed the gate, and
whatever is computed from a release is covered by that release.

| name | what travels | bytes a weight |
|---|---|---|
| float16 | every weight in half precision | 2 |
| int8 | every weight as one of 255 steps, and a step length for each tensor | 1 |
| top-k | the share of the weights that changed most since they were last sent, and their indices | 8 · share |
| random-k | a share of the weights that the round draws, the same at all sites | 4 · share |

The receiver fills in weights that a parcel leaves out: see `packing`. A compression is a frozen dataclass whose fields
are its options in a study:

    @compression("coarse")
    @dataclass(frozen=True)
    class Coarse(HalfPrecision):
        step: float = 2**-10

        def press(self, flat, whole, sent, moment):
            return super().press((flat / self.step).round() * self.step, whole, sent, moment)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from confrere.core.errors import BadParcel, StudyError
from confrere.core.params import Params, Shapes
from confrere.core.registry import Registry
from confrere.core.seeds import generator

HALF = 65504.0  # the largest number in half precision
STEPS = 127
SCALES, VALUES, INDICES = ":scales", ":values", ":indices"


@dataclass(frozen=True)
class ParcelContext:
    """A parcel's place in a run: what random draws may depend on, and the same for sender and receiver."""

    run: str
    round: int
    phase: int
    sender: str


class Compression(Protocol):
    """Weights in, fewer bytes out, and back."""

    sparse: ClassVar[bool]
    """Whether a parcel leaves out some weights."""

    def shapes(self, whole: Shapes) -> Shapes:
        """The tensors of a parcel that holds a model of these shapes: exactly these and no others."""
        ...

    def press(self, flat: Tensor, whole: Params, sent: Tensor, moment: ParcelContext) -> Params:
        """The tensors to send. `flat` are the weights, `sent` their values when they were last sent."""
        ...

    def check(self, pressed: Params, whole: Shapes) -> None:
        """Refuse what no honest site would have written: BadParcel. Shapes were checked before."""
        ...

    def spread(self, pressed: Params, fill: Tensor, whole: Shapes, moment: ParcelContext) -> Tensor:
        """All weights, with those of `fill` where the parcel leaves them out."""
        ...


compressions: Registry[type[Compression]] = Registry(
    "compression", "confrere.compressions", package="confrere.exchange"
)
compression = compressions.register


@compression("float16")
@dataclass(frozen=True)
class HalfPrecision:
    """Every weight in half precision: eleven bits of each."""

    sparse: ClassVar[bool] = False

    def shapes(self, whole: Shapes) -> Shapes:
        return tuple((n, shape, "float16" if _floats(kind) else kind) for n, shape, kind in whole)

    def press(self, flat: Tensor, whole: Params, sent: Tensor, moment: ParcelContext) -> Params:
        return Params(
            {n: t.clamp(-HALF, HALF).half() for n, t in _parts(flat, whole.shapes)} | _counters(whole)
        )

    def check(self, pressed: Params, whole: Shapes) -> None:
        """Any finite number will do."""

    def spread(self, pressed: Params, fill: Tensor, whole: Shapes, moment: ParcelContext) -> Tensor:
        return _joined([pressed[n].double() for n, _, kind in whole if _floats(kind)])


@compression("int8")
@dataclass(frozen=True)
class EightBits:
    """Every weight as one of 255 equal steps between the largest and its opposite, tensor by tensor.

    `rounding` is up or down by chance, so that the mean is the weight itself (Alistarh et al., QSGD, 2017), or to the
    nearest step.
    """

    rounding: str = "stochastic"
    sparse: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.rounding not in ("stochastic", "nearest"):
            raise StudyError(f'int8: rounding is "stochastic" or "nearest", not "{self.rounding}"')

    def shapes(self, whole: Shapes) -> Shapes:
        names = [n for n, _, kind in whole if _floats(kind)]
        found = [(n, shape, "int8" if _floats(kind) else kind) for n, shape, kind in whole]
        return tuple(sorted([*found, (SCALES, (len(names),), "float32")]))

    def press(self, flat: Tensor, whole: Params, sent: Tensor, moment: ParcelContext) -> Params:
        chance = generator(0, "int8", moment.run, moment.round, moment.phase, moment.sender)
        tensors, scales = _counters(whole), []
        for name, t in _parts(flat, whole.shapes):
            scale = (t.abs().max() / STEPS if t.numel() else torch.zeros(())).float()
            steps = t / scale.double() if float(scale) else torch.zeros_like(t)
            if self.rounding == "stochastic":
                steps = torch.floor(steps + torch.rand(t.shape, generator=chance, dtype=torch.float64))
            tensors[name] = steps.nan_to_num().round().clamp(-STEPS, STEPS).to(torch.int8)
            scales.append(scale)
        return Params({**tensors, SCALES: torch.stack(scales) if scales else torch.zeros(0)})

    def check(self, pressed: Params, whole: Shapes) -> None:
        if bool((pressed[SCALES] < 0).any()):
            raise BadParcel("a parcel with a negative step length")
        for name, _, kind in whole:
            if _floats(kind) and pressed[name].numel() and int(pressed[name].min()) < -STEPS:
                raise BadParcel(f'a parcel whose tensor "{name[:80]}" has an impossible step')

    def spread(self, pressed: Params, fill: Tensor, whole: Shapes, moment: ParcelContext) -> Tensor:
        names = [n for n, _, kind in whole if _floats(kind)]
        scales = pressed[SCALES].double()
        return _joined([scale * pressed[n].double() for n, scale in zip(names, scales, strict=True)])


@compression("top-k")
@dataclass(frozen=True)
class TopK:
    """The weights that changed most since they were last sent; the others are sent once their change has grown.

    The last value sent of each weight is remembered (Stich et al., Sparsified SGD with memory, 2018): changes that are too
    small for one round add up until they are sent.
    """

    share: float = 0.1
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_share("top-k", self.share)

    def shapes(self, whole: Shapes) -> Shapes:
        k = _some(self.share, whole)
        return tuple(sorted([(INDICES, (k,), "int32"), (VALUES, (k,), "float32"), *_counted(whole)]))

    def press(self, flat: Tensor, whole: Params, sent: Tensor, moment: ParcelContext) -> Params:
        changed = (flat - sent).abs().nan_to_num(nan=torch.inf)
        at = changed.topk(_some(self.share, whole.shapes)).indices.sort().values
        return Params({INDICES: at.to(torch.int32), VALUES: flat[at].float(), **_counters(whole)})

    def check(self, pressed: Params, whole: Shapes) -> None:
        at = pressed[INDICES].long()
        if at.numel() and (int(at[0]) < 0 or int(at[-1]) >= _count(whole)):
            raise BadParcel("a parcel about weights that the model does not have")
        if bool((at[1:] <= at[:-1]).any()):
            raise BadParcel("a parcel that names its weights twice or out of order")

    def spread(self, pressed: Params, fill: Tensor, whole: Shapes, moment: ParcelContext) -> Tensor:
        return fill.double().index_copy(0, pressed[INDICES].long(), pressed[VALUES].double())


@compression("random-k")
@dataclass(frozen=True)
class RandomK:
    """A share of the weights that is drawn for each round, the same at all sites, so that positions need not be sent.

    A weight that is not drawn keeps its value at every site, and is trained there until it is drawn.
    """

    share: float = 0.1
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_share("random-k", self.share)

    def shapes(self, whole: Shapes) -> Shapes:
        return tuple(sorted([(VALUES, (_some(self.share, whole),), "float32"), *_counted(whole)]))

    def press(self, flat: Tensor, whole: Params, sent: Tensor, moment: ParcelContext) -> Params:
        return Params({VALUES: flat[self._drawn(whole.shapes, moment)].float(), **_counters(whole)})

    def check(self, pressed: Params, whole: Shapes) -> None:
        """Any finite number will do."""

    def spread(self, pressed: Params, fill: Tensor, whole: Shapes, moment: ParcelContext) -> Tensor:
        return fill.double().index_copy(0, self._drawn(whole, moment), pressed[VALUES].double())

    def _drawn(self, whole: Shapes, moment: ParcelContext) -> Tensor:
        chance = generator(0, "random-k", moment.run, moment.round, moment.phase)
        return torch.randperm(_count(whole), generator=chance)[: _some(self.share, whole)].sort().values


def numbers(params: Params) -> Tensor:
    """All weights in one row, in double precision; counters and other whole numbers are left out."""
    return _joined([t.double() for t in params.values() if t.is_floating_point()])


def filled(flat: Tensor, pressed: Params, whole: Shapes) -> Params:
    """A model's tensors from one row of weights; counters are those that travelled."""
    kinds = {n: getattr(torch, kind) for n, _, kind in whole}
    tensors = {n: t.to(kinds[n]) for n, t in _parts(flat, whole)}
    return Params(tensors | {n: pressed[n] for n, _, kind in whole if not _floats(kind)})


def _check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise StudyError(
            f"{name}: share is the part of the weights that is sent, above 0 and up to 1, not {share}"
        )


def _floats(kind: str) -> bool:
    return kind.startswith(("float", "bfloat"))


def _count(whole: Shapes) -> int:
    return sum(math.prod(shape) for _, shape, kind in whole if _floats(kind))


def _some(share: float, whole: Shapes) -> int:
    count = _count(whole)
    return min(count, max(1, math.ceil(share * count)))


def _counters(whole: Params) -> dict[str, Tensor]:
    return {n: t for n, t in whole.items() if not t.is_floating_point()}


def _counted(whole: Shapes) -> list[tuple[str, tuple[int, ...], str]]:
    return [(n, shape, kind) for n, shape, kind in whole if not _floats(kind)]


def _parts(flat: Tensor, whole: Shapes) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    at = 0
    for name, shape, kind in whole:
        if _floats(kind):
            size = math.prod(shape)
            found.append((name, flat[at : at + size].reshape(shape)))
            at += size
    return found


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in parts]) if parts else torch.zeros(0, dtype=torch.float64)
