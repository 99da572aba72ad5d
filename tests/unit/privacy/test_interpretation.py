"""What an ε means: trade-off curves that are true bounds, and sentences that never promise too much."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.spatial import ConvexHull
from scipy.stats import norm

from confrere.privacy.accounting import deltas, epsilon
from confrere.privacy.charges import Accountant, Charge, gaussian, laplace
from confrere.privacy.interpretation import FALSE_POSITIVES, accuracy, meaning, readings, trade_off


def exact_curve(noise: float, rate: float) -> np.ndarray:
    """By Neyman and Pearson, for one step with a record added or removed, an observer not knowing which."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 20_001)
    without = norm.cdf(x, 0, noise)
    with_it = rate * norm.cdf(x, 1, noise) + (1 - rate) * without
    ends = np.array([[0, 1], [1, 0]])
    either = np.concatenate((np.stack((1 - without, with_it), 1), np.stack((with_it, 1 - without), 1), ends))
    corners = either[ConvexHull(either).vertices]
    below = corners[corners.sum(1) <= 1 + 1e-12]
    below = below[below[:, 0].argsort()]
    return np.interp(FALSE_POSITIVES, below[:, 0], below[:, 1])


@pytest.mark.parametrize(("accountant", "slack"), [("pld", 2e-3), ("rdp", 0.5)])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.2), (0.7, 0.5), (2.0, 0.9)])
def test_the_trade_off_curve_is_a_bound_from_below_and_a_tight_one(
    noise: float, rate: float, accountant: Accountant, slack: float
) -> None:
    found = trade_off([gaussian(noise, rate)], accountant)
    assert found.mu is None
    assert [at for at, _ in found.points] == list(FALSE_POSITIVES)
    bound, exact = np.array([fn for _, fn in found.points]), exact_curve(noise, rate)
    assert (bound <= exact + 1e-7).all()
    assert (bound >= exact - slack).all()
    assert (np.diff(bound) <= 1e-12).all()


def test_gaussians_without_sampling_have_their_exact_curve_and_a_single_mu() -> None:
    found = trade_off([gaussian(10, 1, 25), gaussian(20, 1, 11)])
    mu = math.sqrt(25 / 100 + 11 / 400)
    assert found.mu == pytest.approx(mu)
    for at, fn in found.points:
        assert fn == pytest.approx(norm.cdf(norm.ppf(1 - at) - mu), abs=2e-9)


@pytest.mark.parametrize("other", [gaussian(20, Fraction(1, 2), 11), laplace(20.0)])
def test_no_mu_is_stated_through_a_limit_theorem(other: Charge) -> None:
    assert trade_off([gaussian(10, 1, 25), other]).mu is None


def test_the_curve_agrees_with_epsilon_at_every_delta() -> None:
    charges = [gaussian(1.4, Fraction(1, 74), 370)]
    levels = np.array([0.5, 1.0, 1.5])
    for level, delta in zip(levels, deltas(charges, levels), strict=True):
        assert epsilon(charges, float(delta)) == pytest.approx(level, rel=2e-3)
    assert (deltas(charges, levels, "rdp") > deltas(charges, levels)).all()
    assert (deltas([gaussian(0)], levels) == 1).all()


def test_epsilon_stands_for_record_patient_and_whole_file_side_by_side() -> None:
    steps = [gaussian(20, 1, 40)]
    found = readings(steps, 1e-5, "record", file_group=3)
    assert found["record"] == epsilon(steps, 1e-5)
    assert found["patient"] is None
    assert found["file"] == pytest.approx(epsilon([gaussian(20 / 3, 1, 40)], 1e-5))
    assert readings(steps, 1e-5, "record", most_records=2)["patient"] == pytest.approx(
        epsilon([gaussian(10, 1, 40)], 1e-5)
    )
    patients = readings([gaussian(20, 1, 40, unit="patient")], 1e-5, "patient", file_group=1)
    assert patients["file"] == patients["patient"] == epsilon(steps, 1e-5)
    assert patients["record"] == pytest.approx(epsilon([gaussian(10, 1, 40)], 1e-5))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 1), (1.0, 0.2), (0.7, 0.5)])
def test_no_test_guesses_right_more_often_than_the_sentence_says(
    noise: float, rate: float, accountant: Accountant
) -> None:
    found = accuracy(trade_off([gaussian(noise, rate)], accountant))
    best = 0.5 + rate * (norm.cdf(1 / (2 * noise)) - 0.5)  # the total variation of the two cases, exactly
    assert best - 1e-12 <= found
    assert found <= best + (2e-3 if accountant == "pld" else 0.5)


@pytest.mark.parametrize(("noise", "words"), [(1.0, "69.2 %"), (20.0, "51 %"), (0.2, "99.4 %")])
def test_the_share_of_right_guesses_is_rounded_up_and_no_certainty(noise: float, words: str) -> None:
    said = meaning(trade_off([gaussian(noise, unit="patient")]), "patient")
    assert f"a patient is in the data, an observer of all that leaves is right at most {words} of" in said
    assert float(words.removesuffix(" %")) / 100 >= norm.cdf(1 / (2 * noise))


def test_what_leaves_no_doubt_is_not_called_protection() -> None:
    for curve in (trade_off([gaussian(0.1)]), trade_off([gaussian(0.0)]), None):
        assert "protects nobody" in meaning(curve, "record")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("noise", [1e-300, 1e-5, 0.001, 0.01, 0.05, 1e7, 1e308])
def test_extreme_noise_is_bounded_without_filling_the_memory(noise: float, accountant: Accountant) -> None:
    charges = [gaussian(noise, Fraction(1, 74), 2220), laplace(100.0)]
    value, curve = epsilon(charges, 1e-5, accountant), trade_off(charges, accountant)
    assert value >= 0.0
    assert value > 1000 if noise < 1 else value < 1
    assert curve.advantage > 0.999 if noise < 1 else curve.advantage < 0.1
