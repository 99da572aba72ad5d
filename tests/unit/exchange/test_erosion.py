"""The arithmetic of Weight Erosion, on gradients that can be worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from confrere.core.custody import Custody, Scalar, public
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.exchange.erosion import NO_WEIGHTS, ReleasedGradient, Weights, distance, eroded, is_still, step
from confrere.privacy.clipping import AdaCliP, Flat
from confrere.privacy.gradients import ClippedSum
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Seeded
from confrere.privacy.sampling import Poisson


def heard(*numbers: float, noise: float = 0.0, passes: float = 0.0) -> ReleasedGradient:
    params = Params({"w": torch.tensor(numbers, dtype=torch.float64)})
    return ReleasedGradient(Model(params, "w", Custody.PROTECTED), public(noise), public(passes))


def test_a_weight_falls_by_the_distance_in_lengths_of_the_users_gradient() -> None:
    own, far = heard(2.0, 0.0), heard(2.0, 4.0)
    assert distance(own, far) == Scalar(2.0, Custody.PROTECTED)
    weights, told = eroded(NO_WEIGHTS, own, {"b": far}, 0.01, 0.2, "median")
    assert told
    assert weights.share["b"].value == pytest.approx(1 - 0.01 * 2.0)


def test_records_that_come_round_again_count_for_less() -> None:
    own, peer = heard(1.0, 0.0), heard(0.0, 0.0, passes=0.5)
    weights, falls = NO_WEIGHTS, []
    for _ in range(5):
        before = weights.share.get("b", public(1.0)).value
        weights, _ = eroded(weights, own, {"b": peer}, 0.01, 0.2, "median")
        falls.append(before - weights.share["b"].value)
    assert falls == pytest.approx([0.01, 0.01, 0.012, 0.012, 0.014])  # ⌊(r − 1)·b/|S|⌋ = 0, 0, 1, 1, 2


def test_a_weight_never_falls_below_nothing() -> None:
    weights = Weights({"b": public(0.01)}, {"b": 0})
    assert eroded(weights, heard(1.0), {"b": heard(9.0)}, 0.01, 0.2, "median")[0].share["b"].value == 0.0


def test_who_is_absent_keeps_its_weight_and_its_count_of_rounds() -> None:
    weights = Weights({"b": public(0.7), "c": public(0.4)}, {"b": 5, "c": 2})
    found, _ = eroded(weights, heard(1.0), {"b": heard(1.0)}, 0.01, 0.2, "median")
    assert (found.share["c"].value, found.rounds) == (0.4, {"b": 6, "c": 2})


@pytest.mark.parametrize(("newcomer", "start"), [("median", 0.5), ("mean", 0.625)])
def test_a_late_joiner_starts_where_the_others_stand(newcomer: str, start: float) -> None:
    weights = Weights({"b": public(0.5), "c": public(0.5), "d": public(0.5)}, {"b": 3, "c": 3, "d": 3})
    found, _ = eroded(weights, heard(1.0), {"late": heard(1.0)}, 0.01, 0.2, newcomer)  # type: ignore[arg-type]
    assert found.share["late"].value == pytest.approx(start)


def test_everybody_starts_at_one() -> None:
    found, _ = eroded(NO_WEIGHTS, heard(1.0), {"b": heard(1.0), "c": heard(1.0)}, 0.01, 0.2, "mean")
    assert {name: share.value for name, share in found.share.items()} == {"b": 1.0, "c": 1.0}


def test_the_step_is_the_weighted_mean_with_the_user_at_one() -> None:
    model = heard(10.0).gradient
    weights = Weights({"b": public(0.5), "c": public(0.0)}, {"b": 1, "c": 1})
    moved = step(model, public(0.1), heard(1.0), {"b": heard(4.0), "c": heard(100.0)}, weights)
    assert float(moved.params["w"]) == pytest.approx(10 - 0.1 * (1 + 0.5 * 4) / 1.5)


def test_a_weight_is_held_as_closely_as_the_gradients_that_it_was_read_from() -> None:
    secret = ReleasedGradient(heard(5.0).gradient.held(Custody.PRIVATE))
    weights, _ = eroded(NO_WEIGHTS, heard(1.0), {"b": secret}, 0.01, 0.2, "median")
    assert weights.share["b"].custody == Custody.PRIVATE
    moved = step(heard(10.0).gradient, public(0.1), heard(1.0), {"b": heard(4.0)}, weights)
    assert moved.custody == Custody.PRIVATE


def test_a_gradient_of_nothing_ends_the_run_unless_noise_could_hide_one() -> None:
    assert is_still(heard(1e-9))
    assert not is_still(heard(1e-3))
    assert not is_still(heard(1e-9, noise=1.0))


def noisy(truth: torch.Tensor, std: float, seed: int) -> ReleasedGradient:
    noise = torch.randn(len(truth), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * std
    return ReleasedGradient(
        Model(Params({"w": truth + noise}), "w", Custody.PROTECTED), public(std**2 * len(truth))
    )


def test_the_noise_of_both_is_taken_out_of_the_distance() -> None:
    truth = torch.full((400,), 1.0, dtype=torch.float64)
    other = truth.clone()
    other[:100] = 0.0  # a distance of 1/2
    found = [distance(noisy(truth, 1.0, s), noisy(other, 1.5, 1000 + s)) for s in range(200)]
    told = [d for d in found if d is not None]
    assert len(told) == 200
    squares = sum(d.value**2 for d in told) / len(told)
    assert squares == pytest.approx(0.25, abs=0.1)
    plain = [
        noisy(truth, 1.0, s).gradient.params.distance(noisy(other, 1.5, 1000 + s).gradient.params)
        for s in range(50)
    ]
    assert sum(d**2 for d in plain) / 50 / 400 > 3  # what it would be without that


def test_where_noise_hides_the_users_gradient_weights_stay() -> None:
    silent = noisy(torch.zeros(400, dtype=torch.float64), 1.0, 3)
    assert distance(silent, noisy(torch.ones(400, dtype=torch.float64), 1.0, 4)) is None
    weights, told = eroded(
        Weights({"b": public(0.8)}, {"b": 4}), silent, {"b": heard(*[1.0] * 400)}, 0.01, 0.2, "median"
    )
    assert not told
    assert weights.share["b"].value == 0.8
    assert weights.rounds["b"] == 5


@pytest.mark.parametrize("clipping", [Flat(0.7), AdaCliP()], ids=["flat", "adaclip"])
def test_released_noise_has_the_size_that_is_subtracted(clipping: Flat | AdaCliP) -> None:
    size, mechanism = 50, Mechanism(Poisson(Fraction(1, 4)), clipping, 1.3, 40.0)
    state = {}
    if isinstance(clipping, AdaCliP):
        state = {"mean": torch.zeros(size), "scale": torch.linspace(0.1, 2.0, size)}
    lengths = [
        float(mechanism.release(ClippedSum(torch.zeros(size), 0), state, Seeded(s)).gradient.square().sum())
        for s in range(300)
    ]
    assert sum(lengths) / len(lengths) == pytest.approx(mechanism.expected_noise(size, state), rel=0.1)
