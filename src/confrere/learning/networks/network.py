"""A module whose trainable weights are one flat vector, so that a step is a few operations on vectors.

Networks hold no state of a site: weights are loaded before each use, so the sites of one process share them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from confrere.core.errors import StudyError, UnsafeModule
from confrere.core.model import Architecture
from confrere.core.params import Params
from confrere.data.tasks import Branch
from confrere.learning.local_training.stacked_network import layers_of
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

    @property
    def normalises(self) -> bool:
        """Whether it normalises batches, so that it cannot be trained on a record alone."""
        return any(isinstance(part, _BatchNorm) for part in self.module.modules())

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

    def fixed(self) -> dict[str, Tensor]:
        """What no step trains: frozen weights and all buffers, those included that no file keeps."""
        frozen = {n: p.data for n, p in self.module.named_parameters() if n not in self._trainable}
        return frozen | dict(self.module.named_buffers())

    def trainable(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of a vector like `flat`, by the name of the weight that each is."""
        sizes = [p.numel() for p in self._trainable.values()]
        parts = zip(self._trainable.items(), torch.split(flat, sizes), strict=True)
        return {name: part.view(p.shape) for (name, p), part in parts}

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


class StepGuard:
    """Holds a network that is trained privately to its promise: nothing but the noised steps changes it.

    A module can write into its buffers, its frozen weights or its own trainable weights while it computes, in plain
    sight of every record. Such a value has no noise, so it is refused, and what is released is put together from the
    weights that the steps moved and from what the network was loaded with.
    """

    def __init__(self, network: Network, role: str) -> None:
        self._network, self._role = network, role
        self._weights = network.flat.clone()
        self._fixed = {name: t.detach().clone() for name, t in network.fixed().items()}
        self._kept = self._fixed.keys() & network._all().keys()

    def check_weights(self) -> None:
        """Before a step: refuse weights that are not those that the step before has left."""
        network, expected = self._network, self._network.trainable(self._weights)
        found = dict(network.module.named_parameters())
        changed = [n for n, t in expected.items() if n not in found or not _same_bits(found[n].data, t)]
        if changed or not _same_bits(network.flat, self._weights):
            self._refuse(f"the weight «{min(changed, default='')}»")

    def stepped(self) -> None:
        """After a step: these are the weights now."""
        self._weights.copy_(self._network.flat)

    def released(self) -> Params:
        """The weights after the last step, and all else as it was before the first."""
        self.check_weights()
        now = self._network.fixed()
        for name in sorted(now.keys() | self._fixed):
            if name not in now or name not in self._fixed or not _same_bits(now[name], self._fixed[name]):
                self._refuse(f"«{name}», which is not trained,")
        weights = {n: t.clone() for n, t in self._network.trainable(self._weights).items()}
        fixed = {n: self._fixed[n] for n in self._kept}
        return Params({n: t.cpu() for n, t in {**weights, **fixed}.items()})

    def _refuse(self, what: str) -> None:
        raise UnsafeModule(
            f"the {self._role} network: {what} was changed by the network's own code during private training. What it"
            " holds then comes from records and has no noise; nothing of this training is released. Let forward and"
            " hooks change neither weights nor buffers"
        )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(a.element_size(), torch.int64)
    return torch.equal(*(t.detach().contiguous().view(-1).view(whole) for t in (a, b)))


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
