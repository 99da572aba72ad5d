"""A module whose trainable weights are one flat vector, so that a step is a few operations on vectors.

Networks hold no state of a site: weights are loaded before each use, so the sites of one process share them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.core.model import Architecture
from confrere.core.params import Params
from confrere.data.records import Branch
from confrere.learning.engine.stack import layers_of
from confrere.learning.networks.architectures import architecture, fresh
from confrere.privacy.gradients import Recorder

Found = TypeVar("Found")

MICROBATCH = 4096
"""Most records that go through a network at once in a private step; it bounds memory, not the result."""


class Network:
    """A network at work: `load` weights, train on `flat`, read `params` back.

    `flat` holds the trainable weights in the order of their sorted names; the module's parameters are
    views into it, and its gradients views into `gradient`.
    """

    def __init__(self, architecture: Architecture, seed: int = 0, device: str = "cpu") -> None:
        self.module: nn.Module = fresh(architecture, seed).to(device)
        self.layers = layers_of(self.module) if device == "cpu" else None
        """What a stack of many sites is made of; None if this network cannot be stacked."""
        trainable = {n: p for n, p in sorted(self.module.named_parameters()) if p.requires_grad}
        if not trainable:
            raise StudyError(f"the network {architecture.name} has no trainable weights")
        dtypes = {p.dtype for p in trainable.values()}
        if len(dtypes) > 1:
            raise StudyError(f"the network {architecture.name} mixes number formats: {dtypes}")
        self.flat = torch.cat([p.detach().reshape(-1) for p in trainable.values()])
        self.gradient = torch.zeros_like(self.flat)
        self._trainable = trainable
        at = 0
        for parameter in trainable.values():
            size = parameter.numel()
            parameter.data = self.flat[at : at + size].view(parameter.shape)
            parameter.grad = self.gradient[at : at + size].view(parameter.shape)
            at += size
        whole = set(trainable) == set(self._all())  # nothing but trainable weights
        self._shapes = (
            tuple((n, tuple(p.shape), str(p.dtype).removeprefix("torch.")) for n, p in trainable.items())
            if whole
            else None
        )
        """What weights must be like to be loaded in one piece."""

    @cached_property
    def recorder(self) -> Recorder:
        """What records this network's private steps."""
        return Recorder(self.module, MICROBATCH)

    def fits(self, params: Params) -> bool:
        """Whether these weights are all that the network has, in its shapes and its number format."""
        return params.shapes == self._shapes

    def load(self, params: Params) -> None:
        if self.fits(params):
            self.flat.copy_(params.flatten())
            return
        own = self._all()
        if set(own) != set(params):
            raise StudyError("these weights belong to another architecture")
        for name, tensor in own.items():
            tensor.copy_(params[name])

    def params(self) -> Params:
        return Params({n: t.detach().clone().cpu() for n, t in self._all().items()})

    def _all(self) -> dict[str, Tensor]:
        tensors = {n: p.data for n, p in self.module.named_parameters()}
        return tensors | {n: b for n, b in self.module.named_buffers() if n in self.module.state_dict()}

    def backward(self, loss: Tensor) -> Tensor:
        """The gradient of a plain (not private) loss, as one vector."""
        self.gradient.zero_()
        at = 0
        for parameter in self._trainable.values():  # something may have taken the views away
            if parameter.grad is None:
                size = parameter.numel()
                parameter.grad = self.gradient[at : at + size].view(parameter.shape)
            at += parameter.numel()
        torch.autograd.backward(loss, inputs=list(self._trainable.values()))
        return self.gradient


class NetworkCache:
    """The networks of one process: each is built once and used with the weights that are loaded into it."""

    def __init__(self) -> None:
        self._architectures: dict[Hashable, Architecture] = {}
        self._networks: dict[Hashable, Network] = {}
        self._fresh: dict[Hashable, Params] = {}
        self.safe: set[Hashable] = set()
        """Architectures that were found not to mix records."""
        self._found: dict[Hashable, Any] = {}

    def once(self, what: Hashable, work_out: Callable[[], Found]) -> Found:
        """A value that is the same for all sites of the process, computed at the first call."""
        if what not in self._found:
            self._found[what] = work_out()
        found: Found = self._found[what]
        return found

    def architecture(
        self, spec: Any, shape: Sequence[int], outputs: int, branches: Sequence[Branch] = ()
    ) -> Architecture:
        """The architecture behind a study's words, or behind a function; the same words, the same one."""
        key = (spec if callable(spec) else repr(spec), tuple(shape), outputs, tuple(branches))
        if key not in self._architectures:
            self._architectures[key] = architecture(spec, shape, outputs, branches)
        return self._architectures[key]

    def network(self, role: str, arch: Architecture, device: str) -> Network:
        """A network for this role; models that are used side by side have different ones."""
        key = (role, arch.name, arch.build, device)
        if key not in self._networks:
            self._networks[key] = Network(arch, 0, device)
        return self._networks[key]

    def fresh(self, arch: Architecture, seed: int, device: str) -> Params:
        """The weights that an architecture starts with."""
        key = (arch.name, arch.build, seed, device)
        if key not in self._fresh:
            made = Network(arch, seed, device).params()
            alike = len({kind for _, _, kind in made.shapes}) == 1
            # in one piece, as trained ones are; whole numbers among them would be rounded
            self._fresh[key] = made.unflatten(made.flatten()) if alike else made
        return self._fresh[key]
