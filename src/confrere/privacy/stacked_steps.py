"""The private step of many sites at once: each site's records are clipped, and its noise is drawn, as if it were alone.

For each record, a dense layer keeps its input and the error at its output. A record's gradient is their outer product,
so its length is known without computing it (Goodfellow 2015). The clippings of `privacy.clipping` work on these gradients
as on those of one site, with the same allowance for rounding. Noise comes from each site's own source, in the order in
which that site alone would draw it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import torch
from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.privacy.charged_steps import PrivateSteps, already_released
from confrere.privacy.clipping import ClipState
from confrere.privacy.gradients.batch_gradients import ClippedSum
from confrere.privacy.gradients.per_record import BLOCK, EXPANSION, SINGLE, WeightedNorm, row_squares
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Randomness, generators_of
from confrere.privacy.sampling import FullBatch, Poisson

Span = tuple[int, int]


@dataclass(frozen=True)
class Trace:
    """One dense layer: its input [sites, records, inputs] and the error at its output [sites, records, outputs].

    `weight` and `bias` are the positions of its gradients in the flat vector.
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


class ReleaseBuffer:
    """A buffer for the releases of many sites, [sites, weights], and its rows."""

    def __init__(self, like: Tensor) -> None:
        self.whole = torch.empty_like(like)
        self.rows = self.whole.unbind(0)


Drawn = tuple[Tensor, list[int]]
"""The rows of one step at every site, [sites, most records], and the number of records of each."""


class StackedSteps:
    """The private steps of many sites at once, each site drawing what `PrivateSteps.draw` would draw for it.

    Sites are ordered by their number of steps, largest first, so that those with steps left are always the first ones.
    """

    def __init__(
        self, private: Sequence[PrivateSteps], sizes: Sequence[int], randomness: Sequence[Randomness]
    ) -> None:
        if any(p.keeps_sums for p in private):
            raise PrivacyError(
                "the sums of a masked sum are kept, not released: they are computed site by site"
            )
        self.counts = [p.count for p in private]
        self.mechanisms = {
            role: StackedMechanism([p.mechanisms[role] for p in private], sizes, randomness, role)
            for role in private[0].mechanisms
        }

    def draw(self) -> Iterator[tuple[int, dict[str, Drawn]]]:
        """For each step, the number of sites that take part and the sample of each role."""
        for step in range(self.counts[0]):
            sites = len(self.counts)
            if self.counts[-1] <= step:
                sites = sum(n > step for n in self.counts)
            yield sites, {role: mechanism.draw(sites) for role, mechanism in self.mechanisms.items()}


class StackedMechanism:
    """The mechanisms of one role at many sites. What is the same in all steps is computed once.

    Every site's source makes the same draws, in the same order, as if that site were alone. The sites that take part in
    a step are the first ones. A sample pays for one release: `draw` comes before every `release`.
    """

    def __init__(
        self,
        mechanisms: Sequence[Mechanism],
        sizes: Sequence[int],
        randomness: Sequence[Randomness],
        role: str = "model",
    ) -> None:
        self.role, self._unused = role, False
        self.mechanisms, self.sizes, self.randomness = mechanisms, sizes, randomness
        self.clipping = mechanisms[0].clipping
        samplings = [m.sampling for m in mechanisms]
        self._full = all(type(s) is FullBatch and s.unit == "record" for s in samplings)
        self._all_rows: dict[int, Drawn] = {}
        self._generators = generators_of(randomness)
        self._uniforms: Tensor | None = None
        if self._generators is not None and all(type(s) is Poisson for s in samplings):
            most = max(sizes)
            self._uniforms = torch.full(
                (len(sizes), most), 2.0, dtype=torch.float64
            )  # padding is never drawn
            self._uniform_rows = [
                row if n == most else row[:n] for row, n in zip(self._uniforms.unbind(0), sizes, strict=True)
            ]
            self._rates = torch.tensor([float(s.rate) for s in samplings], dtype=torch.float64).unsqueeze(1)
        self._stds: Tensor | None = None
        if self.clipping.fixed_noise:
            self._stds = self._noise_stds([{}] * len(mechanisms))
        self._batches = _column([m.expected_batch for m in mechanisms])

    def draw(self, sites: int) -> Drawn:
        """The records of one step at every site, [sites, most records], padded with 0, and the number of each site."""
        self._unused = True
        sizes = self.sizes[:sites]
        if self._full:
            if sites not in self._all_rows:
                numbers = torch.arange(max(sizes))
                rows = numbers * (numbers < torch.tensor(sizes).unsqueeze(1))
                self._all_rows[sites] = rows, list(sizes)
            return self._all_rows[sites]
        if self._uniforms is None or self._generators is None:
            each = zip(self.mechanisms, sizes, self.randomness, strict=False)
            drawn = [mechanism.sampling.draw(n, source) for mechanism, n, source in each]
            counts = [len(rows) for rows in drawn]
            if not max(counts):
                return torch.zeros(sites, 1, dtype=torch.int64), counts
            return torch.nn.utils.rnn.pad_sequence(drawn, batch_first=True), counts
        for row, generator in zip(self._uniform_rows[:sites], self._generators, strict=False):
            row.uniform_(generator=generator)
        chosen = self._uniforms[:sites] < self._rates[:sites]
        places = chosen.cumsum(1)
        counts = places[:, -1].tolist()
        out = torch.zeros(sites, max(1, *counts), dtype=torch.int64)
        who, records = chosen.nonzero(as_tuple=True)
        out[who, places[who, records] - 1] = records
        return out, counts

    def release(
        self, sums: ClippedSums, states: Sequence[ClipState], buffer: ReleaseBuffer
    ) -> tuple[Tensor, list[Mapping[str, Tensor]]]:
        """Add each site's noise and let the clipping finish: `Mechanism.release` for all of them.

        Returns the protected gradients [sites, weights], held in the buffer, and the clipping's next states.
        """
        if not self._unused:
            raise already_released(self.role)
        self._unused = False
        sites, noisy = len(states), buffer.whole[: len(states)]
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
        for row, generator in zip(buffer.rows[:sites], self._generators, strict=False):
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
        """The standard deviation of each site's noise, [sites, 1]."""
        return _column(
            [
                m.clipping.noise_std(m.noise_multiplier, m.expected_batch, state)
                for m, state in zip(self.mechanisms[: len(states)], states, strict=True)
            ]
        )


def weighted_sum(traces: Iterable[Trace], factors: Iterable[Tensor | None], out: Tensor) -> None:
    """Writes each site's Σ factor·gradient over its records, added in the precision of `out`; without factors, the plain
    sum."""
    sites = len(out)
    for trace, factor in zip(traces, factors, strict=False):
        errors, inputs = trace.errors.to(out.dtype), trace.inputs.to(out.dtype)
        if factor is not None:
            errors = errors * factor.unsqueeze(-1)
        shape = (sites, errors.shape[2], inputs.shape[2])
        out[:, slice(*trace.weight)].view(shape).copy_(torch.bmm(errors.mT, inputs))
        if trace.bias is not None:
            torch.sum(errors, 1, out=out[:, slice(*trace.bias)])


@dataclass(frozen=True)
class StackedGradients:
    """The per-record gradients of many sites' batches, each padded to the longest: lengths are [sites, records]."""

    traces: Sequence[Trace]
    counts: Sequence[int]
    """How many records of each site there are."""
    real: Tensor | None
    """1 for the records that exist and 0 for padding; None where all exist."""
    out: Tensor
    """A buffer for sums in single precision, [sites, weights]."""
    precise: bool = False
    """Whether sums are in double precision, however few records there are."""

    @property
    def layers(self) -> Sequence[str]:
        return [str(number) for number in range(len(self.traces))]

    def squares(self, norm: WeightedNorm | None = None, layer: str | None = None) -> Tensor:
        traces = self.traces if layer is None else [self.traces[int(layer)]]
        total = _squares(traces[0], norm)
        for trace in traces[1:]:
            total += _squares(trace, norm)
        return total

    def without(self, bad: Tensor) -> StackedGradients:
        gone = bad.unsqueeze(-1)
        kept = [
            Trace(t.inputs.masked_fill(gone, 0), t.errors.masked_fill(gone, 0), t.weight, t.bias)
            for t in self.traces
        ]
        return replace(self, traces=kept)

    def weighted_sum(self, factors: Tensor | Sequence[Tensor]) -> Tensor:
        precise = self.precise or max(self.counts) > SINGLE
        out = torch.empty_like(self.out, dtype=torch.float64) if precise else self.out
        weighted_sum(self.traces, repeat(factors) if isinstance(factors, Tensor) else factors, out)
        return out

    def precisely(self) -> StackedGradients:
        return replace(self, precise=True)

    def clipped(self, flat: Tensor, bad: Tensor | None, below: Tensor) -> ClippedSums:
        dropped = [0] * len(self.counts) if bad is None else self._count(bad)
        return ClippedSums(flat, self.counts, dropped, self._count(below))

    def _count(self, found: Tensor) -> list[int]:
        """For each site, the number of records for which `found` is true."""
        there = found if self.real is None else found & (self.real > 0)
        return [int(n) for n in there.sum(1).tolist()]


def stacked(states: Sequence[ClipState]) -> ClipState:
    """The states of a clipping at many sites as one, with a row per site."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def _lengths(x: Tensor) -> Tensor:
    """Squared length of each record's row, [sites, records]."""
    if x.shape[2] < BLOCK:
        short: Tensor = torch.linalg.vector_norm(x, dim=2)
        return short.square_()
    return row_squares(x.flatten(0, 1)).view(x.shape[:2])


def _squares(trace: Trace, norm: WeightedNorm | None) -> Tensor:
    """Squared length of each record's gradient in one layer."""
    if norm is not None:
        return _squares_around(trace, norm.weight, norm.centre)
    inputs = _lengths(trace.inputs)
    errors = _lengths(trace.errors)
    return errors * (inputs + 1) if trace.bias is not None else errors * inputs


def _squares_around(trace: Trace, weight: Tensor, mean: Tensor) -> Tensor:
    """Σ weight·(gradient − mean)² of each record in one layer; see `few_squares` in privacy.gradients.per_record."""
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
