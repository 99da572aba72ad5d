"""Rules of RNN, GRU and LSTM: any number of layers, both directions, with or without the batch first.

The projection of all inputs is one product, and its gradient (that of the gates before their
activation) is all that the rule needs: the weights are linear layers whose positions are time steps.
The recurrence runs in autograd functions of its own, time × records × features, which never compute a weight
gradient. What does not depend on the recurrence (the derivatives of the gates) is computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from confrere.core.errors import UnsafeModule
from confrere.privacy.gradients.per_record import Explicit, Outer
from confrere.privacy.gradients.rules import Gradients, GradientTap, rewrite


class LSTMSteps(torch.autograd.Function):
    """Gates (projected inputs with biases) → hidden states of all steps, and the last cell state."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        steps, records, size = *gates.shape[:2], h.shape[1]
        gates = gates.contiguous().clone() if ctx.needs_input_grad[0] else gates.clone()
        outputs, cells, squashed = (gates.new_empty(steps, records, size) for _ in range(3))
        transposed = weight.T
        previous = c
        for t in range(steps):
            now = gates[t].addmm_(h, transposed)
            now[:, : 2 * size].sigmoid_()
            now[:, 2 * size : 3 * size].tanh_()
            now[:, 3 * size :].sigmoid_()
            i, f, g, o = now.chunk(4, 1)
            torch.mul(f, previous, out=cells[t])
            previous = cells[t].addcmul_(i, g)
            torch.tanh(previous, out=squashed[t])
            h = torch.mul(o, squashed[t], out=outputs[t])
        ctx.save_for_backward(gates, c, cells, squashed, weight)
        return outputs, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *errors: Any) -> Any:
        error, last_error = errors
        gates, c, cells, squashed, weight = ctx.saved_tensors
        steps, records, size = cells.shape
        i, f, g, o = gates.chunk(4, 2)
        before = torch.cat([c.unsqueeze(0), cells[:-1]])
        # derivative of the cell state (first three) and of the output (fourth) by each gate's sum
        slopes = torch.empty_like(gates).view(steps, records, 4, size)
        torch.mul(g * i, 1 - i, out=slopes[:, :, 0])
        torch.mul(before * f, 1 - f, out=slopes[:, :, 1])
        torch.mul(i, 1 - g * g, out=slopes[:, :, 2])
        torch.mul(squashed * o, 1 - o, out=slopes[:, :, 3])
        through = o * (1 - squashed * squashed)
        forget = f.contiguous()
        dc = torch.zeros_like(c) if last_error is None else last_error.clone()
        dh = torch.zeros_like(c)
        for t in range(steps - 1, -1, -1):
            dh.add_(error[t])
            dc.addcmul_(dh, through[t])
            now = slopes[t]
            now[:, :3].mul_(dc.unsqueeze(1))
            now[:, 3].mul_(dh)
            dh = now.view(records, 4 * size) @ weight
            dc.mul_(forget[t])
        return slopes.view(steps, records, 4 * size), dh, dc, None


class RNNSteps(torch.autograd.Function):
    """Sums (projected inputs with biases) → hidden states of all steps."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, h: Tensor, weight: Tensor, relu: bool) -> Tensor:
        outputs = sums.contiguous().clone()
        transposed = weight.T
        for t in range(len(outputs)):
            h = outputs[t].addmm_(h, transposed)
            h = h.relu_() if relu else h.tanh_()
        ctx.save_for_backward(outputs, weight)
        ctx.relu = relu
        return outputs

    @staticmethod
    def backward(ctx: Any, *errors: Any) -> Any:
        (error,) = errors
        outputs, weight = ctx.saved_tensors
        slopes = (outputs > 0).to(outputs.dtype) if ctx.relu else 1 - outputs * outputs
        dh = torch.zeros_like(outputs[0])
        for t in range(len(outputs) - 1, -1, -1):
            slopes[t].mul_(dh.add_(error[t]))
            dh = slopes[t] @ weight
        return slopes, dh, None, None


class GRUSteps(torch.autograd.Function):
    """Sums (projected inputs with their bias) → hidden states and reset gates of all steps."""

    @staticmethod
    def forward(
        ctx: Any, sums: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        steps, records, size = *sums.shape[:2], h.shape[1]
        gates = sums.contiguous().clone()
        outputs, news = (gates.new_empty(steps, records, size) for _ in range(2))
        first, transposed = h, weight.T
        for t in range(steps):
            hidden = h @ transposed if bias is None else torch.addmm(bias, h, transposed)
            rz = gates[t][:, : 2 * size].add_(hidden[:, : 2 * size]).sigmoid_()
            news[t] = hidden[:, 2 * size :]
            n = gates[t][:, 2 * size :].addcmul_(rz[:, :size], news[t]).tanh_()
            h = torch.lerp(n, h, rz[:, size:], out=outputs[t])
        reset = gates[..., :size].contiguous()
        ctx.save_for_backward(gates, first, outputs, news, weight)
        ctx.mark_non_differentiable(reset)
        return outputs, reset

    @staticmethod
    def backward(ctx: Any, *errors: Any) -> Any:
        error = errors[0]
        gates, first, outputs, news, weight = ctx.saved_tensors
        steps, records, size = outputs.shape
        r, z, n = gates.chunk(3, 2)
        before = torch.cat([first.unsqueeze(0), outputs[:-1]])
        by_z = (before - n) * z * (1 - z)
        by_n = (1 - z) * (1 - n * n)
        by_r = by_n * news * r * (1 - r)
        out = torch.empty_like(gates)
        hidden = gates.new_empty(records, 3 * size)
        dh = torch.zeros_like(first)
        for t in range(steps - 1, -1, -1):
            dh = dh + error[t]
            now = out[t]
            torch.mul(dh, by_r[t], out=now[:, :size])
            torch.mul(dh, by_z[t], out=now[:, size : 2 * size])
            torch.mul(dh, by_n[t], out=now[:, 2 * size :])
            hidden[:, : 2 * size] = now[:, : 2 * size]
            torch.mul(now[:, 2 * size :], r[t], out=hidden[:, 2 * size :])
            dh = torch.addmm(dh * z[t], hidden, weight)
        return out, dh, None, None


@dataclass(frozen=True)
class _Direction:
    """The weights of one layer in one direction, and what they are called."""

    suffix: str
    w_input: Tensor
    w_hidden: Tensor
    b_input: Tensor | None
    b_hidden: Tensor | None

    @classmethod
    def of(cls, layer: nn.RNNBase, depth: int, reverse: bool) -> _Direction:
        suffix = f"_l{depth}{'_reverse' if reverse else ''}"
        names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
        return cls(suffix, *(getattr(layer, name + suffix, None) for name in names))  # type: ignore[arg-type]

    def gradients(self, steps: Tensor, error: Tensor, hidden: Tensor, hidden_error: Tensor) -> Gradients:
        """From what went in and the gradient of the gates, each time × records × features."""
        error, hidden_error = error.transpose(0, 1), hidden_error.transpose(0, 1)
        out: dict[str, Any] = {
            f"weight_ih{self.suffix}": Outer(error, steps.transpose(0, 1)),
            f"weight_hh{self.suffix}": Outer(hidden_error, hidden.transpose(0, 1)),
        }
        if self.b_input is not None:
            out[f"bias_ih{self.suffix}"] = Explicit(error.sum(1))
            same = hidden_error is error or hidden_error.data_ptr() == error.data_ptr()
            out[f"bias_hh{self.suffix}"] = (
                out[f"bias_ih{self.suffix}"] if same else Explicit(hidden_error.sum(1))
            )
        return out

    def both_biases(self) -> Tensor | None:
        return None if self.b_input is None or self.b_hidden is None else self.b_input + self.b_hidden


State = tuple[Tensor, ...]
Cell = Callable[[nn.RNNBase, GradientTap, _Direction, Tensor, State], tuple[Tensor, State]]
"""(layer, tap, weights, inputs, first state) → outputs of all steps, last state."""


def _before(first: Tensor, outputs: Tensor) -> Tensor:
    """The hidden state that each step starts from."""
    return torch.cat([first.detach().unsqueeze(0), outputs.detach()[:-1]])


def _lstm_cell(
    layer: nn.RNNBase, tap: GradientTap, w: _Direction, steps: Tensor, state: State
) -> tuple[Tensor, State]:
    hidden: list[Tensor] = []
    gates = F.linear(steps, w.w_input, w.both_biases())
    gates = tap(gates, lambda error: w.gradients(steps.detach(), error, hidden[0], error), (steps,), dim=1)
    outputs, last = LSTMSteps.apply(gates, *state, w.w_hidden)  # type: ignore[no-untyped-call]
    hidden.append(_before(state[0], outputs))
    return outputs, (outputs[-1], last)


def _rnn_cell(
    layer: nn.RNNBase, tap: GradientTap, w: _Direction, steps: Tensor, state: State
) -> tuple[Tensor, State]:
    hidden: list[Tensor] = []
    sums = F.linear(steps, w.w_input, w.both_biases())
    sums = tap(sums, lambda error: w.gradients(steps.detach(), error, hidden[0], error), (steps,), dim=1)
    relu = getattr(layer, "nonlinearity", "tanh") == "relu"
    outputs = RNNSteps.apply(sums, *state, w.w_hidden, relu)  # type: ignore[no-untyped-call]
    hidden.append(_before(state[0], outputs))
    return outputs, (outputs[-1],)


def _gru_cell(
    layer: nn.RNNBase, tap: GradientTap, w: _Direction, steps: Tensor, state: State
) -> tuple[Tensor, State]:
    hidden: list[Tensor] = []

    def gradients(error: Tensor) -> Gradients:
        reset = hidden[1]
        size = reset.shape[2]
        hidden_error = torch.cat([error[..., : 2 * size], error[..., 2 * size :] * reset], 2)
        return w.gradients(steps.detach(), error, hidden[0], hidden_error)

    sums = tap(F.linear(steps, w.w_input, w.b_input), gradients, (steps,), dim=1)
    outputs, reset = GRUSteps.apply(sums, *state, w.w_hidden, w.b_hidden)  # type: ignore[no-untyped-call]
    hidden += [_before(state[0], outputs), reset.detach()]
    return outputs, (outputs[-1],)


def _accepts(layer: nn.RNNBase) -> bool:
    if layer.proj_size:
        raise UnsafeModule("an LSTM with proj_size has no rule: use a Linear layer after it")
    return True


def _run(
    layer: nn.RNNBase, tap: GradientTap, cell: Cell, input: Tensor, first: State
) -> tuple[Tensor, State]:
    """All layers and directions; `first` holds the first states, layers·directions × records × size."""
    steps = input.transpose(0, 1) if layer.batch_first else input
    directions = 2 if layer.bidirectional else 1
    last: list[State] = []
    for depth in range(layer.num_layers):
        if depth and layer.dropout:
            steps = F.dropout(steps, layer.dropout, layer.training)
        found = []
        for reverse in range(directions):
            weights = _Direction.of(layer, depth, bool(reverse))
            state = tuple(s[depth * directions + reverse] for s in first)
            outputs, end = cell(layer, tap, weights, steps.flip(0) if reverse else steps, state)
            found.append(outputs.flip(0) if reverse else outputs)
            last.append(end)
        steps = torch.cat(found, 2) if directions == 2 else found[0]
    outputs = steps.transpose(0, 1) if layer.batch_first else steps
    return outputs, tuple(torch.stack(states) for states in zip(*last, strict=True))


def _zeros(layer: nn.RNNBase, input: Any) -> Tensor:
    if isinstance(input, PackedSequence):
        raise UnsafeModule("packed sequences have no rule: give the padded tensor and mask the loss")
    if input.dim() != 3:
        raise UnsafeModule(f"a recurrent layer needs a batch of sequences, not shape {tuple(input.shape)}")
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    records = input.shape[0 if layer.batch_first else 1]
    return torch.zeros(count, records, layer.hidden_size, dtype=input.dtype)


@rewrite(nn.LSTM, accepts=_accepts)
def lstm(layer: nn.LSTM, tap: GradientTap, input: Tensor, hx: Any = None) -> Any:
    """LSTM: four gates a step."""
    zeros = _zeros(layer, input)
    outputs, last = _run(layer, tap, _lstm_cell, input, (zeros, zeros) if hx is None else tuple(hx))
    return outputs, last


@rewrite(nn.RNN)
def rnn(layer: nn.RNN, tap: GradientTap, input: Tensor, hx: Tensor | None = None) -> Any:
    """Plain recurrence with tanh or ReLU."""
    zeros = _zeros(layer, input)
    outputs, (last,) = _run(layer, tap, _rnn_cell, input, (zeros if hx is None else hx,))
    return outputs, last


@rewrite(nn.GRU)
def gru(layer: nn.GRU, tap: GradientTap, input: Tensor, hx: Tensor | None = None) -> Any:
    """GRU: its third gate sees the hidden state through the reset gate, so that has its own error."""
    zeros = _zeros(layer, input)
    outputs, (last,) = _run(layer, tap, _gru_cell, input, (zeros if hx is None else hx,))
    return outputs, last
