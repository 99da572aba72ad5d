"""A model that mixes or remembers records is refused, openly or found out, and can be repaired."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from confrere.core.errors import UnsafeModule
from confrere.privacy.lint import check, group_count, replace_unsafe

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Centred(nn.Module):
    """Mixes quietly: subtracts the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y - y.mean(0)


class Remembers(nn.Module):
    """Keeps a running mean of what passed, without letting it reach an output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
        y: Tensor = self.inner(x)
        return y


class Pools(nn.Module):
    """Returns one number for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y.sum()


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm2d(3),
        nn.BatchNorm3d(3),
        nn.SyncBatchNorm(3),
        nn.LazyBatchNorm2d(),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_mix_or_remember_are_refused_by_name_with_their_replacement(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(layer))
    with pytest.raises(UnsafeModule, match=rf"{type(layer).__name__} «1.0».*replace_unsafe"):
        check(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [(Centred(), "mixes records"), (Remembers(), "«seen» remembers"), (Pools(), "one row per record")],
)
def test_a_module_of_ones_own_is_found_out_by_trying_it(model: nn.Module, words: str) -> None:
    check(model)
    with pytest.raises(UnsafeModule, match=words):
        check(model, ROWS)


def test_mixing_whole_numbers_is_found_out_too() -> None:
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.words(x).mean(1)
            return y + 0.01 * y.roll(1, 0)

    tokens = torch.arange(15).reshape(3, 5) % 9
    check(nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), tokens)
    with pytest.raises(UnsafeModule, match="mixes records"):
        check(Shares(), tokens)


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2)), ROWS),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)),
            IMAGES,
        ),
        (nn.Sequential(nn.InstanceNorm2d(3, affine=True), nn.Flatten(), nn.Linear(192, 2)), IMAGES),
        (nn.LSTM(8, 4, batch_first=True), ROWS.reshape(3, 2, 8)[:, :, :]),
    ],
)
def test_sound_models_pass_and_are_left_as_they_were(model: nn.Module, example: Tensor) -> None:
    model.eval()
    if not isinstance(model, nn.LSTM):
        model(example)  # gives lazy layers their shape
        check(model, example)
    check(model)
    assert not model.training


def test_a_lazy_layer_needs_its_shape_first() -> None:
    with pytest.raises(UnsafeModule, match="no shape yet"):
        check(nn.Sequential(nn.LazyLinear(2)))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    for model in (frozen, nn.ReLU()):
        with pytest.raises(UnsafeModule, match="no trainable layer"):
            check(model)


def test_replacing_gives_a_sound_copy_and_leaves_the_original() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.Sequential(nn.InstanceNorm2d(16, affine=True, track_running_stats=True), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(576, 12),
        nn.BatchNorm1d(12),
        nn.Linear(12, 1),
        nn.BatchNorm1d(1),
    )
    nn.init.constant_(model[1].get_parameter("weight"), 0.5)
    safe = replace_unsafe(model)
    check(safe, IMAGES)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(safe[1], nn.GroupNorm)  # type: ignore[index]
    assert torch.equal(safe[1].weight, model[1].weight)  # type: ignore[index]
    assert safe(IMAGES).std() > 0
    assert safe(IMAGES).shape == (6, 1)


def test_a_norm_alone_is_replaced_too() -> None:
    assert isinstance(replace_unsafe(nn.BatchNorm2d(8)), nn.GroupNorm)


def test_groups_divide_the_channels_and_are_never_a_single_one() -> None:
    for channels in range(2, 300):
        groups = group_count(channels)
        assert channels % groups == 0
        assert groups <= 32
        assert channels // groups > 1
