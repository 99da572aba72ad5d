"""Per-record gradients of layers without a rule, materialised in full.

Each record gets its own copy of the parameters (a view, no memory) and the layer is run over the
records with `torch.func.vmap`; autograd then gives one gradient per copy. Nothing is run twice, so
dropout and other randomness stay consistent. A layer that vmap cannot take is run one record at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from confrere.core.errors import UnsafeModule
from confrere.privacy.gradients.per_record import Explicit
from confrere.privacy.gradients.rules import GradientTap


def expanded_forward(
    layer: nn.Module,
    names: set[str],
    records: int,
    tap: GradientTap,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """Runs a layer with one copy of the named parameters per record.

    Every tensor argument whose first dimension has the size of the batch is taken to hold one entry
    per record; others (a mask over positions, a scalar) are the same for all.
    """
    own = dict(layer.named_parameters())
    shared = {n: p.detach() for n, p in own.items() if n not in names}
    shared.update(layer.named_buffers())
    copies = {}
    for name in sorted(names & own.keys()):
        spread = own[name].detach().expand(records, *own[name].shape).requires_grad_()
        copies[name] = tap(spread, lambda error, name=name: {name: Explicit(error)})  # type: ignore[misc]

    flat, spec = torch.utils._pytree.tree_flatten((inputs, options))
    split = [isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == records for x in flat]
    if not any(split):
        raise UnsafeModule(f"no argument has the {records} records of the batch in its first dimension")

    def one(parameters: dict[str, Tensor], *parts: Any) -> Any:
        whole = [x.unsqueeze(0) if is_split else x for x, is_split in zip(parts, split, strict=True)]
        args, kwargs = torch.utils._pytree.tree_unflatten(whole, spec)
        output = functional_call(layer, {**shared, **parameters}, args, kwargs)
        return torch.utils._pytree.tree_map(_drop_record, output)

    dims = [0 if is_split else None for is_split in split]
    try:
        return vmap(one, in_dims=(0, *dims), randomness="different")(copies, *flat)
    except (RuntimeError, ValueError, TypeError):
        outputs = [
            one(
                {n: p[i] for n, p in copies.items()},
                *[x[i] if is_split else x for x, is_split in zip(flat, split, strict=True)],
            )
            for i in range(records)
        ]
        return torch.utils._pytree.tree_map(lambda *rows: torch.stack(rows), *outputs)


def _drop_record(x: Any) -> Any:
    if isinstance(x, Tensor):
        if x.dim() == 0 or x.shape[0] != 1:
            raise UnsafeModule(f"for one record it gives shape {tuple(x.shape)}: the record must come first")
        return x.squeeze(0)
    return x
