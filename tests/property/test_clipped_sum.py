"""The clipped sum equals the one from explicit per-record gradients, for every layer and random shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from confrere.privacy.clipping import ROUNDING, AdaCliP, Clipping, Flat, PerLayer, Quantile, clipped_sum
from confrere.privacy.gradients import Groups, Layout, Recorder

Draw = Callable[[st.SearchStrategy[int]], int]
few = st.integers(1, 4)
QUICK = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


class Squash(nn.Module):
    """Any output → one number per record, so that every coordinate of it matters."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.inner(*inputs)
        tensors = found if isinstance(found, tuple) else (found,)
        return torch.stack([torch.sin(1.3 * t).flatten(1).sum(1) for t in tensors if t is not None]).sum(0)


class BatchSecond(nn.Module):
    """A layer that wants time first, seen from a model that keeps records first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.layer(x.transpose(0, 1))
        states = state if isinstance(state, tuple) else (state,)
        return torch.cat(
            [outputs.transpose(0, 1).flatten(1), *(s.transpose(0, 1).flatten(1) for s in states)], 1
        )


class First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Attend(nn.Module):
    def __init__(self, layer: nn.MultiheadAttention, across: bool) -> None:
        super().__init__()
        self.layer, self.across = layer, across
        self.before = nn.Linear(layer.embed_dim, layer.embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x) if self.layer.batch_first else self.before(x).transpose(0, 1)
        other = x.flip(-1) if self.across else x
        out, _ = self.layer(x, other, other, need_weights=self.across)
        return out if self.layer.batch_first else out.transpose(0, 1)


class Bare(nn.Module):
    """A parameter that belongs to no layer, dropout beside it, and a layer inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(width))
        self.inside = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * torch.exp(self.shift)


class Tied(nn.Module):
    """One table for reading and for writing words."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.read = nn.Embedding(words, width)
        self.write = nn.Linear(width, words, bias=False)
        self.write.weight = self.read.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.write(torch.tanh(self.read(x)))


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.sin(self.layer(x)))


def _linear(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    width, middle = draw(few), tuple(draw(few) for _ in range(draw(st.integers(0, 2))))
    return nn.Linear(width, draw(few), bias=bool(draw(st.integers(0, 1)))), (*middle, width)


def _conv(dims: int) -> Callable[[Draw], tuple[nn.Module, tuple[int, ...]]]:
    def make(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        groups, kernel, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
        mode = ("zeros", "zeros", "circular")[draw(st.integers(0, 2))]
        layer = kind(
            channels, outputs, kernel, draw(st.integers(1, 2)), draw(st.integers(0, 1)), dilation, groups,
            bool(draw(st.integers(0, 1))), mode,
        )  # fmt: skip
        reach = dilation * (kernel - 1) + 1
        return layer, (channels, *(reach + draw(st.integers(0, 3)) for _ in range(dims)))

    return make


def _same_conv(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Conv2d(2, 3, draw(st.integers(1, 4)), padding="same"), (2, 5, 4)


def _layer_norm(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    shape = tuple(draw(st.integers(2, 4)) for _ in range(draw(st.integers(1, 2))))
    outer = tuple(draw(few) for _ in range(draw(st.integers(0, 2))))
    return nn.LayerNorm(shape), (*outer, *shape)


def _group_norm(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    groups = draw(st.integers(1, 3))
    return nn.GroupNorm(groups, 2 * groups), (
        2 * groups,
        *(draw(few) for _ in range(draw(st.integers(1, 2)))),
    )


def _recurrent(kind: type[nn.RNNBase]) -> Callable[[Draw], tuple[nn.Module, tuple[int, ...]]]:
    def make(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
        width, first = draw(few), bool(draw(st.integers(0, 1)))
        layer = kind(
            width, draw(few), draw(st.integers(1, 2)), bias=bool(draw(st.integers(0, 1))),
            batch_first=first, bidirectional=bool(draw(st.integers(0, 1))),
        )  # fmt: skip
        return First(layer) if first else BatchSecond(layer), (draw(few), width)

    return make


def _attention(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    heads = draw(st.integers(1, 2))
    width = heads * draw(st.integers(1, 2))
    layer = nn.MultiheadAttention(
        width, heads, bias=bool(draw(st.integers(0, 1))), batch_first=bool(draw(st.integers(0, 1)))
    )
    return Attend(layer, bool(draw(st.integers(0, 1)))), (draw(few), width)


def _transformer(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), (draw(few), 4)


def _embedding(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    padding = (None, 0)[draw(st.integers(0, 1))]
    return nn.Embedding(5, draw(few), padding_idx=padding), (-5, *(draw(few) for _ in range(draw(few) // 2)))


def _tied(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    return Tied(5, draw(few)), (-5, draw(few))


def _bare(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    width = draw(few)
    return Bare(width), (width,)


def _twice(draw: Draw) -> tuple[nn.Module, tuple[int, ...]]:
    return Twice(nn.Conv1d(2, 2, 3, padding=1)) if draw(st.integers(0, 1)) else Twice(nn.Linear(3, 3)), (2, 3)


LAYERS: dict[str, Callable[[Draw], tuple[nn.Module, tuple[int, ...]]]] = {
    "linear": _linear,
    "conv1d": _conv(1),
    "conv2d": _conv(2),
    "conv3d": _conv(3),
    "conv padded same": _same_conv,
    "embedding": _embedding,
    "layer norm": _layer_norm,
    "group norm": _group_norm,
    "rnn": _recurrent(nn.RNN),
    "gru": _recurrent(nn.GRU),
    "lstm": _recurrent(nn.LSTM),
    "attention": _attention,
    "transformer": _transformer,
    "tied": _tied,
    "used twice": _twice,
    "bare parameter": _bare,
}


def _case(kind: str, data: st.DataObject) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in double precision, a batch, and the patient of each record."""
    torch.manual_seed(data.draw(st.integers(0, 99)))
    layer, shape = LAYERS[kind](data.draw)
    records = data.draw(st.integers(1, 6))
    if shape[0] < 0:  # words, of which there are that many
        x = torch.randint(0, -shape[0], (records, *shape[1:]))
    else:
        x = torch.randn(records, *shape, dtype=torch.float64)
    return Squash(layer).double(), x, torch.randint(0, 3, (records,))


def one_at_a_time(module: nn.Module, x: Tensor) -> Tensor:
    """Records × parameters: autograd on each record by itself."""
    layout, parameters = Layout.of(module), dict(module.named_parameters())
    wanted = [parameters[name] for name in layout.names]
    rows = []
    for i in range(len(x)):
        found = torch.autograd.grad(module(x[i : i + 1]).sum(), wanted, allow_unused=True)
        pairs = zip(wanted, found, strict=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs]))
    return torch.stack(rows).detach()


def expected(clipping: Clipping, layout: Layout, gradients: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The clipped sum by its definition, with the share of the norm that is given up to rounding."""
    norm = clipping.sensitivity(state)
    if isinstance(clipping, AdaCliP):
        width = state["scale"].sqrt() * state["scale"].sum().sqrt()
        gradients = (gradients - state["mean"]) / width
        norm -= ROUNDING * min(norm, float((state["mean"] / width).norm()))
    norm *= 1 - ROUNDING
    if isinstance(clipping, PerLayer):
        out = torch.zeros_like(gradients)
        for names in layout.layers.values():
            at = torch.cat([torch.arange(*layout.spans[name]) for name in names])
            share = norm / math.sqrt(len(layout.layers))
            part = gradients[:, at]
            out[:, at] = part / (part.norm(dim=1, keepdim=True) / share).clamp(min=1)
        return out.sum(0)
    return (gradients / (gradients.norm(dim=1, keepdim=True) / norm).clamp(min=1)).sum(0)


def start(clipping: Clipping, layout: Layout) -> dict[str, Tensor]:
    """A state as it is after some steps: means and scales of all sizes."""
    state = dict(clipping.start(layout))
    if isinstance(clipping, AdaCliP):
        state["mean"] = 0.3 * torch.randn(layout.size, dtype=torch.float64)
        state["scale"] = state["scale"].double() * torch.exp(torch.randn(layout.size, dtype=torch.float64))
    return state


CLIPPINGS = [Flat(0.7), Flat(50.0), PerLayer(0.7), AdaCliP(0.7), Quantile(0.4)]


@pytest.mark.parametrize("kind", LAYERS)
@QUICK
@given(data=st.data())
def test_the_clipped_sum_is_the_one_from_explicit_gradients(kind: str, data: st.DataObject) -> None:
    module, x, patients = _case(kind, data)
    gradients = one_at_a_time(module, x)
    by_patient = Groups.of(patients).add(gradients)
    recorder = Recorder(module)
    for clipping in CLIPPINGS:
        state = start(clipping, recorder.layout)
        for units, truth in ((None, gradients), (patients, by_patient)):
            recorded = recorder.backward(recorder.forward(x))
            found = clipping.sum(recorded.by_unit(units), state)
            wanted = expected(clipping, recorder.layout, truth, state)
            scale = 1 + float(wanted.abs().max())
            assert torch.allclose(found.flat.double(), wanted, rtol=3e-4, atol=3e-4 * scale)
            assert (found.units, found.dropped) == (len(truth), 0)


@pytest.mark.parametrize("kind", LAYERS)
@QUICK
@given(data=st.data(), limit=st.integers(1, 4))
def test_micro_batches_change_nothing(kind: str, data: st.DataObject, limit: int) -> None:
    module, x, patients = _case(kind, data)
    recorder, in_parts = Recorder(module), Recorder(module, limit)
    for clipping in CLIPPINGS:
        state = start(clipping, recorder.layout)
        for units in (None, patients):
            whole = clipped_sum(recorder, (x,), lambda out, rows: out, clipping, state, units)
            parts = clipped_sum(in_parts, (x,), lambda out, rows: out, clipping, state, units)
            assert torch.allclose(whole.flat, parts.flat, rtol=1e-4, atol=1e-5)
            assert (whole.units, whole.below) == (parts.units, parts.below)


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@QUICK
@given(data=st.data(), size=st.floats(0.01, 1000))
def test_removing_one_unit_moves_the_sum_by_at_most_the_sensitivity(
    clipping: Clipping, data: st.DataObject, size: float
) -> None:
    kind = data.draw(st.sampled_from(sorted(set(LAYERS) - {"embedding", "tied"})))
    module, x, patients = _case(kind, data)
    module, x = module.float(), x.float() * size
    recorder = Recorder(module, probe=size < 100)  # the sine of a large number is mostly rounding
    state = {k: v.float() for k, v in start(clipping, recorder.layout).items()}
    for units in (None, patients):
        gone = torch.arange(len(x)) == 0 if units is None else units == units[0]
        kept = None if units is None else units[~gone]
        whole = clipped_sum(recorder, (x,), lambda out, rows: out, clipping, state, units)
        rest = clipped_sum(recorder, (x[~gone],), lambda out, rows: out, clipping, state, kept)
        moved = float((whole.flat.double() - rest.flat.double()).norm())
        assert moved <= clipping.sensitivity(state)
