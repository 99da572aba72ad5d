"""However many units a step has, rounding does not let one of them move the computed sum by more than C."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from confrere.privacy.clipping import ROUNDING, AdaCliP, Clipping, Flat, PerLayer, Quantile, clipped_sum
from confrere.privacy.gradients import Layout, Recorded, Recorder
from confrere.privacy.gradients.per_record import SINGLE
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Seeded
from confrere.privacy.sampling import FullBatch
from confrere.privacy.stacked_steps import StackedGradients, Trace, stacked

WIDTH = 3
ALL: list[Clipping] = [Flat(), PerLayer(), AdaCliP(), Quantile()]
Total = Callable[[Tensor, Clipping, Mapping[str, Tensor]], Tensor]
LAYOUT = Layout(("weight",), ((1, WIDTH),))


def alike(count: int) -> Tensor:
    """Inputs whose gradients all point the same way and are all clipped, so that the sum grows as fast as it can."""
    return 3 + 0.3 * torch.rand(count, WIDTH, generator=torch.Generator().manual_seed(1))


def of_one_site(x: Tensor, clipping: Clipping, state: Mapping[str, Tensor]) -> Tensor:
    recorder = Recorder(nn.Linear(WIDTH, 1, bias=False), 4096)
    return clipped_sum(recorder, (x,), lambda out, rows: out[:, 0], clipping, state).flat


def of_a_stack(x: Tensor, clipping: Clipping, state: Mapping[str, Tensor]) -> Tensor:
    trace = Trace(x.unsqueeze(0), torch.ones(1, len(x), 1), (0, WIDTH), None)
    gradients = StackedGradients([trace], [len(x)], None, torch.empty(1, WIDTH))
    return clipping.sum(gradients, stacked([state])).flat[0]


@pytest.mark.parametrize("clipping", ALL, ids=lambda clipping: type(clipping).__name__)
@pytest.mark.parametrize("total", [of_one_site, of_a_stack])
@pytest.mark.parametrize("count", [SINGLE, SINGLE + 1, 20_000, 400_000])
def test_one_record_of_very_many_moves_the_sum_by_at_most_c(
    count: int, total: Total, clipping: Clipping
) -> None:
    x, state = alike(count), clipping.start(LAYOUT)
    whole = total(x, clipping, state).double()
    for removed in (0, count // 2, count - 1):
        kept = torch.arange(count) != removed
        moved = float((whole - total(x[kept], clipping, state).double()).norm())
        assert 0.98 <= moved <= 1


@pytest.mark.parametrize("total", [of_one_site, of_a_stack])
def test_gradients_around_a_centre_longer_than_c_are_added_in_double_precision(total: Total) -> None:
    clipping = AdaCliP(1.0)
    for length, dtype in ((0.9, torch.float32), (1.1, torch.float64)):
        state = {**clipping.start(LAYOUT), "mean": torch.tensor([length, 0, 0])}
        assert total(alike(SINGLE), clipping, state).dtype == dtype


def test_the_share_that_is_given_up_covers_the_rounding_of_two_sums() -> None:
    single, double, lengths = 2.0**-24, 2.0**-53, 1e-4
    assert SINGLE**2 * single + lengths <= ROUNDING
    assert 7_000_000**2 * double + lengths <= ROUNDING


def test_sums_of_few_units_are_single_and_of_many_or_of_patients_double() -> None:
    rows = torch.ones(SINGLE + 1, WIDTH)
    few, many = Recorded.explicit(LAYOUT, rows[:SINGLE]), Recorded.explicit(LAYOUT, rows)
    assert Flat().sum(few, {}).flat.dtype == torch.float32
    assert Flat().sum(many, {}).flat.dtype == torch.float64
    assert Flat().sum(few.by_unit(torch.arange(SINGLE)), {}).flat.dtype == torch.float64


@pytest.mark.parametrize("clipping", ALL, ids=lambda clipping: type(clipping).__name__)
def test_a_release_has_the_precision_of_the_model(clipping: Clipping) -> None:
    mechanism = Mechanism(FullBatch(), clipping, 1.0, 1000)
    state = clipping.start(LAYOUT)
    clipped = clipping.sum(Recorded.explicit(LAYOUT, torch.ones(1000, WIDTH)), state)
    release = mechanism.release(clipped, state, Seeded(1))
    assert release.gradient.dtype == torch.float32
    assert {n: t.dtype for n, t in release.state.items()} == {n: t.dtype for n, t in state.items()}
