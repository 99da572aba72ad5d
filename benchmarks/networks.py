"""The networks on which a private step is timed, as the papers and this project use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.learning.networks.architectures import networks


@dataclass(frozen=True)
class Case:
    """A network, its batch, and the shape of a record."""

    build: Callable[[], nn.Module]
    record: tuple[int, ...]
    batch: int = 250
    classes: int = 10

    def data(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(self.batch, *self.record, generator=generator)
        return inputs, torch.randint(0, self.classes, (self.batch,), generator=generator)


class Block(nn.Module):
    """Two 3 × 3 convolutions and a way past them (He et al. 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.inplace = True
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, outside)
        self.past: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.past = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(32, outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=self.inplace)
        y = self.norm2(self.conv2(y))
        if not self.inplace:
            return F.relu(y + self.past(x))
        y += self.past(x)
        return F.relu(y, inplace=True)


def resnet18() -> nn.Module:
    """ResNet-18 with GroupNorm, 64 × 64 colour images."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.GroupNorm(32, 64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
        inside = outside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


class SeriesLSTM(nn.Module):
    """Series of 64 measurements → LSTM of 64 units over 50 steps → classes."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def named(name: str, record: tuple[int, ...]) -> Case:
    """A network that studies can name."""
    return Case(lambda: networks[name](record, 10), record)


CASES = {
    "mlp": named("mlp", (784,)),
    "lenet5": named("lenet5", (1, 28, 28)),
    "cnn1": named("cnn1", (3, 32, 32)),
    "cnn2": named("cnn2", (3, 32, 32)),
    "resnet18": Case(resnet18, (3, 64, 64), batch=32),
    "lstm": Case(SeriesLSTM, (50, 64)),
}
