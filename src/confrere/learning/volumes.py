"""Networks for volumes: computed tomography, magnetic resonance and other pictures with a depth."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.learning.architectures import network

SMALLEST = 4


class AsVolume(nn.Module):
    """Adds the channel axis to volumes that come without one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if x.ndim == 4 else x


@network("cnn3d")
def cnn3d(shape: Sequence[int], outputs: int, channels: int = 8) -> nn.Module:
    """Two 3 × 3 × 3 convolutions, the first halved by pooling, and one dense layer over 2 × 2 × 2 places."""
    if len(shape) not in (3, 4):
        raise StudyError(
            'network "cnn3d" needs volumes (depth × height × width, or channels first),'
            f" not inputs of {'×'.join(map(str, shape))}"
        )
    deep = tuple(shape[-3:])
    if min(deep) < SMALLEST:
        raise StudyError(
            f'network "cnn3d" needs volumes of at least 4 × 4 × 4, not {" × ".join(map(str, deep))}'
        )
    inputs = shape[0] if len(shape) == 4 else 1
    return nn.Sequential(
        AsVolume(),
        nn.Conv3d(inputs, channels, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(2),
        nn.Flatten(), nn.Linear(2 * channels * 8, outputs),
    )  # fmt: skip
