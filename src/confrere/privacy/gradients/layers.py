"""Rules of linear layers, embeddings, LayerNorm and GroupNorm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from confrere.core.errors import UnsafeModule
from confrere.privacy.gradients.per_record import Explicit, Outer, TableRows
from confrere.privacy.gradients.rules import Gradients, GradientTap, rewrite, rule


def positions(x: Tensor) -> Tensor:
    """Records × anything × features → records × positions × features."""
    return x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)


def affine(inputs: Tensor, error: Tensor, weight: str = "weight", bias: str | None = "bias") -> Gradients:
    """Gradients of x @ weight.T + bias, of records × positions × features."""
    out: dict[str, Any] = {weight: Outer(error, inputs)}
    if bias is not None:
        out[bias] = Explicit(error[:, 0] if error.shape[1] == 1 else error.sum(1))
    return out


@rule(nn.Linear, NonDynamicallyQuantizableLinear, covers=("weight", "bias"))
def linear(layer: nn.Linear, inputs: tuple[Any, ...], error: Tensor) -> Gradients:
    """Linear: error ⊗ input for the weight, the error for the bias."""
    return affine(positions(inputs[0]), positions(error))


def _accepts(layer: nn.Embedding) -> bool:
    if layer.max_norm is not None:
        raise UnsafeModule(
            "an embedding with max_norm rewrites its table from the records: set max_norm=None"
        )
    if layer.scale_grad_by_freq:
        raise UnsafeModule("scale_grad_by_freq counts words over all records of a batch: switch it off")
    return True


@rule(nn.Embedding, covers=("weight",), accepts=_accepts)
def embedding(layer: nn.Embedding, inputs: tuple[Any, ...], error: Tensor) -> Gradients:
    """Embedding: each word's error belongs to its row; the padding row learns nothing."""
    indices = inputs[0].flatten(1) if inputs[0].dim() > 1 else inputs[0].unsqueeze(1)
    error = error.reshape(*indices.shape, -1)
    if layer.padding_idx is not None:
        error = error.masked_fill((indices == layer.padding_idx).unsqueeze(2), 0)
    return {"weight": TableRows(indices, error, layer.num_embeddings)}


@rule(nn.LayerNorm, covers=("weight", "bias"))
def layer_norm(layer: nn.LayerNorm, inputs: tuple[Any, ...], error: Tensor) -> Gradients:
    """LayerNorm: the error times the normalised input, added over the positions of a record."""
    shape = tuple(layer.normalized_shape)
    normal = F.layer_norm(inputs[0], shape, eps=layer.eps)
    weight = (error * normal).reshape(len(error), -1, *shape).sum(1)
    bias = error.reshape(len(error), -1, *shape).sum(1)
    return {"weight": Explicit(weight), "bias": Explicit(bias)}


@rewrite(nn.GroupNorm, covers=("weight", "bias"))
def group_norm(layer: nn.GroupNorm, tap: GradientTap, input: Tensor) -> Tensor:
    """GroupNorm: Σ error·(x − mean)/deviation for each channel, from two sums over the places."""
    records, channels = input.shape[:2]
    groups = layer.num_groups
    x = input.contiguous()
    places = x[0, 0].numel()
    output, mean, scale = torch.native_group_norm(
        x, layer.weight, layer.bias, records, channels, places, groups, layer.eps
    )

    def gradients(error: Tensor) -> Gradients:
        error = error.reshape(records, channels, places)
        bias = error.sum(2)
        along = torch.linalg.vecdot(error, x.detach().view(records, channels, places))
        mean_, scale_ = (
            t.detach().view(records, groups, 1).expand(-1, -1, channels // groups).reshape(records, channels)
            for t in (mean, scale)
        )
        return {"weight": Explicit((along - mean_ * bias) * scale_), "bias": Explicit(bias)}

    return tap(output, gradients, (x,))
