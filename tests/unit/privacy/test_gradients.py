"""The recorder: what it covers, what it refuses, and that it leaves a model as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.core.errors import UnsafeModule
from confrere.core.params import Params
from confrere.privacy.gradients import Explicit, Layout, Recorded, Recorder, rule
from confrere.privacy.gradients.convolution import KernelPatches
from confrere.privacy.gradients.per_record import gram_squares
from confrere.privacy.gradients.rules import forget


def explicit(module: nn.Module, x: Tensor) -> Tensor:
    """Records × parameters, by autograd on one record at a time; the loss is Σ output²."""
    layout, parameters = Layout.of(module), dict(module.named_parameters())
    wanted = [parameters[name] for name in layout.names]
    rows = []
    for i in range(len(x)):
        loss = module(x[i : i + 1]).square().sum()
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        pairs = zip(wanted, found, strict=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs]))
    return torch.stack(rows)


def record(recorder: Recorder, x: Tensor) -> Recorded:
    return recorder.backward(recorder.forward(x).square().flatten(1).sum(1))


def assert_right(module: nn.Module, x: Tensor) -> Recorder:
    recorder = Recorder(module)
    recorded = record(recorder, x)
    truth = explicit(module, x)
    factors = torch.rand(len(x))
    assert torch.allclose(recorded.squares(), truth.square().sum(1), rtol=1e-4, atol=1e-5)
    assert torch.allclose(recorded.weighted_sum(factors), factors @ truth, rtol=1e-4, atol=1e-4)
    return recorder


def test_the_flat_order_is_that_of_params() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    params = Params(dict(module.named_parameters()))
    layout = Layout.of(module)
    assert layout.names == tuple(params)
    pieces = layout.split(params.flatten())
    assert all(torch.equal(pieces[name], params[name]) for name in params)


def test_a_frozen_weight_is_not_touched() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    recorder = assert_right(module, torch.randn(5, 3))
    assert recorder.layout.names == ("0.bias", "2.bias", "2.weight")
    assert not module[0].weight.requires_grad
    assert module[2].weight.requires_grad


def test_no_summed_gradient_is_ever_computed_and_the_model_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert_right(module, torch.randn(5, 3))
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert all("forward" not in vars(layer) for layer in module.modules())


def test_a_model_whose_forward_pass_fails_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))
    with pytest.raises(RuntimeError):
        Recorder(module).forward(torch.randn(5, 3))
    assert all(p.requires_grad for p in module.parameters())
    assert all("forward" not in vars(layer) for layer in module.modules())


def test_an_inplace_relu_corrupts_nothing() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.GroupNorm(1, 2), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(18, 3), nn.ReLU(inplace=True), nn.Linear(3, 3), nn.ReLU(inplace=True),
    )  # fmt: skip
    assert_right(module, torch.randn(4, 1, 5, 5))


def test_an_input_that_is_changed_after_it_was_read_is_noticed() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.a(x)
            out = self.b(hidden)
            hidden.add_(1)
            return out + hidden

    with pytest.raises(UnsafeModule, match="changed in place"):
        record(Recorder(Changes()), torch.randn(4, 3))


def test_a_bare_parameter_goes_through_the_general_way_and_is_said() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(3))
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x + self.token)

    recorder = assert_right(nn.Sequential(nn.Linear(3, 3), Bare()), torch.randn(5, 3))
    (notice,) = recorder.notices
    assert "1 (Bare) has no rule" in notice


def test_a_layer_that_cannot_be_vectorised_is_run_record_by_record() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight if float(x.detach().sum()) > 0 else x - self.weight

    class PerRecord(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Decides()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    assert_right(PerRecord(), torch.randn(6, 3))


def test_a_subclass_with_its_own_forward_does_not_inherit_the_rule() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return F.linear(input, 2 * self.weight, self.bias)

    recorder = assert_right(nn.Sequential(Doubled(3, 2)), torch.randn(5, 3))
    assert recorder.notices


def test_weight_normalisation_goes_through_the_general_way() -> None:
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    assert assert_right(module, torch.randn(5, 3)).notices


def test_dropout_inside_the_general_way_is_drawn_once() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(50))

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x * self.scale, 0.5)

    recorder = Recorder(Dropped())
    x = torch.ones(4, 50)
    out = recorder.forward(x)
    gradients = recorder.backward(out.sum(1)).gradients["scale"].explicit(slice(None))
    assert torch.equal(gradients, out.detach())
    assert len({tuple(row.tolist()) for row in out.detach()}) > 1


def test_a_weight_that_is_used_behind_its_layers_back_is_refused() -> None:
    class Sneaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.words(x), self.words.weight)

    with pytest.raises(UnsafeModule, match=r"words\.weight: used outside"):
        record(Recorder(Sneaky()), torch.randint(0, 5, (4, 2)))


def test_batch_normalisation_is_refused_with_its_replacement() -> None:
    with pytest.raises(UnsafeModule, match="use GroupNorm"):
        Recorder(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))


def test_a_model_that_mixes_records_is_refused() -> None:
    class Centres(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = self.linear(x)
            return out - out.mean(0)

    with pytest.raises(UnsafeModule, match="mixes records"):
        record(Recorder(Centres()), torch.randn(4, 3))


@pytest.mark.parametrize("steps", [4, 5])
def test_a_batch_that_is_not_the_first_dimension_is_refused(steps: int) -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.transpose(0, 1)).transpose(0, 1)

    with pytest.raises(UnsafeModule, match=r"batch_first|first dimension"):
        record(Recorder(TimeFirst()), torch.randn(4, steps, 3))


def test_a_mean_of_losses_is_refused() -> None:
    recorder = Recorder(nn.Linear(3, 2))
    out = recorder.forward(torch.randn(4, 3))
    with pytest.raises(UnsafeModule, match="reduction='none'"):
        recorder.backward(out.mean())


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UnsafeModule, match="no trainable"):
        Recorder(nn.Linear(3, 2).requires_grad_(False))


def test_packed_sequences_and_odd_embeddings_are_refused() -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.full((len(x),), x.shape[1])
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.lstm(packed)[1][0][0]

    with pytest.raises(UnsafeModule, match="packed sequences"):
        Recorder(Packs()).forward(torch.randn(4, 5, 3))
    with pytest.raises(UnsafeModule, match="max_norm"):
        Recorder(nn.Embedding(3, 2, max_norm=1.0))
    with pytest.raises(UnsafeModule, match="scale_grad_by_freq"):
        Recorder(nn.Embedding(3, 2, scale_grad_by_freq=True))


def test_masks_and_dropout_of_attention_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(3, 5, 4)
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[:, -1] = True
    for options in (
        {"attn_mask": causal},
        {"attn_mask": causal, "key_padding_mask": padding, "need_weights": False},
        {"key_padding_mask": padding, "average_attn_weights": False},
        {"attn_mask": torch.randn(6, 5, 5)},
    ):
        wanted, weights = layer(x, x, x, **options)
        found, seen = Recorder(layer).forward(x, x, x, **options)
        assert torch.allclose(found, wanted, atol=1e-6)
        assert (weights is None) == (seen is None)
        assert weights is None or torch.allclose(seen, weights, atol=1e-6)


def test_a_users_rule_is_used() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    seen = []

    @rule(Scale)
    def scale(layer: Scale, inputs: tuple[Any, ...], error: Tensor) -> dict[str, Explicit]:
        seen.append(layer)
        return {"factor": Explicit(error * inputs[0])}

    module = nn.Sequential(Scale(), nn.Linear(3, 2))
    try:
        assert assert_right(module, torch.randn(5, 3)).notices == []
        assert set(seen) == {module[0]}
    finally:
        forget(Scale)
    assert Recorder(module).notices


def test_an_unused_layer_has_a_gradient_of_zero() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    assert_right(Spare(), torch.randn(4, 3))


def test_lengths_from_gram_matrices_are_never_too_small() -> None:
    torch.manual_seed(0)
    inputs, errors = torch.randn(8, 60, 40), torch.randn(8, 60, 50)
    errors[:, 30:] = -errors[:, :30]
    inputs[:, 30:] = inputs[:, :30] * (1 + 1e-3)  # the two halves nearly cancel
    truth = (errors.double().mT @ inputs.double()).flatten(1).square().sum(1)
    grams = errors @ errors.mT, inputs @ inputs.mT
    assert bool(((grams[0] * grams[1]).sum((1, 2)).double() < truth).any())  # it would be, without care
    assert bool((gram_squares(*grams).double() >= truth).all())


@pytest.mark.parametrize("way", ["keep", "write", "patches", "pixels"])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_way_through_a_convolution_gives_the_same(
    way: str, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelPatches, "_way", lambda self, may_gram: way)
    assert_right(nn.Conv2d(3, 4, 3, stride, padding=1), torch.randn(5, 3, 7, 6))
    assert_right(nn.Conv1d(3, 4, 2, stride, dilation=2), torch.randn(5, 3, 9))
