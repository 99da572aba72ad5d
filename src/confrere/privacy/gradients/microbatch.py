"""How a batch is cut so that memory is bounded and no unit is torn apart."""

from __future__ import annotations

import torch
from torch import Tensor

from confrere.privacy.gradients.forms import Groups


def microbatches(count: int, limit: int, units: Tensor | None) -> list[slice] | list[Tensor]:
    """Rows in parts of at most `limit`; a unit that is larger than that comes alone, in one part."""
    if units is None:
        return [slice(at, min(at + limit, count)) for at in range(0, count, limit)]
    parts: list[list[Tensor]] = [[]]
    filled = 0
    for row in Groups.of(units).rows:
        rows = row[row < len(units)]
        if filled and filled + len(rows) > limit:
            parts.append([])
            filled = 0
        parts[-1].append(rows)
        filled += len(rows)
    return [torch.cat(part) for part in parts]
