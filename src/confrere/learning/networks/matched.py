"""Networks on the way to a matched one: some layers already common, wider and frozen, the others a site's own.

Matching makes a network wider, yet what sites send one another has shapes that follow from the study. So each stage of
the way has an architecture of its own, in which a common layer has as many units as it may ever get; those that it does
not have are 0, and stay 0, since nothing reaches them. See docs/decisions/0007-width-that-grows.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.learning.networks.architectures import architecture, network
from confrere.learning.networks.images import AddChannel

PASSING = (
    nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d, AddChannel, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU,
)  # fmt: skip
"""What may stand between layers: all of it treats units apart and makes 0 of 0."""


@dataclass(frozen=True)
class Layer:
    """A layer of a chain: the names of its weights, its units, and how many inputs each unit before it gives."""

    weight: str
    bias: str | None
    units: int
    before: int
    """The units of the layer before; of the first layer, its inputs."""
    block: int
    """How many numbers a unit of the layer before gives: a flattened channel, or the field of a convolution."""

    def read(self, params: Mapping[str, Tensor]) -> Tensor:
        """The weights as units × units before × numbers of each."""
        weight = params[self.weight].double()
        return weight.reshape(weight.shape[0], -1, self.block)


def chain(module: nn.Module, name: str = "network") -> tuple[Layer, ...]:
    """The layers of a network that is a chain of dense and convolutional ones; a StudyError for any other."""
    found: list[Layer] = []
    if not isinstance(module, nn.Sequential):
        raise _unfit(name, f"the whole is a {type(module).__name__}, not a chain")
    for path, part in _parts(module):
        if isinstance(part, nn.Linear | nn.Conv2d):
            dense = isinstance(part, nn.Linear)
            units, inputs = part.weight.shape[0], part.weight.shape[1]
            before = found[-1].units if found else inputs
            field = 1 if dense else math.prod(part.weight.shape[2:])
            if inputs % before or (not dense and (inputs != before or part.groups != 1)):
                raise _unfit(name, f'the layer "{path}" does not take what the layer before it gives')
            bias = f"{path}.bias" if part.bias is not None else None
            found.append(Layer(f"{path}.weight", bias, units, before, field * inputs // before))
        elif type(part) not in PASSING:
            raise _unfit(name, f'"{path or type(part).__name__}" is a {type(part).__name__}')
    if len({layer.weight for layer in found}) != len(found) or not found:
        raise _unfit(name, "it has no layers of its own, or one of them twice")
    return tuple(found)


def _unfit(name: str, why: str) -> StudyError:
    return StudyError(
        f"units can be matched in chains of dense and convolutional layers only; in {name}, {why}."
        " Choose another network (mlp, lenet5, cnn1, cnn2), or another strategy"
    )


def _parts(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential or isinstance(module, Staged):
        for key, part in module.named_children():
            yield from _parts(part, f"{path}.{key}" if path else key)
    else:
        yield path, module


def cap(units: int, growth: float) -> int:
    """The most common units for a layer of this width: `growth` times as many, rounded up."""
    return math.ceil(units * growth - 1e-9)


class Staged(nn.Sequential):
    """A chain whose first layers are common; `places` says at which of the common units the site's own are."""


@network("matched")
def matched(
    shape: Sequence[int], outputs: int, of: Any = "mlp", stage: int = 1, growth: float = 1.5
) -> nn.Module:
    """The network `of` with its first `stage` layers common and frozen; with all of them, the common network itself."""
    return staged(architecture(of, shape, outputs).build(), stage, growth)


def staged(module: nn.Module, stage: int, growth: float) -> nn.Module:
    """A network with its first layers widened; they are frozen, unless all of them are common."""
    layers = chain(module)
    if not 1 <= stage <= len(layers):
        raise StudyError(f"matched: stage is between 1 and {len(layers)}, the number of layers, not {stage}")
    out = module
    for at, layer in enumerate(layers[: stage + 1]):
        path = layer.weight.rpartition(".")[0]
        hidden = at < len(layers) - 1
        units = cap(layer.units, growth) if hidden and at < stage else layer.units
        before = layer.before if at == 0 else cap(layer.before, growth)
        _put(out, path, _resized(out.get_submodule(path), units, before, layer))
        if at < stage < len(layers):
            out.get_submodule(path).requires_grad_(False)
    for at, layer in enumerate(layers[: min(stage, len(layers) - 1)]):
        out.register_buffer(f"places_{at}", torch.arange(layer.units))
    out.__class__ = type(f"Matched{stage}of{len(layers)}", (Staged,), {})  # tells a function's stages apart
    return out


def _put(module: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, key = path.rpartition(".")
    setattr(module.get_submodule(parent) if parent else module, key, part)


def _resized(part: nn.Module, units: int, before: int, layer: Layer) -> nn.Module:
    biased = layer.bias is not None
    if isinstance(part, nn.Linear):
        return nn.Linear(before * layer.block, units, biased)
    assert isinstance(part, nn.Conv2d)
    shape: dict[str, Any] = {
        k: getattr(part, k) for k in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
    }
    return nn.Conv2d(before, units, bias=biased, **shape)


def stages(spec: Any, layers: int, growth: float) -> dict[str, Any]:
    """The networks of the way, by role, in a study's words."""
    if callable(spec):
        return {role(n): _Stage(spec, n, growth) for n in range(1, layers + 1)}
    return {
        role(n): {"name": "matched", "of": spec, "stage": n, "growth": growth} for n in range(1, layers + 1)
    }


def role(stage: int) -> str:
    """The name of a model whose first layers, up to the stage, are common."""
    return f"matched {stage}" if stage else "model"


@dataclass(frozen=True)
class _Stage:
    """A stage of a network built by a custom function."""

    of: Any
    stage: int
    growth: float

    def __call__(self) -> nn.Module:
        return staged(self.of(), self.stage, self.growth)


def places_of(params: Mapping[str, Tensor], layers: Sequence[Layer], growth: float) -> list[Tensor] | None:
    """Where the site's units are, layer by layer; None if the positions are impossible."""
    found = []
    for at, layer in enumerate(layers[:-1]):
        if f"places_{at}" in params:
            places = params[f"places_{at}"]
            inside = bool(((places >= 0) & (places < cap(layer.units, growth))).all())
            if not inside or places.shape != (layer.units,) or len(torch.unique(places)) != layer.units:
                return None
            found.append(places)
    return found


def own_part(params: Params, like: Params, layers: Sequence[Layer], growth: float) -> Params:
    """A site's own network out of the common one: the common units at which its own were (FedMA, section 2.3)."""
    places = places_of(params, layers, growth)
    assert places is not None
    out = {}
    for at, layer in enumerate(layers):
        weight, bias = layer.read(params), params[layer.bias] if layer.bias else None
        if at > 0:
            weight = weight[:, places[at - 1]]
        if at < len(layers) - 1:
            weight, bias = weight[places[at]], None if bias is None else bias[places[at]]
        out[layer.weight] = weight.reshape(like[layer.weight].shape).to(like[layer.weight].dtype).contiguous()
        if layer.bias and bias is not None:
            out[layer.bias] = bias.contiguous()
    return Params(out)
