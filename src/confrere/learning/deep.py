"""Deep networks for pictures: VGG-like and residual. Group normalisation stands where batch normalisation would mix records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.learning.architectures import network


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


class Mean(nn.Module):
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
    return nn.Sequential(*layers, Mean(), nn.Linear(inside, outputs))
