"""Compress models on their way out and restore them on arrival; error feedback conserves mass.

Strategies send and receive whole models; parcels are compressed here. Two things hold for every compression.

*Nothing is lost.* What a parcel did not say, because it was rounded or not chosen, stays at home and goes along
later: the site remembers it as `rest`. So over time everything is sent (error feedback, Seide et al. 2014).

*Mass is conserved.* A parcel with mass m takes m·θ̂ away, where θ̂ is what its receiver reads from it, and where it
is silent, the public model that all sites started from. The strategy counts with the θ that it handed in; the difference
m·(θ − θ̂) is put into `rest`. At the other end the strategy is handed θ̂ with its own weights in the silent places; the
difference counts there, with the other sign. So Σ mass·θ + Σ rest over all sites and all parcels under way never changes,
and the mass itself is untouched. What a site sends next is θ + rest/mass, which brings the rest back into play.

A strategy without mass keeps in its own model what it did not send: where a parcel leaves a weight out, its receiver uses
its own, so a weight is averaged among the sites that sent it. There, `rest` is only what rounding cut off.

The memory is made of models that had passed the gate, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from confrere.core.custody import Custody, Scalar, strictest
from confrere.core.errors import BadParcel
from confrere.core.model import Model
from confrere.core.params import Params, Shapes
from confrere.core.parcel import Parcel
from confrere.exchange.compression import Compression, ParcelContext, filled, numbers

Start = Callable[[str], Params | None]
"""The public weights that every site's model of an architecture starts from; None for one that is not known."""


@dataclass(frozen=True)
class Memory:
    """What a site keeps about one kind of its parcels."""

    rest: Tensor | None = None
    """What its parcels have left out and still have to send; times mass, where there is mass."""
    told: Tensor | None = None
    """The value of each weight when it was last sent."""
    own: Tensor | None = None
    """The whole model that was last to be sent."""
    epoch: int = 0
    """The membership epoch: with a new one the mass starts again, and nothing is owed."""
    custody: Custody = Custody.PUBLIC


@dataclass
class Packing:
    """One site's packing and unpacking over a whole run."""

    compression: Compression | None
    start: Start
    memory: dict[str, Memory] = field(default_factory=dict)
    _starts: dict[str, tuple[Tensor, Shapes] | None] = field(default_factory=dict)

    def wraps(self, architecture: str, whole: bool) -> bool:
        """Whether models of an architecture travel in another form; `whole` ones go to sites with nothing to fill in."""
        if self.compression is None:
            return False
        return not self.compression.sparse or (not whole and self._known(architecture) is not None)

    def pack(
        self,
        model: Model,
        moment: ParcelContext,
        *,
        epoch: int,
        leaving: Scalar | None,
        to: str = "",
        whole: bool = False,
    ) -> Model:
        """The model as it is sent. `leaving` is the total mass sent with it, None for models without mass."""
        compression = self.compression
        if compression is None or not self.wraps(model.architecture, whole):
            return model
        flat, key = numbers(model.params), self._key(moment.phase, model.architecture, to)
        before = Memory() if whole else self.memory.get(key, Memory())
        if before.epoch != epoch:
            before = replace(before, rest=None, epoch=epoch)
        known = self._known(model.architecture)
        start = known[0] if known is not None else torch.zeros_like(flat)
        rest, told = _or(before.rest, flat, 0.0), start if before.told is None else before.told
        weight = leaving.value if leaving is not None else 0.0 if compression.sparse else 1.0
        target = flat + rest / weight if weight else flat
        pressed = compression.press(target, model.params, told, moment)
        if not whole:
            restored = compression.spread(pressed, start, model.params.shapes, moment)
            custody = strictest([before.custody, model.custody, *([leaving.custody] if leaving else [])])
            self.memory[key] = Memory(
                rest + weight * (flat - restored) if weight else before.rest,
                compression.spread(pressed, told, model.params.shapes, moment) if compression.sparse else None,
                flat if compression.sparse else None, epoch, custody,
            )  # fmt: skip
            model = model.held(custody)
        return replace(model, params=pressed)

    def unpack(self, parcel: Parcel, own: Model | None, whole: bool = False) -> Parcel:
        """The parcel as a strategy sees it: a whole model, with the site's own weights where the parcel has none."""
        compression, model = self.compression, parcel.model
        if compression is None or model is None or not self.wraps(model.architecture, whole):
            return parcel
        known = self._known(model.architecture)
        moment = ParcelContext(parcel.run, parcel.round, parcel.phase, parcel.sender)
        if not compression.sparse:
            shapes = known[1] if known is not None else _guessed(model.params)
            flat = compression.spread(model.params, torch.zeros(0), shapes, moment)
            return replace(parcel, model=replace(model, params=filled(flat, model.params, shapes)))
        assert known is not None
        start, shapes = known
        before = self.memory.get(self._key(parcel.phase, model.architecture, ""), Memory())
        fill, held = (start if before.own is None else before.own), before.custody
        if own is not None and own.architecture == model.architecture:
            fill, held = numbers(own.params), own.custody
        flat = compression.spread(model.params, fill, shapes, moment)
        custody = strictest([model.custody, held])
        if "mass" in parcel.scalars:
            restored = compression.spread(model.params, start, shapes, moment)
            mass = parcel.scalars["mass"]
            self._owe(parcel, mass.value * (restored - flat), strictest([custody, mass.custody]))
        opened = replace(model, params=filled(flat, model.params, shapes), custody=custody)
        return replace(parcel, model=opened)

    def check(self, parcel: Parcel, whole: bool = False) -> None:
        """Refuse a parcel that does not have exactly the form that the study asks for: BadParcel."""
        compression, model = self.compression, parcel.model
        if compression is None or model is None:
            return
        known = self._known(model.architecture)
        if known is None or not self.wraps(model.architecture, whole):
            return
        if model.params.shapes != compression.shapes(known[1]):
            raise BadParcel("a parcel that is not compressed as the study says")
        compression.check(model.params, known[1])

    def largest(self, parcel: Parcel, whole: bool = False) -> float:
        """The largest absolute weight of a checked parcel's model once it is unpacked; NaN if one is not a number."""
        compression, model = self.compression, parcel.model
        if model is None:
            return 0.0
        known = None if compression is None else self._known(model.architecture)
        if compression is None or known is None or not self.wraps(model.architecture, whole):
            return model.params.largest()
        moment = ParcelContext(parcel.run, parcel.round, parcel.phase, parcel.sender)
        flat = compression.spread(model.params, torch.zeros_like(known[0]), known[1], moment)
        return float(flat.abs().max()) if flat.numel() else 0.0

    def form(self, shapes: Shapes, whole: bool = False) -> Shapes:
        """The tensors in which a model of these shapes travels."""
        compression = self.compression
        return shapes if compression is None or (compression.sparse and whole) else compression.shapes(shapes)

    def owed(self, architecture: str, phase: int = 0) -> Tensor | None:
        """What this site's parcels still have to send, times mass."""
        found = self.memory.get(self._key(phase, architecture, ""))
        return None if found is None else found.rest

    def restore(self, memory: Mapping[str, Memory]) -> None:
        """Return to the memory of a checkpoint."""
        self.memory = dict(memory)

    def _owe(self, parcel: Parcel, amount: Tensor, custody: Custody) -> None:
        assert parcel.model is not None
        key = self._key(parcel.phase, parcel.model.architecture, "")
        before = self.memory.get(key, Memory(epoch=parcel.epoch))
        if before.epoch != parcel.epoch:
            before = replace(before, rest=None, epoch=parcel.epoch)
        rest = amount if before.rest is None else before.rest + amount
        self.memory[key] = replace(before, rest=rest, custody=strictest([before.custody, custody]))

    def _known(self, architecture: str) -> tuple[Tensor, Shapes] | None:
        if architecture not in self._starts:
            found = self.start(architecture)
            self._starts[architecture] = None if found is None else (numbers(found), found.shapes)
        return self._starts[architecture]

    @staticmethod
    def _key(phase: int, architecture: str, to: str) -> str:
        return f"{phase} {architecture} {to}".rstrip()


def _or(found: Tensor | None, like: Tensor, value: float) -> Tensor:
    return torch.full_like(like, value) if found is None else found


def _guessed(pressed: Params) -> Shapes:
    """The shapes of a model that this site does not know: single precision, as nearly all are."""
    return tuple(
        (n, shape, "float32" if kind in ("float16", "int8") else kind)
        for n, shape, kind in pressed.shapes
        if not n.startswith(":")
    )
