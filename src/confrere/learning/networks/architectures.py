"""The registry of networks: from a name and options in a study, and the shape of the records, to a module.

A network is a function from input shape and number of outputs to an `nn.Module`; `@network("name")`
registers one, and its further keyword arguments are its options in a study. Two of them are never written in a study
but follow from the records: `branches` (what lies where in a record of several parts) and, unless it is stated,
`mask` (whether the last channel of a sequence or bag says which steps are there).

    @network("wide")
    def wide(shape, outputs, width=64):
        return nn.Sequential(nn.Linear(flat(shape), width), nn.ReLU(), nn.Linear(width, outputs))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from confrere.core.errors import StudyError
from confrere.core.model import Architecture
from confrere.core.registry import Registry, nearest
from confrere.core.seeds import derive, seed_torch
from confrere.data.tasks import Branch

Build = Callable[..., nn.Module]
networks: Registry[Build] = Registry("network", "confrere.networks", package="confrere.learning.networks")


def network(name: str) -> Callable[[Build], Build]:
    """Decorator: make a function that builds a `torch.nn.Module` a network that studies can name.

    It is called with the `shape` of the inputs and the number of `outputs`; further parameters are options of a study.

    >>> @confrere.network("wide")
    ... def wide(shape, outputs, width=64):
    ...     return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, outputs))
    """
    return networks.register(name)


GIVEN = ("shape", "outputs", "branches", "return")
"""What a network gets from the records; everything else is an option of a study."""


def flat(shape: Sequence[int]) -> int:
    """How many numbers a record of this shape has."""
    size = 1
    for s in shape:
        size *= s
    return size


def describe(spec: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of a network as a study writes it: "mlp" or { name = "mlp", hidden = [32] }."""
    if isinstance(spec, str):
        return spec, {}
    options = dict(spec)
    if "name" not in options:
        raise StudyError('a network is written as "mlp" or as { name = "mlp", … }: the name is missing')
    return str(options.pop("name")), options


def architecture(
    spec: str | dict[str, Any] | Callable[[], nn.Module],
    shape: Sequence[int],
    outputs: int,
    branches: Sequence[Branch] = (),
) -> Architecture:
    """The architecture behind a study's words, or behind a function that returns one's own module."""
    if callable(spec):
        probe = spec()
        sizes = ",".join(f"{n}{tuple(p.shape)}" for n, p in probe.named_parameters())
        return Architecture(f"{type(probe).__name__}[{derive(0, sizes):x}]", spec)
    name, options = describe(spec)
    build = checked(name, options)
    given = options | _options_of_records(build, options, branches)

    def make() -> nn.Module:
        try:
            return build(tuple(shape), outputs, **given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise StudyError(f'network "{name}" cannot be built with {options}: {error}') from error

    words = ", ".join(f"{k}={options[k]}" for k in sorted(options))
    return Architecture(f"{name}({words})[{_shape_in_words(shape, branches)}→{outputs}]", make)


def checked(name: str, options: dict[str, Any]) -> Build:
    """The function behind a name, if it has these options."""
    build = networks[name]
    offered = [k for k in build.__annotations__ if k not in GIVEN]
    for key in options:
        if key not in offered:
            raise StudyError(
                f'network "{name}" has no option "{key}"{nearest(key, offered)}; it has: {", ".join(offered) or "none"}'
            )
    return build


def _options_of_records(build: Build, options: dict[str, Any], branches: Sequence[Branch]) -> dict[str, Any]:
    """Options that follow from the records: their branches and mask, where the network takes them."""
    found: dict[str, Any] = {}
    if "branches" in build.__annotations__:
        found["branches"] = tuple(branches)
    if "mask" in build.__annotations__ and "mask" not in options and len(branches) == 1:
        found["mask"] = branches[0].mask
    return found


def _shape_in_words(shape: Sequence[int], branches: Sequence[Branch]) -> str:
    if len(branches) < 2:
        return "×".join(map(str, shape)) + (" with mask" if branches and branches[0].mask else "")
    return " + ".join(f"{b.name} {'×'.join(map(str, b.shape))}" for b in branches)


def fresh(arch: Architecture, seed: int) -> nn.Module:
    """A newly initialised network whose weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        return arch.build()
