"""Networks that a study can name: for tables and pictures. All are safe for private training: no layer mixes records.

Those for sequences, bags, volumes and records of several branches have files of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.learning import bags, branches, deep, sequences, volumes  # noqa: F401 (each registers its networks)
from confrere.learning.architectures import architecture, describe, flat, fresh, network, networks

__all__ = ["Adapted", "Centred", "architecture", "describe", "fresh", "network", "networks"]


def _image(shape: Sequence[int], name: str) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise StudyError(
        f'network "{name}" needs images (height × width, or channels first), not inputs of {shape}'
    )


class AsImage(nn.Module):
    """Adds the channel axis to grey images that come without one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if x.ndim == 3 else x


@network("linear")
def linear(shape: Sequence[int], outputs: int) -> nn.Module:
    """Logistic (or linear) regression: the smallest proxy, so the least noise."""
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(shape), outputs))


@network("mlp")
def mlp(
    shape: Sequence[int], outputs: int, hidden: Sequence[int] = (200, 200), dropout: float = 0.0
) -> nn.Module:
    """Fully connected layers with ReLU; 200-200 is the proxy of the ProxyFL experiments."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = flat(shape)
    for h in hidden:
        layers += [nn.Linear(width, h), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = h
    return nn.Sequential(*layers, nn.Linear(width, outputs))


@network("lenet5")
def lenet5(shape: Sequence[int], outputs: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling."""
    c, h, w = _image(shape, "lenet5")
    side = ((h // 2 - 4) // 2) * ((w // 2 - 4) // 2)
    if h < 12 or w < 12:
        raise StudyError(f'network "lenet5" needs images of at least 12 × 12, not {h} × {w}')
    return nn.Sequential(
        AsImage(),
        nn.Conv2d(c, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
    )  # fmt: skip


def _pooled_twice(side: int) -> int:
    """What two unpadded 3 × 3 convolutions, each halved by pooling, leave of a side."""
    return ((side - 2) // 2 - 2) // 2


@network("cnn1")
def cnn1(shape: Sequence[int], outputs: int) -> nn.Module:
    """Two small convolutions and two dense layers: the CIFAR-10 proxy of Kalra, Wen et al. (2023)."""
    c, h, w = _image(shape, "cnn1")
    return nn.Sequential(
        AsImage(),
        nn.Conv2d(c, 6, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * _pooled_twice(h) * _pooled_twice(w), 64), nn.ReLU(), nn.Linear(64, outputs),
    )  # fmt: skip


@network("cnn2")
def cnn2(shape: Sequence[int], outputs: int) -> nn.Module:
    """Two wide convolutions and one dense layer: the CIFAR-10 private model of Kalra, Wen et al. (2023)."""
    c, h, w = _image(shape, "cnn2")
    return nn.Sequential(
        AsImage(),
        nn.Conv2d(c, 128, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128 * _pooled_twice(h) * _pooled_twice(w), outputs),
    )  # fmt: skip


class Centred(nn.Module):
    """Linear regression on records that are moved to a common centre and scaled to norm 1.

    Most of a record's norm is what all records share, and a private step has to clip and drown the rest with it.
    So the sites first agree, under the same privacy, on a `mean` and on the class `shares`: with `profiling` these
    two are trained and the `head` rests; otherwise the head is trained and they rest. Both forms have the same
    weights under the same names, so one parcel carries either. The mean counts in multiples of the shares' sum,
    so that whatever scales both (clipping, mixing, a learning rate) cancels.
    """

    STEADY = 0.3
    """The constant input for each class's constant: small, so that it takes little of a record's norm."""

    def __init__(self, inputs: int, outputs: int, unit: bool, profiling: bool) -> None:
        super().__init__()
        self.unit, self.profiling, self.outputs = unit, profiling, outputs
        self.mean = nn.Linear(inputs, 1, bias=False)
        self.shares = nn.Linear(1, max(2, outputs), bias=False)
        self.head = nn.Linear(inputs + 1, outputs, bias=False)
        with torch.no_grad():
            for weight in self.parameters():
                weight.zero_()
        for part in (self.mean, self.shares):
            part.requires_grad_(profiling)
        self.head.requires_grad_(not profiling)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.profiling:
            return torch.cat([self.mean(x), self.shares(x.new_ones(len(x), 1))], 1)
        return self.head(self.features(x))  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Records around the centre, with the constant behind them."""
        total = self.shares.weight.sum()
        x = x.flatten(1) - torch.where(total > 0, self.mean.weight / total.clamp_min(1e-9), 0.0)
        if self.unit:
            x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-6)
        return torch.cat([x, x.new_full((len(x), 1), self.STEADY)], 1)


@network("centred-linear")
def centred_linear(
    shape: Sequence[int], outputs: int, unit: bool = True, profiling: bool = False
) -> nn.Module:
    """Linear regression around a centre on which the sites agree privately: the proxy for features of pictures."""
    return Centred(flat(shape), outputs, unit, profiling)


class Adapted(nn.Module):
    """A site's own input and output layers around the common proxy (Kalra, Wen et al. 2023, section 3.1).

    `common` is the part with the proxy's architecture; the adapters are the site's own and private.
    """

    def __init__(self, before: nn.Module, common: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.common, self.after = before, common, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.common(self.before(x)))  # type: ignore[no-any-return]
