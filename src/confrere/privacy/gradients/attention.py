"""Rule of nn.MultiheadAttention: its projections are used without being called, so the layer is run here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.core.errors import UnsafeModule
from confrere.privacy.gradients.layers import affine
from confrere.privacy.gradients.per_record import Explicit, Groups, Outer, Sum, WeightedNorm
from confrere.privacy.gradients.rules import Gradients, GradientTap, rewrite


@dataclass(frozen=True)
class Blocks:
    """Gradients of a matrix whose rows belong to several products (queries, keys and values)."""

    parts: tuple[Outer, ...]

    @property
    def records(self) -> int:
        return self.parts[0].records

    def squares(self, norm: WeightedNorm | None = None, groups: Groups | None = None) -> Tensor:
        total, at = None, 0
        for part in self.parts:
            end = at + part.errors.shape[2]
            piece = None if norm is None else WeightedNorm(norm.weight[at:end], norm.centre[at:end])
            found = part.squares(piece, groups)
            total, at = found if total is None else total + found, end
        assert total is not None
        return total

    def weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        at = 0
        for part in self.parts:
            part.weighted_sum(factors, out[at : at + part.size])
            at += part.size

    def explicit(self, rows: slice | Tensor) -> Tensor:
        return torch.cat([part.explicit(rows) for part in self.parts], 1)

    def without(self, bad: Tensor) -> Blocks:
        return Blocks(tuple(part.without(bad) for part in self.parts))

    def joined(self, others: Sequence[Blocks]) -> Sum:
        return Sum((self, *others))


def _accepts(layer: nn.MultiheadAttention) -> bool:
    plain = layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn
    if not plain and not layer.batch_first:
        raise UnsafeModule("attention with add_bias_kv or add_zero_attn needs batch_first=True")
    return plain


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


def _mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, like: Tensor, heads: int
) -> Tensor | None:
    """Both masks as one that is added to the scores: records × heads × queries × keys."""
    total = None
    if attn_mask is not None:
        total = _additive(attn_mask, like)
        if total.dim() == 3:
            total = total.view(-1, heads, *total.shape[1:])
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, like)[:, None, None, :]
        total = padding if total is None else total + padding
    return total


def _project(
    layer: nn.MultiheadAttention, tap: GradientTap, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, ...]:
    """Queries, keys and values, projected, records × positions × features; tapped as one tensor."""
    sources = (query, key, value)
    names = () if layer._qkv_same_embed_dim else ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    weights = [getattr(layer, name) for name in names] or layer.in_proj_weight.chunk(3)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)

    if not names and query is key and key is value:

        def of_self(error: Tensor) -> Gradients:
            return affine(query.detach(), error, "in_proj_weight", "in_proj_bias")

        joint = F.linear(query, layer.in_proj_weight, layer.in_proj_bias)
        return tap(joint, of_self, (query,)).chunk(3, -1)

    made = [F.linear(x, w, b) for x, w, b in zip(sources, weights, biases, strict=True)]
    sizes = [x[0].numel() for x in made]

    def unpack(packed: Tensor) -> list[Tensor]:
        pieces = torch.split(packed, sizes, 1)
        return [piece.view_as(x) for piece, x in zip(pieces, made, strict=True)]

    def gradients(error: Tensor) -> Gradients:
        errors = unpack(error)
        parts = tuple(Outer(e, x.detach()) for e, x in zip(errors, sources, strict=True))
        out: dict[str, Any] = {"in_proj_bias": Explicit(torch.cat([e.sum(1) for e in errors], 1))}
        out.update(zip(names, parts, strict=True) if names else {"in_proj_weight": Blocks(parts)})
        return out

    packed = torch.cat([x.flatten(1) for x in made], 1)
    return tuple(unpack(tap(packed, gradients, sources)))


@dataclass(frozen=True)
class AttentionOptions:
    """What `nn.MultiheadAttention` is called with after the three sequences; names and order are PyTorch's."""

    key_padding_mask: Tensor | None = None
    need_weights: bool = True
    attn_mask: Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False


@rewrite(nn.MultiheadAttention, accepts=_accepts)
def attention(
    layer: nn.MultiheadAttention,
    tap: GradientTap,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *given: Any,
    **named: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as PyTorch computes it, with its input and output projections tapped."""
    options = AttentionOptions(*given, **named)
    if query.dim() != 3:
        raise UnsafeModule(f"attention needs a batch of sequences, not shape {tuple(query.shape)}")
    if options.is_causal and options.attn_mask is None:
        raise UnsafeModule("is_causal needs attn_mask")
    if not layer.batch_first:
        same = query is key, key is value
        query = query.transpose(0, 1)
        key = query if same[0] else key.transpose(0, 1)
        value = key if same[1] else value.transpose(0, 1)
    heads = layer.num_heads
    q, k, v = (
        x.view(*x.shape[:2], heads, -1).transpose(1, 2) for x in _project(layer, tap, query, key, value)
    )
    mask = _mask(options.attn_mask, options.key_padding_mask, q, heads)
    dropout = layer.dropout if layer.training else 0.0
    scores: Tensor | None = None
    if options.need_weights:
        raw = q @ k.mT / math.sqrt(q.shape[-1])
        scores = F.dropout(torch.softmax(raw if mask is None else raw + mask, -1), dropout)
        mixed = scores @ v
        scores = scores.mean(1) if options.average_attn_weights else scores
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    mixed = mixed.transpose(1, 2).flatten(2)
    inner = layer.out_proj
    output = F.linear(mixed, inner.weight, inner.bias)

    def gradients(error: Tensor) -> Gradients:
        return affine(mixed.detach(), error, "out_proj.weight", "out_proj.bias")

    output = tap(output, gradients, (mixed,))
    return output if layer.batch_first else output.transpose(0, 1), scores
