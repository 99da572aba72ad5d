"""The private step of many sites at once: each site's records are clipped, and its noise drawn, as if it were alone.

Dense layers leave for each record what went in and the error that came back; a record's gradient is their outer
product, so its length is known without writing it out (Goodfellow 2015). Rounding is allowed for as in
`privacy.clipping`. Noise comes from each site's own source, in the order in which that site alone would draw it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.privacy.clipping import (
    ROUNDING,
    AdaCliP,
    ClippedSum,
    Clipping,
    ClipState,
    Flat,
    PerLayer,
    Quantile,
)
from confrere.privacy.gradients.forms import BLOCK, EXPANSION, row_squares
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Randomness, Seeded
from confrere.privacy.sampling import FullBatch, Poisson

Span = tuple[int, int]


@dataclass(frozen=True)
class Trace:
    """One dense layer: what went in [sites, records, inputs] and the error at its output [sites, records, outputs].

    `weight` and `bias` say where its gradients lie in the flat vector.
    """

    inputs: Tensor
    errors: Tensor
    weight: Span
    bias: Span | None


@dataclass(frozen=True)
class ClippedSums:
    """The clipped sums of all sites [sites, weights]: PRIVATE, no noise was added yet."""

    flat: Tensor
    units: Sequence[int]
    dropped: Sequence[int]
    below: Sequence[int]

    def of(self, site: int) -> ClippedSum:
        return ClippedSum(self.flat[site], self.units[site], self.dropped[site], self.below[site])


class Sheet:
    """Room for what is released at many sites, [sites, weights], and its rows one by one."""

    def __init__(self, like: Tensor) -> None:
        self.whole = torch.empty_like(like)
        self.rows = self.whole.unbind(0)


class Party:
    """The mechanisms of many sites side by side. What stays the same from step to step is worked out once.

    Every site's source is asked for what it would be asked for if that site were alone, in the same order. All methods take
    the first so many sites.
    """

    def __init__(
        self, mechanisms: Sequence[Mechanism], sizes: Sequence[int], randomness: Sequence[Randomness]
    ) -> None:
        self.mechanisms, self.sizes, self.randomness = mechanisms, sizes, randomness
        self.clipping = mechanisms[0].clipping
        samplings = [m.sampling for m in mechanisms]
        self._full = all(type(s) is FullBatch and s.unit == "record" for s in samplings)
        self._generators: list[torch.Generator] | None = None
        if all(type(source) is Seeded for source in randomness):
            self._generators = [source.generator for source in randomness if isinstance(source, Seeded)]
        self._chances: Tensor | None = None
        if self._generators is not None and all(type(s) is Poisson for s in samplings):
            most = max(sizes)
            self._chances = torch.full(
                (len(sizes), most), 2.0, dtype=torch.float64
            )  # who is no record is never drawn
            self._lots = [
                row if n == most else row[:n] for row, n in zip(self._chances.unbind(0), sizes, strict=True)
            ]
            self._rates = torch.tensor([float(s.rate) for s in samplings], dtype=torch.float64).unsqueeze(1)
        self._stds: Tensor | None = None
        if type(self.clipping) in (Flat, PerLayer):  # whose noise does not depend on what came before
            self._stds = self._noise_stds([{}] * len(mechanisms))
        self._batches = _column([m.expected_batch for m in mechanisms])

    def draw(self, sites: int) -> tuple[Tensor, list[int]]:
        """The records of one step at every site, [sites, most records], and how many there are; 0 stands where there is
        none."""
        sizes = self.sizes[:sites]
        if self._full:
            everybody = torch.arange(max(sizes))
            return everybody * (everybody < torch.tensor(sizes).unsqueeze(1)), list(sizes)
        if self._chances is None or self._generators is None:
            each = zip(self.mechanisms, sizes, self.randomness, strict=False)
            drawn = [mechanism.sampling.draw(n, source) for mechanism, n, source in each]
            counts = [len(rows) for rows in drawn]
            if not max(counts):
                return torch.zeros(sites, 1, dtype=torch.int64), counts
            return torch.nn.utils.rnn.pad_sequence(drawn, batch_first=True), counts
        for row, generator in zip(self._lots[:sites], self._generators, strict=False):
            row.uniform_(generator=generator)
        chosen = self._chances[:sites] < self._rates[:sites]
        places = chosen.cumsum(1)
        counts = places[:, -1].tolist()
        out = torch.zeros(sites, max(1, *counts), dtype=torch.int64)
        who, records = chosen.nonzero(as_tuple=True)
        out[who, places[who, records] - 1] = records
        return out, counts

    def release(
        self, sums: ClippedSums, states: Sequence[ClipState], sheet: Sheet
    ) -> tuple[Tensor, list[Mapping[str, Tensor]]]:
        """Add each site's noise and let the clipping finish: `Mechanism.release` for all of them.

        Returns the protected gradients [sites, weights], written on the sheet, and the clipping's next states.
        """
        sites, noisy = len(states), sheet.whole[: len(states)]
        following: list[Mapping[str, Tensor]] = []
        if self._generators is None:
            for site, (mechanism, source) in enumerate(
                zip(self.mechanisms[:sites], self.randomness, strict=False)
            ):
                found = mechanism.release(sums.of(site), states[site], source)
                noisy[site] = found.gradient
                following.append(found.state)
            return noisy, following
        if not math.isfinite(float(sums.flat.sum())) and not bool(torch.isfinite(sums.flat).all()):
            raise PrivacyError("a sum that is not finite cannot be protected by noise; nothing was released")
        for row, generator in zip(sheet.rows[:sites], self._generators, strict=False):
            row.normal_(generator=generator)
        noisy.mul_(self._noise_stds(states) if self._stds is None else self._stds[:sites]).add_(sums.flat)
        if self._stds is not None:
            return noisy.div_(self._batches[:sites]), list(states)
        for site, (mechanism, source) in enumerate(
            zip(self.mechanisms[:sites], self.randomness, strict=False)
        ):
            gradient, state = self.clipping.finish(
                noisy[site],
                states[site],
                noise_multiplier=mechanism.noise_multiplier,
                expected_batch=mechanism.expected_batch,
                clipped=sums.of(site),
                noise=source.normal,
            )
            if gradient.data_ptr() != noisy[site].data_ptr():
                noisy[site] = gradient
            following.append(state)
        return noisy, following

    def _noise_stds(self, states: Sequence[ClipState]) -> Tensor:
        """How loud the noise of each site is, [sites, 1]."""
        return _column(
            [
                m.clipping.noise_std(m.noise_multiplier, m.expected_batch, state)
                for m, state in zip(self.mechanisms[: len(states)], states, strict=True)
            ]
        )


def can_clip(clipping: Clipping) -> bool:
    """Whether this clipping is known on the stacked form."""
    return type(clipping) in (Flat, PerLayer, Quantile, AdaCliP)


def weighted_sum(traces: Iterable[Trace], factors: Tensor | None, out: Tensor) -> None:
    """Writes each site's Σ factor·gradient over its records; without factors, the plain sum."""
    sites = len(out)
    for trace in traces:
        errors = trace.errors if factors is None else trace.errors * factors.unsqueeze(-1)
        shape = (sites, errors.shape[2], trace.inputs.shape[2])
        out[:, slice(*trace.weight)].view(shape).copy_(torch.bmm(errors.mT, trace.inputs))
        if trace.bias is not None:
            torch.sum(errors, 1, out=out[:, slice(*trace.bias)])


def clipped_sums(
    clipping: Clipping,
    traces: Sequence[Trace],
    states: Sequence[ClipState],
    real: Tensor | None,
    counts: Sequence[int],
    out: Tensor,
) -> ClippedSums:
    """The clipped sum of every site. `real` marks the records of a padded batch that exist; None: all do."""
    if isinstance(clipping, AdaCliP):
        return _around_a_mean(clipping, traces, states, real, counts, out)
    if isinstance(clipping, PerLayer):
        share = clipping.norm / math.sqrt(len(traces))
        squares = [_squares(trace) for trace in traces]
        total = torch.stack(squares).sum(0)
        traces, bad, dropped = _without_the_unmeasurable(traces, total, real)
        below = torch.stack([s <= share**2 for s in squares]).all(0)
        for trace, found in zip(traces, squares, strict=True):
            weighted_sum([trace], _factors(found, share, real, bad), out)
        return ClippedSums(out, counts, dropped, _count(below, real))
    total = _added(traces)
    norm: Tensor | float
    if isinstance(clipping, Quantile):
        norm = torch.tensor([clipping.sensitivity(s) for s in states], dtype=torch.float64).unsqueeze(1)
    else:
        assert isinstance(clipping, Flat)
        norm = clipping.norm
    traces, bad, dropped = _without_the_unmeasurable(traces, total, real)
    weighted_sum(traces, _factors(total, norm, real, bad), out)
    within = _count(total <= norm**2, real) if isinstance(clipping, Quantile) else [0] * len(counts)
    return ClippedSums(out, counts, dropped, within)


def _added(traces: Sequence[Trace]) -> Tensor:
    """Squared length of each record's whole gradient."""
    total = _squares(traces[0])
    for trace in traces[1:]:
        total += _squares(trace)
    return total


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def _lengths(x: Tensor) -> Tensor:
    """Squared length of each record's row, [sites, records]."""
    if x.shape[2] < BLOCK:
        short: Tensor = torch.linalg.vector_norm(x, dim=2)
        return short.square_()
    return row_squares(x.flatten(0, 1)).view(x.shape[:2])


def _squares(trace: Trace) -> Tensor:
    """Squared length of each record's gradient in one layer."""
    inputs = _lengths(trace.inputs)
    errors = _lengths(trace.errors)
    return errors * (inputs + 1) if trace.bias is not None else errors * inputs


def _factors(squares: Tensor, norm: Tensor | float, real: Tensor | None, bad: Tensor | None) -> Tensor:
    """min(1, norm·(1 − ROUNDING)/length) for each record, 0 where there is none or where it cannot be measured."""
    limit = norm * (1 - ROUNDING)
    if isinstance(limit, Tensor):
        limit = limit.to(squares.dtype)
    factors = squares.sqrt().reciprocal_().mul_(limit).clamp_(max=1)
    if bad is not None:
        factors.masked_fill_(bad, 0)
    return factors if real is None else factors.mul_(real)


def _without_the_unmeasurable(
    traces: Sequence[Trace], squares: Tensor, real: Tensor | None
) -> tuple[Sequence[Trace], Tensor | None, list[int]]:
    """The same with records whose gradient is not finite set to zero; which, and how many at each site."""
    if math.isfinite(float(squares.sum())):
        return traces, None, [0] * len(squares)
    bad = ~torch.isfinite(squares)
    blank = bad.unsqueeze(-1)
    kept = [
        Trace(t.inputs.masked_fill(blank, 0), t.errors.masked_fill(blank, 0), t.weight, t.bias)
        for t in traces
    ]
    return kept, bad, _count(bad, real)


def _count(found: Tensor, real: Tensor | None) -> list[int]:
    """How many records of each site it holds for."""
    return [int(n) for n in (found if real is None else found & (real > 0)).sum(1).tolist()]


def _around_a_mean(
    clipping: AdaCliP,
    traces: Sequence[Trace],
    states: Sequence[ClipState],
    real: Tensor | None,
    counts: Sequence[int],
    out: Tensor,
) -> ClippedSums:
    """AdaCliP: lengths of (g − m)/b, by products alone, with a bound on what rounding does where terms cancel."""
    mean = torch.stack([s["mean"] for s in states])
    scale = torch.stack([s["scale"] for s in states])
    weight = (scale * scale.sum(1, keepdim=True)).reciprocal_()
    squares = torch.stack([_squares_around(t, weight, mean) for t in traces]).sum(0)
    traces, bad, dropped = _without_the_unmeasurable(traces, squares, real)
    factors = _factors(squares, clipping.norm, real, bad)
    weighted_sum(traces, factors, out)
    out.addcmul_(mean, factors.sum(1, keepdim=True), value=-1).mul_(weight.sqrt_())
    below = _count(squares <= clipping.norm**2, real)
    return ClippedSums(out, counts, dropped, below)


def _squares_around(trace: Trace, weight: Tensor, mean: Tensor) -> Tensor:
    """Σ weight·(gradient − mean)² of each record in one layer; see `few_squares` in privacy.gradients.forms."""
    sites, _, outputs = trace.errors.shape
    shape = (sites, outputs, trace.inputs.shape[2])
    w, m = weight[:, slice(*trace.weight)].view(shape), mean[:, slice(*trace.weight)].view(shape)
    pull = w * m
    spread = (torch.bmm(trace.inputs.square(), w.mT) * trace.errors.square()).sum(-1)
    along = (torch.bmm(trace.inputs, pull.mT) * trace.errors).sum(-1).mul_(2)
    offset = (pull * m).sum((1, 2)).unsqueeze(1)
    terms = spread + along.abs() + offset
    total = (spread - along).add_(offset).clamp_(min=0).add_(terms, alpha=EXPANSION)
    if trace.bias is not None:
        root, centre = weight[:, slice(*trace.bias)].sqrt(), mean[:, slice(*trace.bias)]
        total += _lengths((trace.errors - centre.unsqueeze(1)) * root.unsqueeze(1))
    return total
