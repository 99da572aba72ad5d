"""Clipping: what one unit can do, what is released, and what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from confrere.core.errors import PrivacyError, StudyError
from confrere.privacy.clipping import (
    ROUNDING,
    AdaCliP,
    Clipping,
    ClipState,
    Flat,
    PerLayer,
    Quantile,
    clipped_sum,
    clippings,
)
from confrere.privacy.gradients import Layout, Recorded, Recorder
from confrere.study import Privacy

ALL: list[Clipping] = [Flat(), PerLayer(), AdaCliP(), Quantile()]


def layout_of(size: int) -> Layout:
    return Layout(("weight",), ((size,),))


def given(rows: Tensor) -> Recorded:
    return Recorded.explicit(layout_of(rows.shape[1]), rows)


def no_noise(size: int, std: float) -> Tensor:
    return torch.zeros(size)


@pytest.mark.parametrize("clipping", ALL, ids=str)
def test_an_empty_batch_gives_a_zero_sum(clipping: Clipping) -> None:
    module = nn.Conv1d(2, 3, 2)
    state = clipping.start(Layout.of(module))
    found = clipped_sum(
        Recorder(module), (torch.zeros(0, 2, 5),), lambda out, rows: out.sum((1, 2)), clipping, state
    )
    assert torch.equal(found.flat, torch.zeros(15))
    assert (found.units, found.dropped, found.below) == (0, 0, 0)
    released, _ = clipping.finish(
        found.flat + 1, state, noise_multiplier=1, expected_batch=4, clipped=found, noise=no_noise
    )
    assert bool(torch.isfinite(released).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("clipping", ALL, ids=str)
def test_a_record_that_is_not_finite_is_dropped_and_counted(clipping: Clipping, bad: float) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x, y = torch.randn(6, 2, 5), torch.randint(0, 2, (6,))
    state = clipping.start(Layout.of(module))

    def losses(out: Tensor, rows: slice | Tensor) -> Tensor:
        return F.cross_entropy(out, y[rows], reduction="none")

    kept = torch.arange(6) != 2
    without = clipped_sum(
        Recorder(module), (x[kept],), lambda out, rows: F.cross_entropy(out, y[kept][rows], reduction="none"),
        clipping, state,
    )  # fmt: skip
    x[2, 0, 1] = bad
    found = clipped_sum(Recorder(module), (x,), losses, clipping, state)
    assert (found.units, found.dropped) == (6, 1)
    assert torch.allclose(found.flat, without.flat, atol=1e-6)
    assert found.below == without.below


def test_a_patient_with_one_bad_record_is_dropped_whole() -> None:
    rows = torch.ones(4, 3)
    rows[1, 0] = math.nan
    found = Flat(100.0).sum(given(rows).by_unit(torch.tensor([7, 7, 9, 9])), {})
    assert torch.equal(found.flat, torch.full((3,), 2.0))
    assert (found.units, found.dropped) == (2, 1)


def test_a_patient_counts_once_however_many_records_there_are() -> None:
    rows = torch.eye(3).repeat(50, 1) * 5
    found = Flat(1.0).sum(given(rows).by_unit(torch.zeros(150, dtype=torch.long)), {})
    assert found.units == 1
    assert float(found.flat.norm()) == pytest.approx(1 - ROUNDING, rel=1e-5)


def test_a_short_gradient_is_left_alone() -> None:
    found = Flat(1.0).sum(given(torch.tensor([[0.3, 0.4]])), {})
    assert torch.equal(found.flat, torch.tensor([0.3, 0.4]))
    assert found.below == 1


def test_a_gradient_of_zero_stays_zero() -> None:
    for clipping in (Flat(), PerLayer(), Quantile()):
        found = clipping.sum(given(torch.zeros(2, 3)), clipping.start(layout_of(3)))
        assert torch.equal(found.flat, torch.zeros(3))
        assert found.dropped == 0


def test_rounding_never_lets_a_long_vector_through() -> None:
    torch.manual_seed(0)
    rows = torch.randn(4, 2_000_000) * torch.tensor([[1e-6], [1.0], [1e6], [0.0]])
    rows[3] = 0.17  # equal numbers: adding one after the other, every error has the same sign
    assert float(rows[3].norm()) < float(rows[3].double().norm()) * (1 - 1e-3)  # PyTorch's own
    for clipping in (Flat(1.0), PerLayer(1.0), AdaCliP(1.0), Quantile(1.0)):
        for row in rows:
            state = clipping.start(layout_of(len(row)))
            found = clipping.sum(given(row.unsqueeze(0)), state)
            assert float(found.flat.double().norm()) <= 1.0 - ROUNDING + 1e-4


def test_layers_are_clipped_by_themselves_and_stay_within_the_norm_together() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    clipping = PerLayer(2.0)
    recorder = Recorder(module)
    found = clipping.sum(recorder.backward(1e4 * recorder.forward(torch.randn(1, 3)).sum(1)), {})
    pieces = recorder.layout.split(found.flat)
    for names in recorder.layout.layers.values():
        length = math.sqrt(sum(float(pieces[n].square().sum()) for n in names))
        assert length == pytest.approx(1.0 - ROUNDING, rel=1e-3)
    assert float(found.flat.norm()) <= clipping.sensitivity({})


def test_the_first_adaclip_step_is_that_of_flat_clipping() -> None:
    torch.manual_seed(0)
    rows = torch.randn(5, 40)
    flat, adaptive = Flat(1.0), AdaCliP(1.0)
    state = adaptive.start(layout_of(40))
    found = adaptive.sum(given(rows), state)
    released, _ = adaptive.finish(
        found.flat, state, noise_multiplier=0, expected_batch=5, clipped=found, noise=no_noise
    )
    assert torch.allclose(released, flat.sum(given(rows), {}).flat / 5, atol=1e-5)


@pytest.mark.parametrize("noise", ["sum", "per-record"])
@pytest.mark.parametrize("scale", ["mean", "per-record"])
def test_adaclip_follows_its_formulas(noise: str, scale: str) -> None:
    """m, s, b, the released gradient and the next state, coordinate by coordinate."""
    torch.manual_seed(0)
    clipping = AdaCliP(1.5, beta1=0.9, beta2=0.8, low=0.05, high=0.8, noise=noise, scale=scale)  # type: ignore[arg-type]
    rows, z, batch = torch.randn(6, 4), 0.7, 5.0
    state = {"mean": 0.1 * torch.randn(4), "scale": torch.rand(4) + 0.1}
    m, s = state["mean"].double(), state["scale"].double()
    b = s.sqrt() * s.sum().sqrt()
    w = (rows.double() - m) / b
    limit = (1.5 - ROUNDING * float((m / b).norm())) * (1 - ROUNDING)
    total = (w / (w.norm(dim=1, keepdim=True) / limit).clamp(min=1)).sum(0)
    found = clipping.sum(given(rows), state)
    assert torch.allclose(found.flat.double(), total, rtol=1e-3)
    std = clipping.noise_std(z, batch, state)
    assert std == pytest.approx(z * 1.5 * (math.sqrt(batch) if noise == "per-record" else 1))
    noisy = found.flat + std * torch.randn(4)
    g = b * noisy.double() / batch + m
    v = ((g - m) ** 2 - (b * std / batch) ** 2) * (batch if scale == "per-record" else 1)
    next_scale = (0.8 * s**2 + 0.2 * v.clamp(0.05**2, 0.8**2)).sqrt()
    released, after = clipping.finish(
        noisy, state, noise_multiplier=z, expected_batch=batch, clipped=found, noise=no_noise
    )
    assert torch.allclose(released.double(), g, atol=1e-5)
    assert torch.allclose(after["scale"].double(), next_scale, atol=1e-5)
    assert torch.allclose(after["mean"].double(), 0.9 * m + 0.1 * g, atol=1e-5)


def test_noise_per_record_is_accounted_as_what_it_is() -> None:
    assert AdaCliP(noise="per-record").effective_noise_multiplier(1.0, 25) == pytest.approx(5.0)
    assert AdaCliP().effective_noise_multiplier(1.0, 25) == 1.0


def test_a_quantile_norm_finds_the_quantile_and_pays_for_it() -> None:
    clipping = Quantile(norm=10.0, quantile=0.5, rate=0.3, count_noise_multiplier=4.0)
    rows = torch.linspace(0.1, 4, 101).unsqueeze(1)
    state = clipping.start(layout_of(1))
    generator = torch.Generator().manual_seed(0)
    asked = []

    def noise(size: int, std: float) -> Tensor:
        asked.append(std)
        return std * torch.randn(size, generator=generator)

    for _ in range(60):
        found = clipping.sum(given(rows), state)
        _, state = clipping.finish(
            found.flat, state, noise_multiplier=1, expected_batch=101, clipped=found, noise=noise
        )
    assert clipping.sensitivity(state) == pytest.approx(2.05, rel=0.15)
    assert set(asked) == {2.0}  # a unit moves the centred count by one half
    assert clipping.effective_noise_multiplier(1.0, 101) == pytest.approx((1 + 1 / 16) ** -0.5)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (Flat, {"norm": 0.0}), (PerLayer, {"norm": -1.0}), (AdaCliP, {"norm": math.nan}),
        (AdaCliP, {"beta1": 1.0}), (AdaCliP, {"low": 2.0, "high": 1.0}), (Quantile, {"quantile": 1.0}),
        (Quantile, {"count_noise_multiplier": 0.0}), (Quantile, {"norm": 1e9}),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(kind: type, bad: dict[str, float]) -> None:
    with pytest.raises(PrivacyError):
        kind(**bad)


@pytest.mark.parametrize("name", clippings.names())
def test_a_clipping_states_its_bound_and_its_noise_before_anything_was_released(name: str) -> None:
    made = clippings[name]()
    assert isinstance(made, Clipping)
    assert made.bound == made.sensitivity({}) > 0
    started = made.start(Layout.of(nn.Linear(3, 2)))
    assert made.noise_std(2.0, 9.0, {}) == pytest.approx(made.noise_std(2.0, 9.0, started))
    assert made.widening(8, {}) == pytest.approx(made.widening(8, started))
    if made.fixed_noise:
        assert made.noise_std(2.0, 9.0, {}) == 2 * made.bound
        assert made.effective_noise_multiplier(2.0, 9.0) == 2.0


def test_a_clipping_that_leaves_something_out_is_refused() -> None:
    @dataclass(frozen=True)
    class Unfinished:
        norm: float = 1.0

        def sensitivity(self, state: ClipState) -> float:
            return self.norm

    clippings.register("unfinished")(Unfinished)  # type: ignore[arg-type]
    try:
        with pytest.raises(StudyError, match=r'clipping "unfinished" does not define bound, effective_noise'):
            Privacy(epsilon=1.0, clipping="unfinished").clipper()
    finally:
        clippings.remove("unfinished")
