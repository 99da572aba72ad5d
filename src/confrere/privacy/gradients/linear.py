"""Linear layers, with any number of dimensions between the record and the features."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from confrere.privacy.gradients.forms import Explicit, Outer
from confrere.privacy.gradients.registry import Gradients, rule


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
