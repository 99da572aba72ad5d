"""Embeddings: a table of which each record reads a few rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from confrere.core.errors import UnsafeModule
from confrere.privacy.gradients.forms import Rows
from confrere.privacy.gradients.registry import Gradients, rule


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
    return {"weight": Rows(indices, error, layer.num_embeddings)}
