"""Networks for images and volumes: LeNet, small convolutions, VGG-like, residual. No layer mixes records.

Group normalisation takes the place of batch normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.learning.networks.architectures import network


def _image(shape: Sequence[int], name: str) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise StudyError(
        f'network "{name}" needs images (height × width, or channels first), not inputs of {shape}'
    )


class AddChannel(nn.Module):
    """Adds the channel axis to grey images (2 dimensions) or volumes (3) that come without one."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if x.ndim == self.dimensions + 1 else x


@network("lenet5")
def lenet5(shape: Sequence[int], outputs: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling."""
    c, h, w = _image(shape, "lenet5")
    side = ((h // 2 - 4) // 2) * ((w // 2 - 4) // 2)
    if h < 12 or w < 12:
        raise StudyError(f'network "lenet5" needs images of at least 12 × 12, not {h} × {w}')
    return nn.Sequential(
        AddChannel(2),
        nn.Conv2d(c, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
    )  # fmt: skip


def _two_convolutions(shape: Sequence[int], name: str, *widths: int) -> tuple[list[nn.Module], int]:
    """Two unpadded 3 × 3 convolutions, each halved by pooling, and how many numbers they leave of an image."""
    c, h, w = _image(shape, name)
    layers: list[nn.Module] = [AddChannel(2)]
    for width in widths:
        layers += [nn.Conv2d(c, width, 3), nn.ReLU(), nn.MaxPool2d(2)]
        c, h, w = width, (h - 2) // 2, (w - 2) // 2
    return [*layers, nn.Flatten()], c * h * w


@network("cnn1")
def cnn1(shape: Sequence[int], outputs: int) -> nn.Module:
    """Two small convolutions and two dense layers: the CIFAR-10 proxy of Kalra, Wen et al. (2023)."""
    layers, size = _two_convolutions(shape, "cnn1", 6, 16)
    return nn.Sequential(*layers, nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, outputs))


@network("cnn2")
def cnn2(shape: Sequence[int], outputs: int) -> nn.Module:
    """Two wide convolutions and one dense layer: the CIFAR-10 private model of Kalra, Wen et al. (2023)."""
    layers, size = _two_convolutions(shape, "cnn2", 128, 128)
    return nn.Sequential(*layers, nn.Linear(size, outputs))


def _channels(shape: Sequence[int], name: str, least: int) -> int:
    if len(shape) != 3:
        raise StudyError(
            f'network "{name}" needs images (channels × height × width), not inputs of {tuple(shape)}'
        )
    if min(shape[1:]) < least:
        raise StudyError(
            f'network "{name}" needs images of at least {least} × {least}, not {shape[1]} × {shape[2]}'
        )
    return shape[0]


@network("vgg")
def vgg(
    shape: Sequence[int], outputs: int, widths: Sequence[int] = (32, 64, 128), dense: int = 128
) -> nn.Module:
    """Blocks of two 3 × 3 convolutions and a pooling, then two dense layers (after Simonyan and Zisserman 2015)."""
    c, (h, w) = _channels(shape, "vgg", 2 ** len(widths)), shape[1:]
    layers: list[nn.Module] = []
    for width in widths:
        layers += [
            nn.Conv2d(c, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        c, h, w = width, h // 2, w // 2
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(c * h * w, dense), nn.ReLU(), nn.Linear(dense, outputs)
    )


class Residual(nn.Module):
    """Two convolutions with group normalisation beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm1, self.norm2 = (nn.GroupNorm(math.gcd(groups, outside), outside) for _ in range(2))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False),
                nn.GroupNorm(math.gcd(groups, outside), outside),
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.first(x)).relu()
        return (self.norm2(self.second(inner)) + self.shortcut(x)).relu()  # type: ignore[no-any-return]


class SpatialMean(nn.Module):
    """The mean over all places of a picture."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@network("resnet18")
def resnet18(
    shape: Sequence[int], outputs: int, width: int = 64, groups: int = 32, stem: int = 7
) -> nn.Module:
    """ResNet-18 (He et al. 2016) with group normalisation (Wu and He 2018) in place of batch normalisation.

    `width` is that of the first of four stages; with `stem = 3` the picture is not made smaller before them, as for
    pictures of 32 × 32 pixels.
    """
    c = _channels(shape, "resnet18", 8)
    if stem not in (3, 7) or width < 1:
        raise StudyError(f'network "resnet18": stem is 7 or 3 and width at least 1, not {stem} and {width}')
    layers: list[nn.Module] = [
        nn.Conv2d(c, width, stem, stride=2 if stem == 7 else 1, padding=stem // 2, bias=False),
        nn.GroupNorm(math.gcd(groups, width), width),
        nn.ReLU(),
    ]
    if stem == 7:
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    inside = width
    for stage in range(4):
        outside = width * 2**stage
        layers += [
            Residual(inside, outside, 1 if stage == 0 else 2, groups),
            Residual(outside, outside, 1, groups),
        ]
        inside = outside
    return nn.Sequential(*layers, SpatialMean(), nn.Linear(inside, outputs))


@network("cnn3d")
def cnn3d(shape: Sequence[int], outputs: int, channels: int = 8) -> nn.Module:
    """Two 3 × 3 × 3 convolutions, the first halved by pooling, and one dense layer over 2 × 2 × 2 places."""
    if len(shape) not in (3, 4):
        raise StudyError(
            'network "cnn3d" needs volumes (depth × height × width, or channels first),'
            f" not inputs of {'×'.join(map(str, shape))}"
        )
    deep = tuple(shape[-3:])
    if min(deep) < 4:
        raise StudyError(
            f'network "cnn3d" needs volumes of at least 4 × 4 × 4, not {" × ".join(map(str, deep))}'
        )
    inputs = shape[0] if len(shape) == 4 else 1
    return nn.Sequential(
        AddChannel(3),
        nn.Conv3d(inputs, channels, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(2),
        nn.Flatten(), nn.Linear(2 * channels * 8, outputs),
    )  # fmt: skip
