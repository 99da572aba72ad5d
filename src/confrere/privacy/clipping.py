"""Clipping: what bounds the influence of one unit (a record, or a patient with several) on a step.

A clipping is a frozen dataclass of public options. Its state comes from past releases only. The sum
over the units leaves here without noise, so it is PRIVATE: add noise of `noise_std`, then `finish`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from confrere.core.errors import PrivacyError
from confrere.privacy.gradients import Groups, Layout, Metric, Recorded, Recorder
from confrere.privacy.gradients.microbatch import microbatches

ClipState = Mapping[str, Tensor]
Noise = Callable[[int, float], Tensor]
"""(size, standard deviation) → that many numbers of Gaussian noise."""

ROUNDING = 1e-4
"""Share of the norm that is given up to float32 rounding.

A unit is clipped to norm·(1 − ROUNDING). Lengths are added up in blocks: over 2·10^7 numbers they
were measured to be off by less than 5·10^-6 (PyTorch's own norm by 10^-2), and a test holds it for 2·10^6."""


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped gradients over the units of a batch. It is PRIVATE: no noise was added yet."""

    flat: Tensor
    units: int
    """How many units were seen, dropped ones included."""
    dropped: int = 0
    """Units whose gradient was not finite; they add nothing."""
    below: int = 0
    """Units (not dropped) whose gradient was within the norm."""

    def __add__(self, other: ClippedSum) -> ClippedSum:
        return ClippedSum(
            self.flat + other.flat,
            self.units + other.units,
            self.dropped + other.dropped,
            self.below + other.below,
        )


class Clipping(Protocol):
    """How a gradient is bounded; see the module docstring."""

    def start(self, layout: Layout) -> ClipState:
        """The state before anything was released."""

    def sum(self, recorded: Recorded, state: ClipState, units: Tensor | None = None) -> ClippedSum:
        """The sum over units of their clipped gradients; `units` says to whom each record belongs."""

    def sensitivity(self, state: ClipState) -> float:
        """The most that adding or removing one unit moves the sum."""

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        """The noise multiplier that accounting must use."""

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        """Standard deviation of the noise to add to the sum."""

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


@dataclass(frozen=True)
class Flat:
    """Scales each gradient to at most `norm` (Abadi et al. 2016): g / max(1, |g|/norm)."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        _positive(norm=self.norm)

    def start(self, layout: Layout) -> ClipState:
        return {}

    def sum(self, recorded: Recorded, state: ClipState, units: Tensor | None = None) -> ClippedSum:
        groups = _groups(units)
        squares = recorded.squares(None, groups)
        return _sum_scaled(recorded, squares, self.norm, groups)

    def sensitivity(self, state: ClipState) -> float:
        return self.norm

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        return noise_multiplier

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        return noise_multiplier * self.norm

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
        return noisy_sum.div_(expected_batch), state


@dataclass(frozen=True)
class PerLayer:
    """Clips each of the K layers to norm/√K by itself (McMahan et al. 2018), so that all of them
    together stay within `norm`: a layer with long gradients does not silence the others."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        _positive(norm=self.norm)

    def start(self, layout: Layout) -> ClipState:
        return {}

    def sum(self, recorded: Recorded, state: ClipState, units: Tensor | None = None) -> ClippedSum:
        groups = _groups(units)
        layers = recorded.layout.layers
        share = self.norm / math.sqrt(len(layers))
        squares = {layer: recorded.squares(None, groups, names) for layer, names in layers.items()}
        bad = ~torch.isfinite(torch.stack(list(squares.values())).sum(0))
        recorded = _without(recorded, bad, groups)
        flat = torch.empty(recorded.layout.size, dtype=recorded.dtype)
        below = ~bad
        for layer, names in layers.items():
            factors = _factors(squares[layer], share).masked_fill_(bad, 0)
            below &= squares[layer] <= share**2
            recorded.weighted_sum_into(flat, _per_record(factors, groups), names)
        return ClippedSum(flat, len(bad), int(bad.sum()), int(below.sum()))

    def sensitivity(self, state: ClipState) -> float:
        return self.norm

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        return noise_multiplier

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        return noise_multiplier * self.norm

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
        return noisy_sum.div_(expected_batch), state


@dataclass(frozen=True)
class AdaCliP:
    """Clips around a running mean, each coordinate on its own scale (Pichapati et al. 2019, AdaCliP).

    With mean m and scale s of each coordinate, from past releases only, and b = √s·√Σs: each record's
    w = (g − m)/b is clipped to `norm`, noise is added to the sum W, and b·W/B + m is released.

    `low` and `high` bound s. Left out, they are 1/(32·√d) and 32/√d for d coordinates: s starts at
    √(low·high) = 1/√d, which makes the first step that of flat clipping with the same norm, and lets
    a coordinate's scale grow or shrink 32-fold from there; d is public.
    `noise="per-record"` noises each record before averaging (one draw of √B times the width).
    `scale="per-record"` lets s follow the spread of a record's gradient instead of their mean's.
    """

    norm: float = 1.0
    beta1: float = 0.99
    beta2: float = 0.9
    low: float | None = None
    high: float | None = None
    noise: Literal["sum", "per-record"] = "sum"
    scale: Literal["mean", "per-record"] = "mean"

    def __post_init__(self) -> None:
        _positive(norm=self.norm)
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

    def sum(self, recorded: Recorded, state: ClipState, units: Tensor | None = None) -> ClippedSum:
        groups = _groups(units)
        mean = state["mean"].to(recorded.dtype)
        weight = _squared_width(state["scale"].to(recorded.dtype)).reciprocal_()
        weights = recorded.layout.split(weight)
        centres = recorded.layout.split(mean)
        metrics = {name: Metric(weights[name], centres[name]) for name in recorded.layout.names}
        squares = recorded.squares(metrics, groups)
        clipped = _sum_scaled(recorded, squares, self.norm, groups, centre=mean)
        clipped.flat.mul_(weight.sqrt_())
        return clipped

    def sensitivity(self, state: ClipState) -> float:
        return self.norm

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        return noise_multiplier * (math.sqrt(expected_batch) if self.noise == "per-record" else 1.0)

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        return self.effective_noise_multiplier(noise_multiplier, expected_batch) * self.norm

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
        mean, scale = state["mean"], state["scale"]
        low, high = self._bounds(len(scale))
        std = self.noise_std(noise_multiplier, expected_batch, state)
        step = _squared_width(scale).mul_(expected_batch**-2)
        spread = (noisy_sum * noisy_sum).sub_(std**2).mul_(step)
        if self.scale == "per-record":
            spread.mul_(expected_batch)
        spread.clamp_(low**2, high**2).mul_(1 - self.beta2)
        next_scale = spread.addcmul_(scale, scale, value=self.beta2).sqrt_()
        released = noisy_sum.mul_(step.sqrt_()).add_(mean)
        next_mean = torch.mul(mean, self.beta1, out=step).add_(released, alpha=1 - self.beta1)
        return released, {"mean": next_mean, "scale": next_scale}


@dataclass(frozen=True)
class Quantile:
    """Flat clipping whose norm follows a quantile of the gradients' lengths (Andrew et al. 2021).

    Each step also counts, with noise, the units whose gradient was within the norm, and moves the norm
    by exp(−rate·(share − quantile)). A unit moves the centred count Σ(within − ½) by ½; the noise on it
    is `count_noise_multiplier`·½, and its privacy cost is part of `effective_noise_multiplier`.
    """

    norm: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_noise_multiplier: float = 10.0
    low: float = 1e-3
    high: float = 1e3

    def __post_init__(self) -> None:
        _positive(norm=self.norm, rate=self.rate, count_noise_multiplier=self.count_noise_multiplier)
        if not 0 < self.quantile < 1:
            raise PrivacyError(f"quantile must be between 0 and 1, not {self.quantile}")
        if not 0 < self.low <= self.norm <= self.high:
            raise PrivacyError(f"the norm {self.norm} must lie between low {self.low} and high {self.high}")

    def start(self, layout: Layout) -> ClipState:
        return {"norm": torch.tensor(self.norm, dtype=torch.float64)}

    def sum(self, recorded: Recorded, state: ClipState, units: Tensor | None = None) -> ClippedSum:
        return Flat(self.sensitivity(state)).sum(recorded, {}, units)

    def sensitivity(self, state: ClipState) -> float:
        return float(state["norm"])

    def effective_noise_multiplier(self, noise_multiplier: float, expected_batch: float) -> float:
        """Two Gaussian queries on one batch are one: (z⁻² + z_count⁻²)^(−1/2)."""
        if noise_multiplier <= 0:
            return 0.0
        return 1 / math.hypot(1 / noise_multiplier, 1 / self.count_noise_multiplier)

    def noise_std(self, noise_multiplier: float, expected_batch: float, state: ClipState) -> float:
        return noise_multiplier * self.sensitivity(state)

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
        centred = clipped.below - (clipped.units - clipped.dropped) / 2
        noisy = centred + float(noise(1, self.count_noise_multiplier / 2))
        share = noisy / expected_batch + 0.5
        moved = self.sensitivity(state) * math.exp(-self.rate * (share - self.quantile))
        norm = torch.tensor(min(max(moved, self.low), self.high), dtype=torch.float64)
        return noisy_sum.div_(expected_batch), {"norm": norm}


def clipped_sum(
    module: nn.Module | Recorder,
    inputs: tuple[Tensor, ...],
    losses_of: Callable[[Any, slice | Tensor], Tensor],
    clipping: Clipping,
    state: ClipState,
    units: Tensor | None = None,
    microbatch: int | None = None,
) -> ClippedSum:
    """The clipped sum over a batch of any size, a micro-batch at a time.

    `losses_of(outputs, rows)` gives one loss per record; `rows` selects the records of the micro-batch
    (as in `labels[rows]`). The records of a unit are kept together; a unit with more records than fit
    is added up over several micro-batches before it is clipped. An empty batch gives a zero sum.
    """
    recorder = module if isinstance(module, Recorder) else Recorder(module, microbatch)
    limit = microbatch or recorder.microbatch
    count = len(inputs[0])

    def record(rows: slice | Tensor) -> Recorded:
        outputs = recorder.forward(*(x[rows] for x in inputs))
        return recorder.backward(losses_of(outputs, rows))

    if count == 0:
        return clipping.sum(recorder.nothing(), state)
    if limit is None or count <= limit:
        return clipping.sum(record(slice(0, count)), state, units)
    total: ClippedSum | None = None
    for part in microbatches(count, limit, units):
        if isinstance(part, Tensor) and len(part) > limit:  # one unit, too large for a micro-batch
            pieces = (record(rows) for rows in torch.split(part, limit))
            whole = torch.stack([p.total() for p in pieces]).sum(0)
            recorded, who = Recorded.explicit(recorder.layout, whole.unsqueeze(0)), None
        else:
            recorded, who = record(part), None if units is None else units[part]
        found = clipping.sum(recorded, state, who)
        total = found if total is None else total + found
    assert total is not None
    return total


def _positive(**options: float) -> None:
    for name, value in options.items():
        if not (value > 0 and math.isfinite(value)):
            raise PrivacyError(f"{name} must be a positive number, not {value}")


def _groups(units: Tensor | None) -> Groups | None:
    return None if units is None else Groups.of(units)


def _squared_width(scale: Tensor) -> Tensor:
    """b² = s·Σs of AdaCliP: how wide each coordinate is before it is clipped."""
    return scale * scale.sum()


def _factors(squares: Tensor, norm: float) -> Tensor:
    """min(1, norm·(1 − ROUNDING)/length) for each unit."""
    return squares.sqrt().reciprocal_().mul_(norm * (1 - ROUNDING)).clamp_(max=1)


def _per_record(factors: Tensor, groups: Groups | None) -> Tensor:
    return factors if groups is None else factors[groups.index]


def _without(recorded: Recorded, bad: Tensor, groups: Groups | None) -> Recorded:
    if not bool(bad.any()):
        return recorded
    return recorded.without(_per_record(bad, groups))


def _sum_scaled(
    recorded: Recorded, squares: Tensor, norm: float, groups: Groups | None, centre: Tensor | None = None
) -> ClippedSum:
    """Σ factor·(gradient − centre) over the units, each factor such that no unit exceeds the norm."""
    factors = _factors(squares, norm)
    dropped = 0
    if not math.isfinite(float(squares.sum())):
        bad = ~torch.isfinite(squares)
        dropped = int(bad.sum())
        recorded = _without(recorded, bad, groups)
        factors.masked_fill_(bad, 0)
    flat = recorded.weighted_sum(_per_record(factors, groups))
    if centre is not None:
        flat.sub_(centre, alpha=float(factors.sum()))
    below = int((squares <= norm**2).sum())
    return ClippedSum(flat, len(squares), dropped, below)
