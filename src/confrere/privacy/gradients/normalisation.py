"""LayerNorm and GroupNorm, which normalise within a record."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.privacy.gradients.forms import Explicit
from confrere.privacy.gradients.registry import Gradients, Tap, rewrite, rule


@rule(nn.LayerNorm, covers=("weight", "bias"))
def layer_norm(layer: nn.LayerNorm, inputs: tuple[Any, ...], error: Tensor) -> Gradients:
    """LayerNorm: the error times the normalised input, added over the positions of a record."""
    shape = tuple(layer.normalized_shape)
    normal = F.layer_norm(inputs[0], shape, eps=layer.eps)
    weight = (error * normal).reshape(len(error), -1, *shape).sum(1)
    bias = error.reshape(len(error), -1, *shape).sum(1)
    return {"weight": Explicit(weight), "bias": Explicit(bias)}


@rewrite(nn.GroupNorm, covers=("weight", "bias"))
def group_norm(layer: nn.GroupNorm, tap: Tap, input: Tensor) -> Tensor:
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
