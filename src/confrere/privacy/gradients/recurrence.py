"""The steps of recurrent layers, forwards and backwards in time, without weight gradients.

Everything is time × records × features. What does not depend on the recurrence (the derivatives of the
gates) is computed for all steps at once, so that a step of the backward pass is a few small products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
