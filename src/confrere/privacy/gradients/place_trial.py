"""Test whether a record's position in the batch, or the batch size, changes its contribution.

Removing a record moves others to another place and leaves one fewer. A model in which that matters changes what every
other record contributes, and clipping does not bound it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def place_matters(what: str, observed: str) -> str:
    """What is wrong with a model whose records count by their place, or by how many there are."""
    return (
        f"{what} for one record depends on its place in the batch or on how many records there are ({observed} it is"
        " not the same): removing one record would change what others contribute. Compute each output from its own"
        " record alone"
    )


def summed_outputs(outputs: Iterable[Tensor]) -> Tensor | None:
    """A number for each record, in which every one of its outputs counts differently; None without outputs."""
    total: Tensor | None = None
    for out in outputs:
        rows = out.reshape(len(out), -1)
        factors = 1 + 0.5 * torch.sin(torch.arange(rows.shape[1], device=out.device, dtype=torch.float32))
        sums = (rows * factors.to(out.dtype)).sum(1)
        total = sums if total is None else total + sums
    return total


def record_shares(rows: Tensor) -> Tensor:
    """The weight of each record in a sum of gradients: a gradient with another sign, or of another record, shows in it."""
    return 1 + 0.5 * torch.cos(rows * 2.4)


def moved(many: int) -> Tensor:
    """An order of this many records in which none keeps its place; it is the same every time."""
    cycle = torch.randperm(many, generator=torch.Generator().manual_seed(many))
    order = torch.empty_like(cycle)
    order[cycle] = cycle.roll(1)
    return order


DRAWS = (
    "bernoulli",
    "rand",
    "uniform",
    "normal",
    "exponential",
    "cauchy",
    "geometric",
    "log_normal",
    "random",
)
"""How the names of functions begin that draw random numbers."""


class ConstantChance(TorchDispatchMode):
    """Random numbers are the same for all records meanwhile, and dropout keeps everything."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch is to keep its compiler out of this mode, for which it would import it: some seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        given = list(args)
        for at, argument in enumerate(
            func._schema.arguments
        ):  # attention and recurrent layers drop by themselves
            if argument.name in ("dropout_p", "dropout") and at < len(given):
                given[at] = 0.0
            elif argument.name in ("dropout_p", "dropout") and argument.name in kwargs:
                kwargs[argument.name] = 0.0
        found = func(*given, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name == "native_dropout":
            return given[0].clone(), torch.ones_like(found[1])
        if isinstance(found, Tensor) and name.startswith(DRAWS):
            found.fill_(1 if name.startswith("bernoulli") else 0.5 if found.is_floating_point() else 0)
        return found
