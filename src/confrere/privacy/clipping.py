"""Clipping: what bounds the influence of one unit (a record, or a patient with several) on a step.

A clipping is a frozen dataclass of public options, registered under the name that a study uses. Its state comes
from past releases only. The sum over the units leaves here without noise, so it is PRIVATE: add noise of
`noise_std`, then `finish`.

`sum` is written once for one site and for many: the gradients of one site have lengths [units], and its state is
{name: tensor}; those of a stack of sites have lengths [sites, units], and each tensor of the state one row per site.

    @clipping("half")
    @dataclass(frozen=True)
    class Half(Flat):
        @property
        def bound(self):
            return self.norm / 2

        def sum(self, gradients, state):
            return Flat(self.bound).sum(gradients, state)

        def sensitivity(self, state):  # the noise follows from it
            return self.bound
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.core.registry import Registry
from confrere.privacy.charges import on_one_sample
from confrere.privacy.gradients import ClippedSum, Layout, Recorded, Recorder, WeightedNorm
from confrere.privacy.gradients.batch_gradients import microbatches

ClipState = Mapping[str, Tensor]
Noise = Callable[[int, float], Tensor]
"""(size, standard deviation) → that many numbers of Gaussian noise."""

ROUNDING = 1 / 160
"""Share of the norm that is given up to rounding: a unit is clipped to norm·(1 − ROUNDING).

It covers the rounding of two neighbouring sums (0.0061 of the norm, see `SINGLE`) and that of a unit's length. Lengths
are added up in blocks: over 2·10^7 numbers they were measured to be off by less than 5·10^-6 (PyTorch's own norm by
10^-2), and a test holds it for 2·10^6."""

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class BatchGradients(Protocol[S_co]):
    """The gradients of all units of a batch: `Recorded` at one site, `StackedGradients` at many sites side by side."""

    @property
    def layers(self) -> Sequence[str]:
        """The layers that have parameters."""

    @property
    def real(self) -> Tensor | None:
        """1 for the units that exist and 0 for padding; None where all exist."""

    def squares(self, norm: WeightedNorm | None = None, layer: str | None = None) -> Tensor:
        """Squared length of each unit's gradient, of one layer or of all; never too small."""

    def without(self, bad: Tensor) -> Self:
        """The same with the gradients of some units (a mask) set to zero."""

    def precisely(self) -> Self:
        """The same, added up in double precision however few units there are."""

    def weighted_sum(self, factors: Tensor | Sequence[Tensor]) -> Tensor:
        """Σ factor·gradient over the units as a flat vector, in double precision if there are more than SINGLE units;
        the factors are those of all layers, or one tensor for each."""

    def clipped(self, flat: Tensor, bad: Tensor | None, below: Tensor) -> S_co:
        """The result: a clipped sum, the units that were dropped from it, and those within the norm."""


@runtime_checkable
class Clipping(Protocol):
    """How a gradient is bounded; see the module docstring."""

    @property
    def bound(self) -> float:
        """The length to which a unit's gradient is clipped at the start; the step schedule follows it."""

    @property
    def fixed_noise(self) -> bool:
        """Whether every step adds noise of `noise_multiplier`·`bound`, costs no more than that, keeps no state, and
        `finish` only divides by the expected batch."""

    def start(self, layout: Layout) -> ClipState:
        """The state before anything was released."""

    def sum(self, gradients: BatchGradients[S], state: ClipState) -> S:
        """The sum over units of their clipped gradients, at one site or at each of several."""

    def sensitivity(self, state: ClipState) -> float:
        """The most that adding or removing one unit moves the sum."""

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        """The noise multiplier that accounting must use."""

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        """Standard deviation of the noise to add to the sum; an empty state is that of the start."""

    def widening(self, size: int, state: ClipState) -> float:
        """By how much `finish` widens the noise: the sum of the squared factors over a gradient of `size` numbers."""

    def finish(
        self,
        noisy_sum: Tensor,
        state: ClipState,
        *,
        noise_multiplier: float,
        expected_batch: float,
        clipped: ClippedSum,
        noise: Noise,
    ) -> tuple[Tensor, ClipState]:
        """The released gradient (per expected record) and the state of the next step.

        `noisy_sum` is used up: its memory becomes that of the released gradient.
        """


clippings: Registry[type[Clipping]] = Registry("clipping", "confrere.clippings", package="confrere.privacy")
clipping = clippings.register


@dataclass(frozen=True)
class NoisyStep:
    """A step at its end: what was added up, and with how much noise."""

    noise_multiplier: float
    expected_batch: float
    clipped: ClippedSum
    noise: Noise


@dataclass(frozen=True)
class ToNorm:
    """What all clippings to a norm share: a constant norm, noise in proportion to it, and no state."""

    norm: float = 1.0
    fixed_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _positive(norm=self.norm)

    @property
    def bound(self) -> float:
        return self.norm

    def start(self, layout: Layout) -> ClipState:
        return {}

    def sensitivity(self, state: ClipState) -> float:
        return self.norm

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        return noise_multiplier

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        return noise_multiplier * self.sensitivity(state)

    def widening(self, size: int, state: ClipState) -> float:
        return size

    def finish(
        self,
        noisy_sum: Tensor,
        state: ClipState,
        *,
        noise_multiplier: float,
        expected_batch: float,
        clipped: ClippedSum,
        noise: Noise,
    ) -> tuple[Tensor, ClipState]:
        return self.released(noisy_sum, state, NoisyStep(noise_multiplier, expected_batch, clipped, noise))

    def released(self, noisy_sum: Tensor, state: ClipState, step: NoisyStep) -> tuple[Tensor, ClipState]:
        """What `finish` returns."""
        return noisy_sum.div_(step.expected_batch), state


@clipping("flat")
@dataclass(frozen=True)
class Flat(ToNorm):
    """Scales each gradient to at most `norm` (Abadi et al. 2016): g / max(1, |g|/norm)."""

    def sum(self, gradients: BatchGradients[S], state: ClipState) -> S:
        return _clipped(gradients, gradients.squares(), self.norm)


@clipping("per-layer")
@dataclass(frozen=True)
class PerLayer(ToNorm):
    """Clips each of the K layers to norm/√K by itself (McMahan et al. 2018), so that all of them
    together stay within `norm`: a layer with long gradients does not silence the others."""

    def sum(self, gradients: BatchGradients[S], state: ClipState) -> S:
        share = self.norm / math.sqrt(len(gradients.layers))
        squares = [gradients.squares(layer=layer) for layer in gradients.layers]
        kept, bad = _finite(gradients, torch.stack(squares).sum(0))
        flat = kept.weighted_sum([_factors(kept, found, share, bad) for found in squares])
        return kept.clipped(flat, bad, torch.stack([found <= share**2 for found in squares]).all(0))


@clipping("adaclip")
@dataclass(frozen=True)
class AdaCliP(ToNorm):
    """Clips around a running mean, each coordinate on its own scale (Pichapati et al. 2019, AdaCliP).

    With mean m and scale s of each coordinate, from past releases only, and b = √s·√Σs: each record's
    w = (g − m)/b is clipped to `norm`, noise is added to the sum W, and b·W/B + m is released.

    `low` and `high` bound s. Left out, they are 1/(32·√d) and 32/√d for d coordinates: s starts at
    √(low·high) = 1/√d, which makes the first step that of flat clipping with the same norm, and lets
    a coordinate's scale grow or shrink 32-fold from there; d is public.
    `noise="per-record"` noises each record before averaging (one draw of √B times the width).
    `scale="per-record"` lets s follow the spread of a record's gradient instead of their mean's.
    """

    beta1: float = 0.99
    beta2: float = 0.9
    low: float | None = None
    high: float | None = None
    noise: Literal["sum", "per-record"] = "sum"
    scale: Literal["mean", "per-record"] = "mean"
    fixed_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                raise PrivacyError(f"{name} must be in [0, 1), not {beta}")
        _positive(**{n: v for n, v in (("low", self.low), ("high", self.high)) if v is not None})
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise PrivacyError(f"low and high must be positive and in order, not {self.low} and {self.high}")

    def _bounds(self, size: int) -> tuple[float, float]:
        root = math.sqrt(max(1, size))
        low = 1 / (32 * root) if self.low is None else self.low
        high = 32 / root if self.high is None else self.high
        if low > high:
            raise PrivacyError(
                f"low is {low:g} and high {high:g} for {size} coordinates; state both, in order"
            )
        return low, high

    def start(self, layout: Layout) -> ClipState:
        low, high = self._bounds(layout.size)
        return {
            "mean": torch.zeros(layout.size),
            "scale": torch.full((layout.size,), math.sqrt(low * high)),
        }

    def sum(self, gradients: BatchGradients[S], state: ClipState) -> S:
        mean, weight = state["mean"], _squared_width(state["scale"]).reciprocal_()
        squares = gradients.squares(WeightedNorm(weight, mean))
        scale = weight.sqrt_()
        # Gradients are added up before their centre is subtracted, so rounding grows with the length of the centre too.
        centre = torch.linalg.vector_norm(mean * scale, dim=-1, keepdim=True)
        if bool((centre > self.norm).any()):
            gradients = gradients.precisely()
        norm = self.norm - ROUNDING * centre.clamp_(max=self.norm)
        return _clipped(gradients, squares, norm, centre=mean, scale=scale)

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        return noise_multiplier * (math.sqrt(expected_batch) if self.noise == "per-record" else 1.0)

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        return self.effective_noise_multiplier(noise_multiplier, expected_batch) * self.norm

    def widening(self, size: int, state: ClipState) -> float:
        return float(state["scale"].double().sum()) ** 2 if state else size  # Σ b² is (Σ s)²

    def released(self, noisy_sum: Tensor, state: ClipState, step: NoisyStep) -> tuple[Tensor, ClipState]:
        mean, scale = state["mean"], state["scale"]
        low, high = self._bounds(len(scale))
        std = self.noise_std(step.noise_multiplier, step.expected_batch, state)
        width = _squared_width(scale).mul_(step.expected_batch**-2)
        spread = (noisy_sum * noisy_sum).sub_(std**2).mul_(width)
        if self.scale == "per-record":
            spread.mul_(step.expected_batch)
        spread.clamp_(low**2, high**2).mul_(1 - self.beta2)
        next_scale = spread.addcmul_(scale, scale, value=self.beta2).sqrt_()
        released = noisy_sum.mul_(width.sqrt_()).add_(mean)
        next_mean = torch.mul(mean, self.beta1, out=width).add_(released, alpha=1 - self.beta1)
        return released, {"mean": next_mean, "scale": next_scale}


@clipping("quantile")
@dataclass(frozen=True)
class Quantile(ToNorm):
    """Flat clipping whose norm follows a quantile of the gradients' lengths (Andrew et al. 2021).

    Each step also counts, with noise, the units whose gradient was within the norm, and moves the norm
    by exp(−rate·(share − quantile)). A unit moves the centred count Σ(within − ½) by ½; the noise on it
    is `count_noise_multiplier`·½, and its privacy cost is part of `effective_noise_multiplier`.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise_multiplier: float = 10.0
    low: float = 1e-3
    high: float = 1e3
    fixed_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(rate=self.rate, count_noise_multiplier=self.count_noise_multiplier)
        if not 0 < self.quantile < 1:
            raise PrivacyError(f"quantile must be between 0 and 1, not {self.quantile}")
        if not 0 < self.low <= self.norm <= self.high:
            raise PrivacyError(f"the norm {self.norm} must lie between low {self.low} and high {self.high}")

    def start(self, layout: Layout) -> ClipState:
        return {"norm": torch.tensor(self.norm, dtype=torch.float64)}

    def sum(self, gradients: BatchGradients[S], state: ClipState) -> S:
        return _clipped(gradients, gradients.squares(), state["norm"].unsqueeze(-1))

    def sensitivity(self, state: ClipState) -> float:
        return float(state["norm"]) if state else self.norm

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        """The gradient and the count are two releases from one sample."""
        return on_one_sample(noise_multiplier, self.count_noise_multiplier)

    def released(self, noisy_sum: Tensor, state: ClipState, step: NoisyStep) -> tuple[Tensor, ClipState]:
        centred = step.clipped.below - (step.clipped.units - step.clipped.dropped) / 2
        noisy = centred + float(step.noise(1, self.count_noise_multiplier / 2))
        share = noisy / step.expected_batch + 0.5
        moved = self.sensitivity(state) * math.exp(-self.rate * (share - self.quantile))
        norm = torch.tensor(min(max(moved, self.low), self.high), dtype=torch.float64)
        return noisy_sum.div_(step.expected_batch), {"norm": norm}


def clipped_sum(
    recorder: Recorder,
    inputs: tuple[Tensor, ...],
    losses_of: Callable[[Any, slice | Tensor], Tensor],
    clipping: Clipping,
    state: ClipState,
    units: Tensor | None = None,
) -> ClippedSum:
    """The clipped sum over a batch of any size, one micro-batch of the recorder at a time.

    `losses_of(outputs, rows)` gives one loss per record; `rows` selects the records of the micro-batch
    (as in `labels[rows]`). The records of a unit are kept together; a unit with more records than fit
    is added up over several micro-batches before it is clipped. An empty batch gives a zero sum.
    """
    limit, count = recorder.microbatch, len(inputs[0])

    def record(rows: slice | Tensor) -> Recorded:
        outputs = recorder.forward(*(x[rows] for x in inputs))
        return recorder.backward(losses_of(outputs, rows))

    if count == 0:
        return clipping.sum(recorder.nothing(), state)
    if limit is None or count <= limit:
        return clipping.sum(record(slice(0, count)).by_unit(units), state)
    total: ClippedSum | None = None
    for part in microbatches(count, limit, units):
        if isinstance(part, Tensor) and len(part) > limit:  # one unit, too large for a micro-batch
            pieces = (record(rows) for rows in torch.split(part, limit))
            whole = torch.stack([p.total().to(p.dtype) for p in pieces]).sum(0)
            recorded, who = Recorded.explicit(recorder.layout, whole.unsqueeze(0)), None
        else:
            recorded, who = record(part), None if units is None else units[part]
        found = clipping.sum(recorded.by_unit(who).precisely(), state)
        total = found if total is None else total + found
    assert total is not None
    return total


def _positive(**options: float) -> None:
    for name, value in options.items():
        if not (value > 0 and math.isfinite(value)):
            raise PrivacyError(f"{name} must be a positive number, not {value}")


def _squared_width(scale: Tensor) -> Tensor:
    """b² = s·Σs of AdaCliP: how wide each coordinate is before it is clipped."""
    return scale * scale.sum(-1, keepdim=True)


def _clipped(
    gradients: BatchGradients[S],
    squares: Tensor,
    norm: float | Tensor,
    centre: Tensor | None = None,
    scale: Tensor | None = None,
) -> S:
    """scale·Σ factor·(gradient − centre) over the units, each factor such that no unit exceeds the norm."""
    kept, bad = _finite(gradients, squares)
    factors = _factors(kept, squares, norm, bad)
    flat = kept.weighted_sum(factors)
    if centre is not None:
        flat.addcmul_(centre.to(flat.dtype), factors.sum(-1, keepdim=True, dtype=flat.dtype), value=-1)
    if scale is not None:
        flat.mul_(scale)
    return kept.clipped(flat, bad, squares <= norm**2)


def _factors(
    gradients: BatchGradients[S], squares: Tensor, norm: float | Tensor, bad: Tensor | None
) -> Tensor:
    """min(1, norm·(1 − ROUNDING)/length) for each unit, 0 where there is none or where it cannot be measured."""
    limit = norm * (1 - ROUNDING)
    if isinstance(limit, Tensor):
        limit = limit.to(squares.dtype)
    factors = squares.sqrt().reciprocal_().mul_(limit).clamp_(max=1)
    if bad is not None:
        factors.masked_fill_(bad, 0)
    return factors if gradients.real is None else factors.mul_(gradients.real)


def _finite(gradients: BatchGradients[S], squares: Tensor) -> tuple[BatchGradients[S], Tensor | None]:
    """The gradients without those that are not finite, and which those are; None if all are finite."""
    if math.isfinite(float(squares.sum())):
        return gradients, None
    bad = ~torch.isfinite(squares)
    return gradients.without(bad), bad
