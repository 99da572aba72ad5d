"""Rules of RNN, GRU and LSTM: any number of layers, both directions, with or without the batch first.

The projection of all inputs is one product, and its gradient (that of the gates before their
activation) is all that the rule needs: the weights are linear layers whose positions are time steps.
The recurrence is written out step by step, time × records × features; the weights are frozen meanwhile, so
autograd never computes their summed gradient.
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


def _gates(tap: GradientTap, w: _Direction, steps: Tensor, before: list[Tensor]) -> Tensor:
    """The projected inputs of all steps, with both biases; `before` gets the hidden states once they are known."""
    gates = F.linear(steps, w.w_input, w.both_biases())
    return tap(gates, lambda error: w.gradients(steps.detach(), error, before[0], error), (steps,), dim=1)


def _lstm_cell(
    layer: nn.RNNBase, tap: GradientTap, w: _Direction, steps: Tensor, state: State
) -> tuple[Tensor, State]:
    before: list[Tensor] = []
    (h, c), size, hidden = state, layer.hidden_size, []
    for gates in _gates(tap, w, steps, before):
        in_and_forget, new, out = torch.split(torch.addmm(gates, h, w.w_hidden.T), [2 * size, size, size], 1)
        i, f = in_and_forget.sigmoid().chunk(2, 1)
        c = torch.addcmul(f * c, i, new.tanh())
        h = out.sigmoid() * c.tanh()
        hidden.append(h)
    outputs = torch.stack(hidden)
    before.append(_before(state[0], outputs))
    return outputs, (h, c)


def _rnn_cell(
    layer: nn.RNNBase, tap: GradientTap, w: _Direction, steps: Tensor, state: State
) -> tuple[Tensor, State]:
    before: list[Tensor] = []
    activate = torch.relu if layer.nonlinearity == "relu" else torch.tanh
    (h,), hidden = state, []
    for sums in _gates(tap, w, steps, before):
        h = activate(torch.addmm(sums, h, w.w_hidden.T))
        hidden.append(h)
    outputs = torch.stack(hidden)
    before.append(_before(state[0], outputs))
    return outputs, (h,)


def _gru_cell(
    layer: nn.RNNBase, tap: GradientTap, w: _Direction, steps: Tensor, state: State
) -> tuple[Tensor, State]:
    before: list[Tensor] = []
    resets: list[Tensor] = []
    (h,), size, hidden = state, layer.hidden_size, []

    def gradients(error: Tensor) -> Gradients:
        new_error = error[..., 2 * size :] * torch.stack(resets).detach()
        hidden_error = torch.cat([error[..., : 2 * size], new_error], 2)
        return w.gradients(steps.detach(), error, before[0], hidden_error)

    for sums in tap(F.linear(steps, w.w_input, w.b_input), gradients, (steps,), dim=1):
        reset_and_update, new = torch.split(sums, [2 * size, size], 1)
        own, own_new = torch.split(F.linear(h, w.w_hidden, w.b_hidden), [2 * size, size], 1)
        r, z = (reset_and_update + own).sigmoid().chunk(2, 1)
        h = torch.lerp(torch.addcmul(new, r, own_new).tanh(), h, z)
        hidden.append(h)
        resets.append(r)
    outputs = torch.stack(hidden)
    before.append(_before(state[0], outputs))
    return outputs, (h,)


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
